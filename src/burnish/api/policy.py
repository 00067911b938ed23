"""The weights of a checkpoint, to generate with or to copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.api.pictures import tinted_html
from burnish.config.schema_data import DataConfig, ModelConfig
from burnish.data.turns import checked_message
from burnish.errors import BurnishError, DataError, RolloutError
from burnish.models.loading_bars import without_loading_bars
from burnish.types import FinishReason, Message, Prompt, RolloutRequest

if TYPE_CHECKING:
    from burnish.api.conversing import Conversing
    from burnish.config.schema import RlConfig
    from burnish.models.loading import LoadedModel
    from burnish.rollouts.engine import RolloutEngine

Asked = str | Sequence[Message | Mapping[str, Any]]
"""A text to continue, or the turns of a conversation (`burnish.Message`, or dictionaries with role and content)."""
_LEAST_CONTEXT = 2048
"""An engine has room for at least this many tokens, so that a growing conversation needs no new one each turn."""


@dataclass(frozen=True, slots=True)
class Response:
    """A policy's answer. `tokens` and `logprobs` (nats, at the sampling temperature) have one entry per sampled token,
    including the one that ended the response, which is not in `text`."""

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return tinted_html(self.tokens, self.logprobs)


class Policy:
    """A language model in a folder. Its weights are loaded when they are first needed, and kept."""

    def __init__(self, folder: str | Path, model: ModelConfig | None = None, data: DataConfig | None = None) -> None:
        """`model` and `data` belong to the run that the weights come from: dtype, device and chat template."""
        if not isinstance(folder, (str, Path)):
            raise BurnishError(f"burnish.Policy got {folder!r:.80}", remedy="give a folder; a run has run.policy")
        self.folder = Path(folder)
        self._model = model or ModelConfig(path=str(folder))
        self._data = data or DataConfig()
        self._loaded: LoadedModel | None = None
        self._engine: RolloutEngine | None = None
        self._engine_tokens = 0

    def __repr__(self) -> str:
        return f"burnish.Policy({str(self.folder)!r})"

    def save(self, folder: str | Path) -> Path:
        """Copy weights, configuration and tokenizer to a folder that `from_pretrained` loads, and return it.
        BurnishError if the folder is not empty."""
        target = Path(folder)
        if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
            raise BurnishError(f"{target} already exists", remedy="name a folder that does not exist yet")
        is_there = target.is_dir()  # empty, and perhaps a mount, which cannot be replaced
        writing = target if is_there else target.with_name(f".{target.name}.{os.getpid()}.writing")
        try:
            shutil.copytree(self.folder, writing, dirs_exist_ok=True)
            if not is_there:
                writing.rename(target)
        except OSError as error:
            shutil.rmtree(writing, ignore_errors=True)
            raise BurnishError(
                f"cannot copy {self.folder} to {target}: {error}",
                remedy="make room there or name another folder, and save it again",
            ) from error
        return target

    def loaded(self) -> LoadedModel:
        """The model with its tokenizer."""
        if self._loaded is None:
            from burnish.models.loading import load_model
            from burnish.trainers.chaining import with_weights

            with without_loading_bars():
                self._loaded = load_model(with_weights(self._model, str(self.folder)))
        return self._loaded

    @property
    def template_options(self) -> Mapping[str, Any]:
        """Arguments of the chat template in the run."""
        return self._data.template_options

    @property
    def has_chat_template(self) -> bool:
        """True if `generate` can take conversations."""
        return bool(self.loaded().tokenizer.chat_template)

    def generate(
        self,
        prompt: Asked,
        *,
        max_response_tokens: int = 512,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        greedy: bool = False,
        stop: Sequence[str] = (),
        seed: int = 0,
    ) -> Response:
        """Answer a prompt. The same arguments give the same response; another `seed` gives another sample.

        A text is continued as it is, or becomes a user's turn if the run's `data.chat` is `always`. A conversation goes
        through the chat template. Raises DataError for a conversation without a template, RolloutError for sampling
        numbers out of range and for prompts that leave no room in the context.
        """
        from burnish.data.chat import encode_prompt, text_of_tokens
        from burnish.data.template import ChatFormat
        from burnish.machine.matmul_precision import without_autocast
        from burnish.rollouts.engine import Sampling

        asked, stops = _prompt(prompt), (stop,) if isinstance(stop, str) else stop
        _check_numbers(temperature=temperature, top_p=top_p, min_p=min_p)
        _check_numbers(whole=True, max_response_tokens=max_response_tokens, top_k=top_k, seed=seed)
        if not isinstance(stops, Sequence) or not all(isinstance(text, str) for text in stops):
            raise RolloutError(f"stop is {stop!r:.80}", remedy="give a list of texts")
        loaded = self.loaded()
        tokens = encode_prompt(asked, loaded.tokenizer, ChatFormat.of(self._data))
        sampling = Sampling(
            max_response_tokens=max_response_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            stop=tuple(stops),
            greedy=greedy,
        )
        request = RolloutRequest.of("generate", 0, tokens, (0,))
        with without_autocast():
            engine = self._engine_for(loaded, len(tokens) + max_response_tokens)
            rollout = engine.generate([request], sampling, seed=seed, step=0)[0]
        return Response(
            rollout.response,
            tuple(map(text_of_tokens(loaded.tokenizer), rollout.response_tokens)),
            rollout.response_tokens,
            rollout.rollout_logprobs,
            rollout.finish_reason,
        )

    @contextmanager
    def conversing(self, config: RlConfig, domain: str | None = None) -> Iterator[Conversing]:
        """Hold conversations with the tools or the environment of a run, or of one of its domains, as in training. They
        are ended with this context. Raises ConfigError for a run that holds no conversations, and what a run would
        refuse."""
        from burnish.api.conversing import conversing
        from burnish.machine.matmul_precision import without_autocast

        loaded = self.loaded()

        def engine_for(num_tokens: int) -> tuple[RolloutEngine, int]:
            return self._engine_for(loaded, num_tokens), self._engine_tokens

        with without_autocast(), conversing(loaded, engine_for, config, domain) as conversation:
            yield conversation

    def _engine_for(self, loaded: LoadedModel, num_tokens: int) -> RolloutEngine:
        """An engine for texts of this many tokens, kept until a longer text comes."""
        if self._engine is None or num_tokens > self._engine_tokens:
            from burnish.rollouts.registry import engine_of

            self._engine_tokens = min(loaded.context_length, max(2 * num_tokens, _LEAST_CONTEXT))
            self._engine = engine_of(loaded, context_length=self._engine_tokens, max_batch_rows=1)
        return self._engine


def _check_numbers(*, whole: bool = False, **given: object) -> None:
    """RolloutError, by name, for what is not a number, or not a whole one."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
            raise RolloutError(f"{name} is {value!r:.80}", remedy=f"give a {'whole number' if whole else 'number'}")


def _prompt(asked: Asked) -> Prompt:
    if isinstance(asked, str):
        return Prompt("generate", text=asked)
    turns: object = asked
    if not isinstance(turns, Sequence) or isinstance(turns, bytes) or not turns:
        raise DataError(
            f"the prompt is {asked!r:.80}, not a text or the turns of a conversation",
            remedy='give a text, or a list such as [{"role": "user", "content": "..."}]',
        )
    return Prompt("generate", messages=tuple(map(_message, asked)))


def _message(turn: Message | Mapping[str, Any]) -> Message:
    return turn if isinstance(turn, Message) else checked_message(turn, "a turn of the conversation")
