"""Partners in `burnish chat`: a model alone, with the tools of a run, or against its environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NotRequired, TypeAlias, TypedDict

from burnish.api.conversing import Conversed, Conversing, TypeTurn
from burnish.api.policy import Policy, Response
from burnish.api.run import load_run, run_config
from burnish.checkpointing.chaining import find_checkpoint
from burnish.config.domains import domain_settings
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.errors import BurnishError
from burnish.rollouts.engine import Sampling
from burnish.types import Json, Message, Prompt


class SamplingWords(TypedDict):
    """Arguments of `Policy.generate` besides the prompt and the seed."""

    max_response_tokens: NotRequired[int]
    temperature: float
    greedy: bool
    top_k: int
    top_p: float


Answer: TypeAlias = "Response | Conversed"


class Answering:
    """`Speaker` without tools. It converses if there is a chat template."""

    def __init__(self, policy: Policy, *, plain: bool, system: str | None) -> None:
        self._policy = policy
        self._converses = not plain and policy.has_chat_template
        if system is not None and not self._converses:
            raise BurnishError("--system needs a conversation, and so a chat template", remedy="leave it out")
        self._start = () if system is None else (Message("system", system),)
        self._turns: tuple[Message, ...] = self._start

    def begin_anew(self) -> None:
        """Forget what was said."""
        self._turns = self._start

    def answer(self, said: str, sampling: SamplingWords, *, seed: int) -> Response:
        """Continue the conversation; without a template, the text."""
        if not self._converses:
            return self._policy.generate(said, seed=seed, **sampling)
        asked = (*self._turns, Message("user", said))
        answer = self._policy.generate(asked, seed=seed, **sampling)
        self._turns = (*asked, Message("assistant", answer.text))
        return answer


class Calling:
    """`Speaker` with tools."""

    def __init__(self, conversing: Conversing, system: str | None) -> None:
        self._conversing = conversing
        self._system = system

    def begin_anew(self) -> None:
        """Forget what was said."""
        self._conversing.begin_anew()

    def answer(self, said: str, sampling: SamplingWords, *, seed: int) -> Conversed:
        """Continue the conversation."""
        settings = _settings(sampling, self._conversing)
        return self._conversing.ask(said, settings, seed=seed, system=self._system)


class Playing:
    """`Speaker` that plays against an environment. typed: somebody types the turns in its place."""

    def __init__(self, conversing: Conversing, typed: TypeTurn | None) -> None:
        self._conversing = conversing
        self._typed = typed
        self._rows: Iterator[Prompt] = iter(())

    def begin_anew(self) -> None:
        """Begin again with the first row."""
        self._rows = iter(())

    def answer(self, said: str, sampling: SamplingWords, *, seed: int) -> Conversed:
        """A whole game: of the next row, or with this prompt."""
        prompt = self._conversing.asking((Message("user", said),)) if said.strip() else self._next_row()
        settings = _settings(sampling, self._conversing)
        return self._conversing.play(prompt, settings, seed=seed, typed=self._typed)

    def _next_row(self) -> Prompt:
        row = next(self._rows, None)
        if row is None:  # begin again after the last one
            self._rows = iter(self._conversing.rows())
            row = next(self._rows)
        return row


Speaker: TypeAlias = Answering | Calling | Playing
"""One model, and the conversation with it."""


def conversing_speaker(conversing: Conversing, system: str | None, typed: TypeTurn | None) -> Speaker:
    """Make the speaker: a player if there is an environment, otherwise a model with tools. typed: somebody plays in the
    policy's place."""
    if not conversing.plays:
        return Calling(conversing, system)
    if system is not None:
        raise BurnishError("--system needs somebody to talk to, and this run has an environment", remedy="leave it out")
    return Playing(conversing, typed)


def _settings(words: SamplingWords, conversing: Conversing) -> Sampling:
    """Responses of several turns are as long as the run lets them be, unless somebody says otherwise."""
    given: SamplingWords = {"max_response_tokens": conversing.max_response_tokens, **words}
    return Sampling(**given)


def conversing_config(name: str, tools: str | None) -> RlConfig | None:
    """The run file whose tools or environment are to be used, with these tools instead if some are named; None if there
    is nothing to use."""
    offered: list[Json] = [tool.strip() for tool in (tools or "").split(",") if tool.strip()]
    config = _config_of_run(name, offered)
    if config is None and offered:
        # A run file has to name data and rewards, which nothing reads here.
        run: dict[str, Json] = {"model": name, "data": {"train": "none.jsonl"}, "rewards": "exact"}
        config = load_run_data({**run, "conversation": {"tools": offered}}, (), "rl", source="--tools").of(RlConfig)
    holds = config is not None and any(domain.conversation is not None for domain in domain_settings(config))
    return config if holds else None


def _config_of_run(name: str, offered: list[Json]) -> RlConfig | None:
    """Return the configuration of a run, with the offered tools; None for a model, and for runs that sample nothing."""
    chosen = find_checkpoint(name, field="the model")
    config = None if chosen is None else run_config(chosen.run).config
    if chosen is None or not isinstance(config, RlConfig):
        return None
    if not offered:
        return config
    if any(domain.place("conversation") != "conversation" for domain in domain_settings(config)):
        raise BurnishError(
            f"{chosen.run} has domains with their own tools or environments, which --tools does not replace",
            remedy="name one of them with --domain instead",
        )
    words = [f"conversation.tools={json.dumps(offered)}", "conversation.environment=null"]
    return run_config(chosen.run, words).of(RlConfig)


def policy_named(name: str) -> Policy:
    """The policy of a run, or the model in a folder or on the hub."""

    return Policy(name) if find_checkpoint(name, field="the model") is None else load_run(name).policy
