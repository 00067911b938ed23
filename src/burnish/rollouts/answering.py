"""A model that answers conversations, sampled by the local engine: a judge without an endpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.config.schema_data import ModelConfig
from burnish.data.chat import encode_prompt
from burnish.errors import ConfigError, DataError
from burnish.forward.fast_paths import FastPaths
from burnish.machine.resources import resolve_device
from burnish.models.folders import resolve_source
from burnish.models.loading import load_model
from burnish.rewards.judging.local import ModelAnswer
from burnish.rewards.judging.options import JudgeOptions
from burnish.rewards.judging.prompts import Messages
from burnish.rollouts.engine import RolloutEngine, Sampling
from burnish.rollouts.registry import engine_of
from burnish.types import FinishReason, Message, Prompt, RolloutRequest, Tokenizer

MAX_BATCH_ROWS = 32


@dataclass(slots=True)
class LocalModel:
    """A loaded model and the sampling of its answers; an `AnsweringModel` for judges."""

    name: str
    engine: RolloutEngine
    tokenizer: Tokenizer
    context_length: int
    sampling: Sampling
    seed: int
    special_tokens: frozenset[str]

    def answer(self, conversations: Sequence[Messages]) -> list[ModelAnswer | DataError]:
        """An answer to each. DataError for one that leaves no room for an answer, or that the model's template refuses.

        The noise of an answer depends on its conversation and the seed alone.
        """
        found: dict[int, ModelAnswer | DataError] = {}
        requests: dict[int, RolloutRequest] = {}
        for number, messages in enumerate(conversations):
            try:
                requests[number] = self._request(number, messages)
            except DataError as error:
                found[number] = error
        rollouts = self.engine.generate(list(requests.values()), self.sampling, seed=self.seed, step=0)
        for number, rollout in zip(requests, rollouts, strict=True):
            text = str(self.tokenizer.decode(list(rollout.response_tokens), skip_special_tokens=True))
            is_cut_off = rollout.finish_reason is FinishReason.LENGTH
            found[number] = ModelAnswer(text, len(rollout.prompt_tokens), len(rollout.response_tokens), is_cut_off)
        return [found[number] for number in range(len(conversations))]

    def _request(self, number: int, messages: Messages) -> RolloutRequest:
        turns = tuple(Message(turn["role"], turn["content"]) for turn in messages)
        identity = hashlib.sha256(repr(turns).encode()).hexdigest()
        tokens = encode_prompt(Prompt(identity, messages=turns), self.tokenizer)
        if len(tokens) >= self.context_length:
            raise DataError(
                f"the prompt has {len(tokens):,} tokens, but the context of {self.name} holds {self.context_length:,}"
            )
        return RolloutRequest.of(identity, number, tokens, (0,))


def open_model(options: JudgeOptions, paths: FastPaths | None = None) -> LocalModel:
    """The model of a judge with `model_path`. `paths` chooses among equivalent implementations, so that a resumed run
    gets the same answers. Raises ModelError as `load_model` does, and ConfigError if its chat template cannot write the
    conversations of a judge."""
    path = resolve_source(str(options.model_path), field="option model_path of reward 'judge'")
    resolve_device(options.device, "option device of reward 'judge'")
    config = ModelConfig.model_validate({"path": path, "device": options.device, "dtype": options.dtype})
    loaded = load_model(config, paths=paths)
    _check_template(options, loaded.tokenizer)
    engine = engine_of(loaded, max_batch_rows=MAX_BATCH_ROWS)
    sampling = Sampling(
        max_response_tokens=options.max_tokens, temperature=options.temperature or 1.0, greedy=options.temperature == 0
    )
    special = frozenset(str(token) for token in loaded.tokenizer.all_special_tokens)
    return LocalModel(
        _identity(path), engine, loaded.tokenizer, loaded.context_length, sampling, options.seed or 0, special
    )


def _check_template(options: JudgeOptions, tokenizer: Tokenizer) -> None:
    """Render the turns that a repair needs: a question, an answer, and a second question."""
    roles = [*([] if options.system == "" else ["system"]), "user", "assistant", "user"]
    turns = tuple(Message(role, f"The {role} says {number}.") for number, role in enumerate(roles))
    try:
        encode_prompt(Prompt("a probe", messages=turns), tokenizer)
    except DataError as error:
        raise ConfigError(
            f"the model of reward 'judge', {options.model_path}, cannot be asked: {error.message}",
            remedy='use a model trained to chat; if only the system turn is refused, set the option system: ""',
        ) from error


def _identity(path: str) -> str:
    """The folder, and a hash of the names, sizes and times of its files: a cache must not mix up two models."""
    folder = Path(path).expanduser()
    files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in folder.glob("*"))
    return f"{folder.resolve()} {hashlib.sha256(repr(files).encode()).hexdigest()[:16]}"
