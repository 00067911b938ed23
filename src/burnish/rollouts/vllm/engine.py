"""The vLLM engine: samples in a separate process, which gets the weights through shared memory after each update.

The worker (worker.py) starts with the first call and lives as long as the engine is open. It gets the model's
configuration and tokenizer from a folder without weights. The weights come only from pushes, each with the policy's
version, and every call names the version that it wants. A worker that dies or hangs is restarted once per call with
the same weights: calls are made between `sync` and the next update, so the policy still has them.

A worker that rests between calls is asleep in vLLM's words (level 1): its weights are in the host's memory, its keys
and values are gone. It wakes in two parts, weights before they are pushed, and keys and values only before it samples,
so that a push does not need the memory of both.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from burnish.config.schema_rollout import VllmConfig
from burnish.errors import ConfigError, RolloutError
from burnish.models.lora import saved_adapter
from burnish.models.weights import Weights, take_tensors
from burnish.outside.supervise import Closing
from burnish.rollouts.engine import OnFinished, Requests, RestingEngine, Sampling
from burnish.rollouts.noise import sample_key
from burnish.rollouts.sampling import check_sampling, check_traits
from burnish.rollouts.stop import StopConditions, check_logprob, response_limit
from burnish.rollouts.vllm.heads import ConfigJson
from burnish.rollouts.vllm.process import SCRIPT, EngineProcess, Message, WorkerFault, WorkerLost
from burnish.rollouts.vllm.traits import TRAITS
from burnish.rollouts.vllm.weight_pushes import WeightPushes
from burnish.types import FinishReason, Metric, PreTrainedModel, Reduction, Rollout, RolloutRequest, Tokenizer

_TOKENS_PER_STEP = 4096
"""Prompt tokens that vLLM reads at once on a CPU, unless the context is longer."""

_PARTS = ("weights", "kv_cache")
"""What sleeps and wakes, in vLLM's words."""

_SEED_MASK = (1 << 63) - 1
"""Seeds are sent as non-negative numbers."""


def add_note(log: Path, text: str) -> None:
    """Add a line to what workers print, if the file can be opened: `EngineProcess` reports one that cannot."""
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(f"burnish: {text}\n")


@dataclass(slots=True)
class Spent:
    """Time, tokens and restarts since the metrics were last read."""

    generate_seconds: float = 0.0
    start_seconds: float = 0.0
    sleep_seconds: float = 0.0
    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    restarts: int = 0
    pushed_bytes: int = 0


