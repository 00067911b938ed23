"""The package `vllm` as far as the real worker needs it, without a model: samples are numbers made from the seeds.

It writes what it is asked into the file of the environment variable FAKE_VLLM_CALLS, one line a call, and raises where
vLLM with a sleep mode would go wrong: nothing may touch memory that sleeps, `sleep` is ignored while any part sleeps,
and so is `wake_up` of a part that does not. FAKE_VLLM_PLATFORM=cpu makes it a platform without a sleep mode.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
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
    seed: int
    max_tokens: int
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int = 0
    skip_special_tokens: bool = True
    detokenize: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    extra_args: Any = None


class LLM:
    def __init__(self, *, enable_sleep_mode: bool = False, **arguments: Any) -> None:
        self._can_sleep = enable_sleep_mode
        self._asleep: list[str] = []
        note("build", *(["enable_sleep_mode"] if enable_sleep_mode else []))

    def collective_rpc(self, method: str, kwargs: dict[str, Iterator[tuple[str, Any]]]) -> None:
        assert method == "reload_weights"
        self._needs("weights")
        assert [name for name, _ in kwargs["weights_iterator"]]
        note("push")

    def apply_model(self, change: Any) -> None:
        self._needs("weights")

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

    def generate(self, prompts: list[Any], params: list[SamplingParams], *, use_tqdm: bool) -> list[Any]:
        self._needs("weights", "kv_cache")
        note("generate")
        return [SimpleNamespace(outputs=[_sample(each)], num_cached_tokens=0) for each in params]

    def _needs(self, *parts: str) -> None:
        if set(parts) & set(self._asleep):
            raise RuntimeError(f"{parts} are needed, and {self._asleep} are asleep")


def _sample(params: SamplingParams) -> Any:
    tokens = [2 + (params.seed >> place) % 8 for place in range(params.max_tokens)]
    logprobs = [{token: SimpleNamespace(logprob=-2.0)} for token in tokens]
    return SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason="length")


def _module(name: str, **contents: Any) -> None:
    module = ModuleType(name)
    module.__path__ = []  # it may have modules of its own
    vars(module).update(contents)
    sys.modules[name] = module


_ON_CPU = os.environ.get("FAKE_VLLM_PLATFORM") == "cpu"
_PLATFORM = SimpleNamespace(is_cpu=lambda: _ON_CPU, is_sleep_mode_available=lambda: not _ON_CPU)
_module("vllm.platforms", current_platform=_PLATFORM)
_module("vllm.v1")
_module("vllm.v1.sample")
_module("vllm.v1.sample.logits_processor", AdapterLogitsProcessor=object)
_module("vllm.v1.attention")
_module("vllm.v1.attention.backends")
_HEADS = SimpleNamespace(get_supported_head_sizes=lambda: [8, 16, 32, 64])
_module("vllm.v1.attention.backends.cpu_attn", CPUAttentionBackend=_HEADS)
