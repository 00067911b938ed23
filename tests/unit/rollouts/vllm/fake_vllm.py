"""The package `vllm` as far as the real worker needs it, without a model: samples are numbers made from the seeds.

It writes what it is asked into the file of the environment variable FAKE_VLLM_CALLS, one line a call, and the checksums
of its weights beside it after each push. It raises where vLLM 0.32 would go wrong:
  - nothing may touch memory that sleeps, `sleep` is ignored while any part sleeps, and so is `wake_up` of a part that
    does not;
  - weights are loaded between the beginning and the end of a reload, with the configuration set, and layers that it
    joins (queries, keys and values; gate and up) only together;
  - arguments for workers are pickled, and there are as many workers as `tensor_parallel_size` says;
  - an adapter is a folder in peft's layout, with a positive number of its own, up to the rank that it was set up for.
Log-probabilities of a text depend on all weights, adapters included. FAKE_VLLM_PLATFORM=cpu makes it a platform without
a sleep mode, FAKE_VLLM_LORA=none one without adapters; with `partial` it skips one layer of an adapter.
"""

import json
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

__version__ = "0.0.fake"
__path__: list[str] = []  # so that `vllm.platforms` may be imported


def note(*words: object) -> None:
    with Path(os.environ["FAKE_VLLM_CALLS"]).open("a", encoding="utf-8") as calls:
        calls.write(" ".join(str(word) for word in words) + "\n")


@dataclass
class SamplingParams:
    max_tokens: int
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    extra_args: Any = None


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str

    def __post_init__(self) -> None:
        assert self.lora_int_id > 0, "numbers of adapters are positive"