@dataclass(slots=True)
class VllmWorker:
    """The process in which vLLM samples: started when it is needed, awake or asleep, replaced when it is lost.

    rests: it gives up the GPU's memory between calls. asleep: the parts that sleep.
    """

    pushes: WeightPushes
    tokenizer: Tokenizer
    settings: VllmConfig
    log: Path
    script: Path
    max_batch_rows: int
    rests: bool
    process: EngineProcess | None = None
    asleep: tuple[str, ...] = ()
    spent: Spent = field(default_factory=Spent)

    def close(self) -> None:
        """End the process. Idempotent. A later call would start another one."""
        if self.process is not None:
            self.process.kill()
            self.process = None
        self.asleep = ()

    def ask(self, message: Message) -> Message:
        """The answer of the process with the weights of the last sync. One that is lost is replaced once."""
        lost_before = False
        while True:
            try:
                process = self._ready()
                started = time.perf_counter()
                answer = process.ask(message, seconds=self.settings.call_timeout_seconds)
            except (WorkerLost, WorkerFault) as lost:
                if lost_before:
                    tail = "" if self.process is None else f"\n{self.process.log_tail()}"
                    self.close()
                    raise RolloutError(
                        f"the vLLM worker was lost twice in one call: it {_what(lost)}{tail}",
                        remedy="SIGKILL usually means too little memory: lower rollout.max_batch_rows, or "
                        "gpu_memory_utilization or kv_cache_memory_bytes in rollout.vllm.options; if it only needs "
                        f"longer, raise rollout.vllm.call_timeout_seconds. The full log is {self.log}",
                    ) from lost
                lost_before = True
                self._bury(lost, "generate")
                continue
            self.spent.generate_seconds += time.perf_counter() - started
            return answer

    def push(self) -> None:
        """Push the weights of the last sync, if there is a process. One that is lost is replaced by the next `ask`."""
        if self.process is not None:
            try:
                self._wake(self.process, ("weights",))
                self.spent.pushed_bytes += self.pushes.push(self.process, seconds=self.settings.start_timeout_seconds)
            except (WorkerLost, WorkerFault) as lost:
                self._bury(lost, "sync")

    def sleep(self) -> None:
        """Give up the GPU's memory, if it rests at all. A process that is lost is replaced by the next `ask`."""
        if self.rests and self.process is not None and self.asleep != _PARTS:
            try:
                self._change_sleep(self.process, {"kind": "sleep"})
            except (WorkerLost, WorkerFault) as lost:
                self._bury(lost, "sleep")

    def _ready(self) -> EngineProcess:
        """The process with the weights of the last sync, awake, started if there is none."""
        if self.process is None:
            seconds, started = self.settings.start_timeout_seconds, time.perf_counter()
            self.pushes.begin(seconds=seconds)
            _make_room()
            self.process = self._start()
            if not self.pushes.agree(self.process):
                self.process.kill()
                self.process = self._start()
            self.spent.start_seconds += time.perf_counter() - started
            self.spent.pushed_bytes += self.pushes.push_all(self.process, seconds=seconds)
        self._wake(self.process, _PARTS)
        return self.process

    def _wake(self, process: EngineProcess, parts: Sequence[str]) -> None:
        """Wake these parts, if they sleep."""
        if tags := [part for part in parts if part in self.asleep]:
            _make_room()
            self._change_sleep(process, {"kind": "wake", "tags": tags})

    def _change_sleep(self, process: EngineProcess, message: Message) -> None:
        """Send `sleep` or `wake`, and remember what sleeps then."""
        started = time.perf_counter()
        self.asleep = tuple(process.ask(message, seconds=self.settings.start_timeout_seconds)["asleep"])
        self.spent.sleep_seconds += time.perf_counter() - started

    def _start(self) -> EngineProcess:
        """A process with vLLM set up, but no weights yet. Raises RolloutError if that fails."""
        python, seconds = self.settings.interpreter, self.settings.start_timeout_seconds
        process = EngineProcess(python, self.log, script=self.script)
        try:
            hello = process.ask({"kind": "hello"}, seconds=seconds)
            if self.rests and not hello["sleeps"]:
                raise ConfigError(
                    f"cluster.offload names rollout_engine, but vLLM {hello['vllm']} of {python} cannot sleep here"
                    f"{' (it computes on a CPU)' if hello['cpu'] else ''}",
                    remedy="remove rollout_engine from cluster.offload, or use a vLLM with a sleep mode for this GPU",
                )
            config = self.pushes.fit_heads(model_config(self.pushes.model), hello["head_sizes"])
            with tempfile.TemporaryDirectory(prefix="burnish-vllm-") as folder:
                (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
                self.tokenizer.save_pretrained(folder)
                arguments = self._arguments(folder, on_cpu=hello["cpu"])
                build = {"kind": "build", "arguments": arguments, "vocabulary": self.pushes.vocabulary}
                process.ask(build, seconds=seconds)
        except (WorkerLost, WorkerFault) as error:
            process.kill()
            if self.pushes.uses_adapters and isinstance(error, WorkerFault):
                self.pushes.merge(f"vLLM says {error}")
                return self._start()
            raise RolloutError(
                f"vLLM cannot start in {python}: the worker {_what(error)}\n{process.log_tail()}",
                remedy=f"fix rollout.vllm (options, python, start_timeout_seconds); the full log is {self.log}",
            ) from error
        except BaseException:
            process.kill()
            raise
        return process

    def _arguments(self, folder: str, *, on_cpu: bool) -> Message:
        """Arguments of vllm.LLM. Every row has its own seed. vLLM's own seed is only for its initialisation."""
        options, context_length = self.settings.options, self.pushes.context_length
        return {
            **(_whole_prompts(context_length, self.max_batch_rows) if on_cpu else {}),
            **options,
            "dtype": self.pushes.dtype,
            "model": folder,
            "load_format": "dummy",
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "max_model_len": context_length,
            "max_num_seqs": self.max_batch_rows,
            "seed": 0,
            **self.pushes.arguments,
            **({"enable_sleep_mode": True} if self.rests else {}),
            # Not Ray, which vLLM would use if its parent is an actor.
            **({"distributed_executor_backend": "mp"} if options.get("tensor_parallel_size", 1) > 1 else {}),
        }

    def _bury(self, lost: WorkerLost | WorkerFault, during: str) -> None:
        """End a process that can no longer be used, and say so in its log."""
        self.close()
        self.spent.restarts += 1
        add_note(self.log, f"the worker {_what(lost)} during {during}; starting another")


class VllmEngine(Closing, RestingEngine):
    """A RolloutEngine on vLLM. Also a context manager, which ends the worker.

    model: vLLM uses its configuration, and samples with its weights until the first `sync`. context_length: maximum
    tokens of prompt and response together, for which vLLM reserves memory. max_batch_rows: rows decoded at once.
    vocabulary: as in `LocalEngine`. log: file for everything that the worker prints. rests: `rest` gives up the GPU's
    memory. script: replaces the worker in tests. `version` belongs to the weights of the last `sync`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        context_length: int,
        max_batch_rows: int,
        settings: VllmConfig,
        log: Path,
        vocabulary: int | None = None,
        rests: bool = False,
        script: Path = SCRIPT,
    ) -> None:
        self._tokenizer, self._eos_token_ids = tokenizer, tuple(eos_token_ids)
        merges = not settings.options.get("enable_lora", True)
        dtype, weights, note = settings.options.get("dtype"), Weights.of(model), partial(add_note, log)
        self._pushes = WeightPushes(model, weights, vocabulary, context_length, dtype, merges, note)
        self._worker = VllmWorker(self._pushes, tokenizer, settings, log, script, max_batch_rows, rests)

    @property
    def version(self) -> int:
        return self._pushes.weights.version

    def close(self) -> None:
        """End the worker. Idempotent. A later call would start another worker."""
        self._worker.close()

    def rest(self) -> None:
        """See `RestingEngine`. If the worker is lost meanwhile, the next `generate` replaces it."""
        self._worker.sleep()

    def sync(self, weights: Weights) -> None:
        """Push these weights. If the worker is lost meanwhile, the next `generate` replaces it.

        Weights of another process, which can be read only now, are copied into the engine's model first; of a
        model with adapters, only the adapters' weights.
        """
        model = self._pushes.model
        if weights.module is not model:
            take_tensors(model, weights.tensors(), saved_adapter(model))
            weights = Weights.of(model, weights.version)
        self._pushes.weights = weights
        self._worker.push()

    def take_metrics(self) -> dict[str, Metric]:
        """Seconds, tokens and restarts since the last call. Prefilled tokens exclude those from the prefix cache."""
        spent, self._worker.spent = self._worker.spent, Spent()
        decoded = spent.decoded_tokens
        slept = {"time/engine_sleep_seconds": Metric(Reduction.SUM, spent.sleep_seconds)} if self._worker.rests else {}
        return {
            "time/decode_seconds": Metric(Reduction.SUM, spent.generate_seconds),
            "time/engine_start_seconds": Metric(Reduction.SUM, spent.start_seconds),
            "rollout/prefilled_tokens": Metric(Reduction.SUM, spent.prefilled_tokens),
            "rollout/decoded_tokens": Metric(Reduction.SUM, decoded),
            "throughput/decoded_tokens_per_second": Metric(Reduction.MEAN, decoded, spent.generate_seconds),
            "rollout/engine_restarts": Metric(Reduction.SUM, spent.restarts),
            "rollout/pushed_megabytes": Metric(Reduction.SUM, spent.pushed_bytes / 1e6),
            **slept,
        }

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """One rollout per request and sample index, in the order of the requests. The worker answers once with all of
        them, so `on_finished` is not called.

        Raises RolloutError for settings out of range, empty prompts, prompts that leave no room in the context and
        log-probabilities that are not finite, and if vLLM cannot start or its worker is lost twice.
        """
        check_sampling(sampling)
        check_filters(sampling)
        limits = [response_limit(request, sampling, self._pushes.context_length) for request in requests]
        stop = StopConditions.of(sampling, self._eos_token_ids, self._tokenizer)
        message = {
            "kind": "generate",
            "version": self.version,
            "sampling": sampling_parameters(sampling, stop),
            "requests": [
                {
                    "prompt": list(request.prompt_tokens),
                    "seeds": [sample_key(seed, step, request.name, i) & _SEED_MASK for i in request.sample_indices],
                    "max_tokens": limit,
                }
                for request, limit in zip(requests, limits, strict=True)
            ],
        }
        samples = self._samples(message) if requests else []
        rows = [(r, index, limit) for r, limit in zip(requests, limits, strict=True) for index in r.sample_indices]
        if len(samples) != len(rows):
            raise RolloutError(f"the vLLM worker returned {len(samples)} samples, but {len(rows)} were asked for")
        return [
            _rollout(request, index, limit, sample, stop, version=self.version, log=self._worker.log)
            for (request, index, limit), sample in zip(rows, samples, strict=True)
        ]

    def _samples(self, message: Message) -> list[Message]:
        answer, spent = self._worker.ask(message), self._worker.spent
        samples: list[Message] = answer["samples"]
        spent.decoded_tokens += sum(len(sample["tokens"]) for sample in samples)
        prompts = sum(len(r["prompt"]) * len(r["seeds"]) for r in message["requests"])
        spent.prefilled_tokens += prompts - answer["cached_tokens"]
        return samples


def _whole_prompts(context_length: int, max_batch_rows: int) -> Message:
    """Arguments with which each prompt is read in one piece, on a CPU: vLLM 0.32 fails if it reads only part of a
    prompt whose request has a seed, because it would rewind the generator, which only a GPU's generator can do."""
    most = max(context_length, max_batch_rows, _TOKENS_PER_STEP)
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": most}


def _make_room() -> None:
    """Give up what PyTorch keeps of a GPU's memory for its next passes: now it is the worker that needs it."""
    torch.cuda.empty_cache()  # nothing if this process has used no GPU


def sampling_parameters(sampling: Sampling, stop: StopConditions) -> Message:
    """Arguments of vllm.SamplingParams, except seed and max_tokens. End-of-sequence ids are ordinary stop ids. Stop
    texts stay in the response, and the text that is searched for them contains special tokens."""
    parameters: Message = {
        "stop_token_ids": sorted(stop.token_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "skip_special_tokens": False,
        "detokenize": bool(stop.texts),
    }
    if stop.texts:
        parameters |= {"stop": list(stop.texts), "include_stop_str_in_output": True}
    if sampling.greedy:
        return parameters | {"temperature": 0.0, "extra_args": {"burnish_temperature": sampling.temperature}}
    return parameters | {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }


def check_filters(sampling: Sampling) -> None:
    """RolloutError for settings that vLLM treats differently: filters in another order, temperatures that it raises."""
    check_traits(sampling, TRAITS)
    if sampling.top_p < 1.0 and sampling.min_p > 0.0 and not sampling.greedy:
        raise RolloutError(
            f"sampling.top_p {sampling.top_p:g} and min_p {sampling.min_p:g} are both set: vLLM applies min_p first, "
            "which keeps different tokens from top_p first",
            remedy="use one of the two, or rollout.engine: local",
        )


def model_config(model: PreTrainedModel) -> ConfigJson:
    """The live model's config.json, as `save_pretrained` writes it."""
    config: ConfigJson = json.loads(model.config.to_json_string())
    return config | {"architectures": [type(model).__name__]}


def _rollout(
    request: RolloutRequest, index: int, limit: int, sample: Message, stop: StopConditions, *, version: int, log: Path
) -> Rollout:
    tokens, logprobs = sample["tokens"], sample["logprobs"]
    length, reason = _end(tokens, limit, stop, said_stop=sample["finish"] == "stop")
    if reason is None or len(logprobs) != len(tokens):
        raise RolloutError(
            f"vLLM returned {len(tokens)} tokens and {len(logprobs)} log-probabilities for prompt "
            f"{request.name!r}, sample {index}, and finished with {sample['finish']!r}, but up to {limit} "
            "tokens were asked for",
            remedy=f"see {log}; more memory for keys and values may help (rollout.vllm.options)",
        )
    for position, logprob in enumerate(logprobs[:length]):
        check_logprob(logprob, position, request, index)
    return Rollout(
        prompt_id=request.prompt_id,
        group_id=request.group_id,
        sample_index=index,
        prompt_tokens=request.prompt_tokens,
        response_tokens=tuple(tokens[:length]),
        rollout_logprobs=tuple(logprobs[:length]),
        finish_reason=reason,
        policy_version=version,
        response=stop.response_text(tokens[:length]),
    )


def _end(
    tokens: Sequence[int], limit: int, stop: StopConditions, *, said_stop: bool
) -> tuple[int, FinishReason | None]:
    """(tokens of the response, why it ends). The tokens themselves decide. vLLM's own reason counts only for a stop
    text that it found but that our decoded text lacks, because the tokenizer may tidy spaces."""
    if stop.texts:
        for length in range(1, len(tokens)):
            if stop.finish_reason(tokens[:length], limit) is FinishReason.STOP:
                return length, FinishReason.STOP
    reason = stop.finish_reason(tokens, limit) if tokens else None
    if stop.texts and said_stop and reason is not FinishReason.STOP:
        reason = FinishReason.STOP
    return len(tokens), reason


def _what(lost: WorkerLost | WorkerFault) -> str:
    return f"failed with {lost}" if isinstance(lost, WorkerFault) else str(lost)
