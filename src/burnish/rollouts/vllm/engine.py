"""The vLLM engine: samples in a process of its own, which gets the weights through shared memory after each update.

The worker (worker.py) starts with the first call and lives as long as the engine is open. It knows the model's
configuration and tokenizer from a folder without weights, and the weights only from pushes, each with the policy's
version; every call names the version that it wants. A worker that dies or hangs is started again once for each call,
with the same weights: calls are made between `sync` and the next update, so the policy still has them.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.config.schema import VllmConfig
from burnish.errors import RolloutError
from burnish.models.weights import Weights, checkpoint_layout
from burnish.rollouts.engine import OnFinished, Sampling
from burnish.rollouts.limits import response_limit
from burnish.rollouts.noise import sample_key
from burnish.rollouts.sampling import check_sampling
from burnish.rollouts.stop import StopConditions
from burnish.rollouts.vllm.heads import HeadPadding, choose_padding
from burnish.rollouts.vllm.process import SCRIPT, WorkerFault, WorkerLost, WorkerProcess
from burnish.types import FinishReason, Metric, Reduction, Rollout, RolloutRequest

LOWEST_TEMPERATURE = 0.01
"""vLLM replaces lower ones by this."""

_TOKENS_PER_STEP = 4096
"""Prompt tokens that vLLM reads at once on processors, where no prompt is longer."""

_SEED_BITS = 63
"""Seeds travel as non-negative numbers."""


@dataclass(slots=True)
class _Spent:
    """What was done since the metrics were last read."""

    generate_seconds: float = 0.0
    sync_seconds: float = 0.0
    start_seconds: float = 0.0
    decoded_tokens: int = 0
    prefilled_tokens: int = 0
    restarts: int = 0


class VllmEngine:
    """A RolloutEngine on vLLM; also a context manager, which ends the worker.

    model: vLLM is set up for its configuration, and samples with its weights until the first `sync`. context_length:
    most tokens of prompt and response together, for which vLLM reserves memory. max_batch_rows: rows decoded at once.
    log: file that gets what the worker prints. script: stands in for the worker in tests. `version` is that of the
    weights of the last `sync`.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any,
        eos_token_ids: Sequence[int],
        pad_token_id: int,
        context_length: int,
        max_batch_rows: int,
        settings: VllmConfig,
        log: Path,
        script: Path = SCRIPT,
    ) -> None:
        self.version = 0
        self._model = model
        self._tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._context_length = context_length
        self._max_batch_rows = max_batch_rows
        self._settings = settings
        self._log = log
        self._script = script
        self._weights = Weights.of(model)
        self._worker: WorkerProcess | None = None
        self._padding: HeadPadding | None = None
        self._spent = _Spent()

    def __enter__(self) -> VllmEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker. Idempotent; a later call would start another."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def sync(self, weights: Weights) -> None:
        """Push these weights; a worker that is lost on the way is replaced by the next `generate`."""
        self.version, self._weights = weights.version, weights
        if self._worker is not None:
            try:
                self._push(self._worker, weights.tensors())
            except (WorkerLost, WorkerFault) as lost:
                self._bury(lost, "sync")

    def take_metrics(self) -> dict[str, Metric]:
        """Seconds, tokens and restarts since the last call. Prefilled tokens are those that no prefix cache held."""
        spent, self._spent = self._spent, _Spent()
        decoded = spent.decoded_tokens
        return {
            "time/decode_seconds": Metric(Reduction.SUM, spent.generate_seconds),
            "time/sync_seconds": Metric(Reduction.SUM, spent.sync_seconds),
            "time/engine_start_seconds": Metric(Reduction.SUM, spent.start_seconds),
            "rollout/prefilled_tokens": Metric(Reduction.SUM, spent.prefilled_tokens),
            "rollout/decoded_tokens": Metric(Reduction.SUM, decoded),
            "throughput/decoded_tokens_per_second": Metric(Reduction.MEAN, decoded, spent.generate_seconds),
            "rollout/engine_restarts": Metric(Reduction.SUM, spent.restarts),
        }

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        on_finished: OnFinished | None = None,
    ) -> list[Rollout]:
        """One rollout per request and sample index, in the order of the requests. The worker answers once, with all of
        them: nothing is known to be finished before.

        Raises RolloutError for numbers out of range, empty prompts and prompts that leave no room in the context, when
        log-probabilities are not finite, when vLLM cannot start, and when its worker is lost twice.
        """
        check_sampling(sampling)
        check_filters(sampling)
        limits = [response_limit(request, sampling, self._context_length) for request in requests]
        stop = StopConditions.of(sampling, self._eos_token_ids, self._tokenizer)
        message = {
            "kind": "generate",
            "version": self.version,
            "sampling": sampling_parameters(sampling, stop),
            "requests": [
                {"prompt": list(request.prompt_tokens), "seeds": _seeds(request, seed, step), "max_tokens": limit}
                for request, limit in zip(requests, limits, strict=True)
            ],
        }
        samples = self._ask(message) if requests else []
        rows = [(r, index, limit) for r, limit in zip(requests, limits, strict=True) for index in r.sample_indices]
        if len(samples) != len(rows):
            raise RolloutError(f"the vLLM worker gave {len(samples)} samples where {len(rows)} were asked for")
        return [
            self._rollout(request, index, limit, sample, stop)
            for (request, index, limit), sample in zip(rows, samples, strict=True)
        ]

    def _ask(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The samples; a worker that is lost is replaced once."""
        lost_before = False
        while True:
            try:
                worker = self._ready()
                started = time.perf_counter()
                answer = worker.ask(message, seconds=self._settings.call_timeout_seconds)
            except (WorkerLost, WorkerFault) as lost:
                if lost_before:
                    raise self._lost_twice(lost) from lost
                lost_before = True
                self._bury(lost, "generate")
                continue
            samples: list[dict[str, Any]] = answer["samples"]
            self._spent.generate_seconds += time.perf_counter() - started
            self._spent.decoded_tokens += sum(len(sample["tokens"]) for sample in samples)
            prompts = sum(len(r["prompt"]) * len(r["seeds"]) for r in message["requests"])
            self._spent.prefilled_tokens += prompts - answer["cached_tokens"]
            return samples

    def _ready(self) -> WorkerProcess:
        """The worker, started where there is none, with the weights of the last sync."""
        if self._worker is None:
            tensors = self._weights.tensors()  # refuses weights that have moved on, before anything is started
            started = time.perf_counter()
            self._worker = self._start()
            self._spent.start_seconds += time.perf_counter() - started
            self._push(self._worker, tensors)
        return self._worker

    def _start(self) -> WorkerProcess:
        """A worker with vLLM set up and weights of no version. RolloutError when that fails."""
        python, seconds = self._settings.interpreter, self._settings.start_timeout_seconds
        worker = WorkerProcess(python, self._log, script=self._script)
        try:
            hello = worker.ask({"kind": "hello"}, seconds=seconds)
            config = model_config(self._model)
            self._padding = choose_padding(config, hello["head_sizes"])
            with tempfile.TemporaryDirectory(prefix="burnish-vllm-") as folder:
                config = config if self._padding is None else self._padding.config(config)
                (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
                self._tokenizer.save_pretrained(folder)
                worker.ask(
                    {"kind": "build", "arguments": self._arguments(folder, on_cpu=hello["cpu"])}, seconds=seconds
                )
        except (WorkerLost, WorkerFault) as error:
            worker.kill()
            raise RolloutError(
                f"vLLM cannot start in {python}: the worker {_what(error)}\n{worker.log_tail()}",
                remedy=f"mend rollout.vllm (options, python, start_timeout_seconds); all that it said: {self._log}",
            ) from error
        except BaseException:
            worker.kill()
            raise
        return worker

    def _arguments(self, folder: str, *, on_cpu: bool) -> dict[str, Any]:
        """What vllm.LLM is built with. Every row has a seed of its own; vLLM's is for what it starts with.

        On processors each prompt is read in one piece: vLLM 0.32 fails where it reads a part of a prompt whose request
        has a seed, because it would turn the generator back, which only a GPU's can.
        """
        whole_prompts = {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(self._context_length, self._max_batch_rows, _TOKENS_PER_STEP),
        }
        return {
            "dtype": str(next(self._model.parameters()).dtype).removeprefix("torch."),
            **(whole_prompts if on_cpu else {}),
            **self._settings.options,
            "model": folder,
            "load_format": "dummy",
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "max_model_len": self._context_length,
            "max_num_seqs": self._max_batch_rows,
            "seed": 0,
        }

    def _push(self, worker: WorkerProcess, tensors: Iterator[tuple[str, Tensor]]) -> None:
        started = time.perf_counter()
        weights = checkpoint_layout(self._model, tensors)
        if self._padding is not None:
            weights = self._padding.weights(weights)
        worker.push(weights, self.version, seconds=self._settings.start_timeout_seconds)
        self._spent.sync_seconds += time.perf_counter() - started

    def _bury(self, lost: WorkerLost | WorkerFault, during: str) -> None:
        """End a worker that is of no use any more, and leave word of it beside what it said."""
        self.close()
        self._spent.restarts += 1
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:  # the next worker opens it too
            log.write(f"burnish: the worker {_what(lost)} during {during}; starting another\n")

    def _lost_twice(self, lost: WorkerLost | WorkerFault) -> RolloutError:
        worker, self._worker = self._worker, None
        tail = ""
        if worker is not None:
            worker.kill()
            tail = f"\n{worker.log_tail()}"
        return RolloutError(
            f"the vLLM worker was lost twice in one call: it {_what(lost)}{tail}",
            remedy="killed by SIGKILL is mostly too little memory: lower rollout.max_batch_rows, or "
            "gpu_memory_utilization or kv_cache_memory_bytes in rollout.vllm.options; where it only needs longer, "
            f"raise rollout.vllm.call_timeout_seconds. All that it said is in {self._log}",
        )

    def _rollout(
        self, request: RolloutRequest, index: int, limit: int, sample: Mapping[str, Any], stop: StopConditions
    ) -> Rollout:
        tokens, logprobs = sample["tokens"], sample["logprobs"]
        length, reason = _end(tokens, limit, stop, said_stop=sample["finish"] == "stop")
        if reason is None or len(logprobs) != len(tokens):
            raise RolloutError(
                f"vLLM gave {len(tokens)} tokens and {len(logprobs)} log-probabilities for prompt "
                f"{request.prompt_id!r}, sample {index}, and finished with {sample['finish']!r}, where up to {limit} "
                "tokens were asked for",
                remedy=f"see {self._log}; more memory for keys and values may help (options of rollout.vllm)",
            )
        for position, logprob in enumerate(logprobs[:length]):
            if not math.isfinite(logprob):
                raise RolloutError(
                    f"the model gives log-probability {logprob} at response token {position} of prompt "
                    f"{request.prompt_id!r}, sample {index}",
                    remedy="its weights or activations are not finite: lower the learning rate or use a wider dtype",
                )
        return Rollout(
            prompt_id=request.prompt_id,
            group_id=request.group_id,
            sample_index=index,
            prompt_tokens=request.prompt_tokens,
            response_tokens=tuple(tokens[:length]),
            rollout_logprobs=tuple(logprobs[:length]),
            finish_reason=reason,
            policy_version=self.version,
            response=stop.response_text(tokens[:length]),
        )


def sampling_parameters(sampling: Sampling, stop: StopConditions) -> dict[str, Any]:
    """Arguments of vllm.SamplingParams, but for seed and max_tokens. Ends of sequence are stop ids like any other; stop
    texts stay in the response, and special tokens in the text that they are looked for in."""
    parameters: dict[str, Any] = {
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
    """RolloutError for settings that vLLM reads differently: filters in another order, temperatures that it raises."""
    if sampling.temperature < LOWEST_TEMPERATURE and not sampling.greedy:
        raise RolloutError(
            f"sampling.temperature is {sampling.temperature:g}, and vLLM samples at {LOWEST_TEMPERATURE:g} or above",
            remedy="raise the temperature, or use rollout.engine: local",
        )
    if sampling.top_p < 1.0 and sampling.min_p > 0.0 and not sampling.greedy:
        raise RolloutError(
            f"sampling.top_p {sampling.top_p:g} and min_p {sampling.min_p:g} together: vLLM applies min_p first, which "
            "leaves other tokens than top_p first",
            remedy="use one of the two, or rollout.engine: local",
        )


def model_config(model: Any) -> dict[str, Any]:
    """config.json of the live model, as `save_pretrained` writes it."""
    config: dict[str, Any] = json.loads(model.config.to_json_string())
    return config | {"architectures": [type(model).__name__]}


def _seeds(request: RolloutRequest, seed: int, step: int) -> list[int]:
    mask = (1 << _SEED_BITS) - 1
    return [sample_key(seed, step, request.prompt_id, index) & mask for index in request.sample_indices]


def _end(
    tokens: Sequence[int], limit: int, stop: StopConditions, *, said_stop: bool
) -> tuple[int, FinishReason | None]:
    """(tokens of the response, why it ends). The tokens themselves decide; vLLM's word counts only for a stop text that
    it found and the tokenizer, which may tidy spaces, does not show."""
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