class Model:
    """The weights of a worker."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.loaded: dict[str, Any] | None = None

    def modules(self) -> list[Any]:
        return []

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        assert self.loaded is not None, "load_weights outside of a reload"
        assert _current, "load_weights without set_current_vllm_config"
        self.loaded |= dict(weights)

    def begin(self) -> None:
        self.loaded = {}

    def finish(self, model_config: Any) -> None:
        assert self.loaded is not None
        known = self.weights.keys() | self.loaded.keys()
        for name in self.loaded:
            own = next((group for group in JOINED if any(part in name for part in group)), ())
            joined = {name.replace(part, other) for part in own if part in name for other in own}
            if lacking := (joined & known) - self.loaded.keys():
                raise RuntimeError(f"{name} is joined with {lacking}, which were not loaded")
        self.weights |= self.loaded
        self.loaded = None
        sums = {name: zlib.crc32(bytes(tensor.view(-1).untyped_storage())) for name, tensor in self.weights.items()}
        Path(os.environ["FAKE_VLLM_CALLS"] + ".weights").write_text(json.dumps(sums))


JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_current: list[Any] = []


@contextmanager
def set_current_vllm_config(config: Any) -> Iterator[None]:
    _current.append(config)
    yield
    _current.pop()


class LLM:
    def __init__(
        self,
        *,
        enable_sleep_mode: bool = False,
        tensor_parallel_size: int = 1,
        distributed_executor_backend: str | None = None,
        enable_lora: bool = False,
        max_loras: int = 1,
        max_lora_rank: int = 16,
        **arguments: Any,
    ) -> None:
        if enable_lora and os.environ.get("FAKE_VLLM_LORA") == "none":
            raise ValueError("FakeModel does not support LoRA yet.")
        if max_lora_rank not in (1, 8, 16, 32, 64, 128, 256, 320, 512):
            raise ValueError(f"max_lora_rank is {max_lora_rank}")
        assert (distributed_executor_backend == "mp") == (tensor_parallel_size > 1)
        pickle.dumps(arguments)  # for a process for each GPU, with the classes of logits processors
        self._can_sleep = enable_sleep_mode
        self._asleep: list[str] = []
        self._rank = max_lora_rank if enable_lora else 0
        self._adapters: dict[int, dict[str, Any]] = {}
        self.llm_engine = SimpleNamespace(add_lora=self._add_lora, remove_lora=self._remove_lora)
        self._workers = []
        for _ in range(tensor_parallel_size):
            model = Model()
            self._workers.append(SimpleNamespace(vllm_config="all", model_config="model", get_model=lambda m=model: m))
        words = ["enable_sleep_mode"] * enable_sleep_mode + [f"on {tensor_parallel_size}"] * (tensor_parallel_size > 1)
        note("build", *words, *(["enable_lora"] if enable_lora else []))

    def collective_rpc(
        self, method: Callable[..., Any], timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> list[Any]:
        self._needs("weights")
        if method.__name__ == "finish_reload":
            note("push")
        return [method(worker, *pickle.loads(pickle.dumps(args))) for worker in self._workers]

    def _add_lora(self, request: LoRARequest) -> bool:
        from safetensors.torch import load_file

        self._needs("weights")
        assert request.lora_int_id not in self._adapters, "vLLM would keep the adapter that it has"
        config = json.loads((Path(request.lora_path) / "adapter_config.json").read_text())
        assert config["r"] <= self._rank, "the rank is larger than max_lora_rank"
        found = load_file(Path(request.lora_path) / "adapter_model.safetensors")
        deltas = {}
        for name, second in found.items():
            assert name.startswith("base_model.model."), name
            assert name.endswith((".lora_A.weight", ".lora_B.weight")), name
            if name.endswith(".lora_B.weight"):
                assert name.split(".")[-3] in config["target_modules"]
                first = found[name.replace("lora_B", "lora_A")]
                weight = name.removeprefix("base_model.model.").replace(".lora_B", "")
                deltas[weight] = second @ first * config["lora_alpha"] / config["r"]
        if os.environ.get("FAKE_VLLM_LORA") == "partial":
            deltas.pop(next(iter(deltas)))
        self._adapters[request.lora_int_id] = deltas
        note("adapter")
        return True

    def _remove_lora(self, number: int) -> bool:
        return self._adapters.pop(number, None) is not None

    def _strength(self, request: LoRARequest | None) -> float:
        """A number that depends on every matrix."""
        deltas = self._adapters[request.lora_int_id] if request is not None else {}
        matrices = self._workers[0].get_model().weights
        return sum(float((deltas.get(name, 0.0) + weight).square().sum().sqrt()) for name, weight in matrices.items())

    def reset_prefix_cache(self) -> bool:
        return True

    def sleep(self, level: int = 1) -> None:
        if not self._can_sleep or self._asleep:
            raise RuntimeError(f"sleep mode is {self._can_sleep}, and {self._asleep} are asleep")
        self._asleep = ["weights", "kv_cache"]
        note("sleep", level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        if not tags or not set(tags) <= set(self._asleep):
            raise RuntimeError(f"{tags} are to wake, and {self._asleep} are asleep")
        self._asleep = [part for part in self._asleep if part not in tags]
        note("wake", *tags)

    def generate(
        self, prompts: list[Any], params: Any, *, use_tqdm: bool, lora_request: LoRARequest | None = None
    ) -> list[Any]:
        self._needs("weights", "kv_cache")
        if isinstance(params, SamplingParams):
            note("score")
            strength = self._strength(lora_request)
            scores = {token: SimpleNamespace(logprob=-strength * token) for token in params.logprob_token_ids or ()}
            return [SimpleNamespace(outputs=[SimpleNamespace(logprobs=[scores])]) for _ in prompts]
        note("generate", *(["with adapter"] if lora_request is not None else []))
        return [SimpleNamespace(outputs=[_sample(each)], num_cached_tokens=0) for each in params]

    def _needs(self, *parts: str) -> None:
        if set(parts) & set(self._asleep):
            raise RuntimeError(f"{parts} are needed, and {self._asleep} are asleep")


def _sample(params: SamplingParams) -> Any:
    assert params.seed is not None
    tokens = [2 + (params.seed >> place) % 8 for place in range(params.max_tokens)]
    logprobs = [{token: SimpleNamespace(logprob=-2.0)} for token in tokens]
    return SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason="length")


def _module(name: str, **contents: Any) -> None:
    """A module, and the packages that it is in."""
    package, _, _ = name.rpartition(".")
    if package not in sys.modules:
        _module(package)
    module = ModuleType(name)
    module.__path__ = []  # it may have modules of its own
    vars(module).update(contents)
    sys.modules[name] = module


_ON_CPU = os.environ.get("FAKE_VLLM_PLATFORM") == "cpu"
_PLATFORM = SimpleNamespace(is_cpu=lambda: _ON_CPU, is_sleep_mode_available=lambda: not _ON_CPU)
_module("vllm.platforms", current_platform=_PLATFORM)
_module("vllm.config", set_current_vllm_config=set_current_vllm_config)
_module("vllm.lora.request", LoRARequest=LoRARequest)
_RELOAD = {"initialize_layerwise_reload": Model.begin, "finalize_layerwise_reload": Model.finish}
_module("vllm.model_executor.model_loader.reload", **_RELOAD)
_EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
_module(_EMBEDDING, VocabParallelEmbedding=type("VocabParallelEmbedding", (), {}))
_module("vllm.v1.sample.logits_processor", AdapterLogitsProcessor=object)
_HEADS = SimpleNamespace(get_supported_head_sizes=lambda: [8, 16, 32, 64])
_module("vllm.v1.attention.backends.cpu_attn", CPUAttentionBackend=_HEADS)
