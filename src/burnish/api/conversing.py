"""A policy that converses outside of training: with a person, with tools, with an environment.

Everything is appended as in training, by the same code: what the policy reads is what it would read there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from burnish.agents.conversation import ConversingEngine, Talk
from burnish.agents.partner import ToolsAndEnvironment
from burnish.config.domains import DomainSettings, Split, domain_settings, sources_of
from burnish.config.schema import RlConfig
from burnish.data.chat import encode_bare, encode_prompt, text_of_tokens
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError
from burnish.models.loading import LoadedModel
from burnish.models.weights import Weights
from burnish.rollouts.engine import OnFinished, Requests, RolloutEngine, Sampling
from burnish.trainers.rl.domains import build_sampling
from burnish.trainers.rl.setup.conversations import open_partner, talk_with
from burnish.trainers.rl.setup.feeds import load_prompt_set, with_template
from burnish.types import FinishReason, Message, Metric, Prompt, Rollout, RolloutRequest, Tokenizer

EngineFor = Callable[[int], tuple[RolloutEngine, int]]
"""An engine for texts of this many tokens, and how many it has room for."""
TypeTurn = Callable[[str], str]
"""Shows what was said since the last turn, and returns the next one."""


@dataclass(frozen=True, slots=True)
class Conversed:
    """A response of several turns. texts: of its tokens. opening: the prompt of a game as the policy read it, with what
    its environment says first. typed: somebody played in the policy's place, and has seen all of that."""

    rollout: Rollout
    texts: tuple[str, ...]
    opening: str = ""
    typed: bool = False


@dataclass(eq=False)
class Conversing:
    """A conversation of a user with a policy that has tools or an environment. `conversing` makes one."""

    _loaded: LoadedModel
    _engine_for: EngineFor
    _config: RlConfig
    _domain: DomainSettings
    _partner: ToolsAndEnvironment
    _known: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._tokenizer = with_template(self._loaded.tokenizer, self._domain.chat_template)

    @property
    def plays(self) -> bool:
        """True if there is an environment: a conversation is then held with it."""
        return self._partner.has_environment

    @property
    def max_response_tokens(self) -> int:
        """Of all turns together, in the run."""
        return self._domain.max_response_tokens

    def begin_anew(self) -> None:
        """Forget what was said."""
        self._known = ()

    def ask(self, said: str, sampling: Sampling, *, seed: int, system: str | None = None) -> Conversed:
        """The policy's response to this message, after everything that was said before. Raises DataError for a message
        that the chat template refuses, RolloutError if there is no room for a response."""
        before = self._known
        if before:
            new = self._partner.observations.tokens([Message("user", said)], (), before[-1], where="this conversation")
            tokens = before + new
        else:
            start = () if system is None else (Message("system", system),)
            tokens = self._encode(self.asking((*start, Message("user", said))))
        answer = self._hold(self.asking((Message("user", said),)), tokens, sampling, seed, typed=None)
        self._known = answer.rollout.prompt_tokens + answer.rollout.response_tokens
        return answer

    def play(self, prompt: Prompt, sampling: Sampling, *, seed: int, typed: TypeTurn | None = None) -> Conversed:
        """Let the policy converse with the environment of this row; with `typed`, somebody in its place."""
        held = self._hold(prompt, self._encode(prompt), sampling, seed, typed)
        if typed is not None:
            return replace(held, typed=True)
        return replace(held, opening=str(self._loaded.tokenizer.decode(list(held.rollout.prompt_tokens))))

    def asking(self, messages: Sequence[Message]) -> Prompt:
        """A prompt with these messages that offers the run's tools. An environment gets no columns with it."""
        return Prompt("generate", messages=tuple(messages), tools=self._partner.schemas)

    def rows(self) -> list[Prompt]:
        """The held-out rows of the run, or its training rows if there are none."""
        split: Split = "eval" if sources_of(self._config, self._domain, "eval") else "train"
        context, tokenizer = self._loaded.context_length, self._loaded.tokenizer
        found = load_prompt_set(self._config, self._domain, tokenizer, context, split, self._partner.schemas)
        return list(found.prompts)

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        return encode_prompt(prompt, self._tokenizer, ChatFormat("always", self._domain.template_options))

    def _hold(
        self, prompt: Prompt, tokens: tuple[int, ...], sampling: Sampling, seed: int, typed: TypeTurn | None
    ) -> Conversed:
        most = max(len(tokens), self._domain.max_prompt_tokens) if self.plays else len(tokens)
        engine, room = self._engine_for(most + sampling.max_response_tokens)
        if typed is not None:
            engine = TypedTurns(self._loaded.tokenizer, typed)
        own = build_sampling(self._config, self._domain)
        sampling = replace(sampling, stop=own.stop, stop_token_ids=own.stop_token_ids)
        talk: Talk = talk_with(self._partner, self._domain)
        decode = partial(self._loaded.tokenizer.decode, skip_special_tokens=False)
        held = ConversingEngine(engine, {prompt.id: (talk, prompt)}, context_length=room, decode=decode)
        request = RolloutRequest.of(prompt.id, 0, tokens, (0,))
        (rollout,) = held.generate([request], sampling, seed=seed, step=0)
        return Conversed(rollout, tuple(map(text_of_tokens(self._loaded.tokenizer), rollout.response_tokens)))


@contextmanager
def conversing(
    loaded: LoadedModel, engine_for: EngineFor, config: RlConfig, domain: str | None = None
) -> Iterator[Conversing]:
    """Start the tools and the environment of a run (of one of its domains), which end with this context. ConfigError if
    the domain holds no conversations, and for what a run would refuse."""
    chosen = domain_with_conversations(config, domain)
    with ExitStack() as stack:
        partner, _ = open_partner(config, chosen, loaded.tokenizer, loaded.eos_token_ids, stack)
        if partner.rewriting:
            raise ConfigError(
                "the chat template writes earlier turns anew (conversation.trajectory: fork), which cannot be done "
                "here: what is said is appended",
                remedy="look at the run's responses with burnish report, or at held-out ones with burnish eval",
            )
        yield Conversing(loaded, engine_for, config, chosen, partner)


def domain_with_conversations(config: RlConfig, name: str | None) -> DomainSettings:
    """The domain of that name, or the first that holds conversations. ConfigError if it holds none."""
    holding = {domain.name: domain for domain in domain_settings(config) if domain.conversation is not None}
    if name is None and holding:
        return next(iter(holding.values()))
    if name is None or name not in holding:
        names = ", ".join(known for known in holding if known) or "none"
        raise ConfigError(
            f"the run has no domain {name!r} that holds conversations" if name else "the run holds no conversations",
            remedy=f"domains that do: {names}",
        )
    return holding[name]


class TypedTurns(RolloutEngine):
    """An engine whose turns somebody types, in the place of the policy."""

    def __init__(self, tokenizer: Tokenizer, typed: TypeTurn) -> None:
        self._tokenizer = tokenizer
        self._typed = typed
        self._known = 0

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """See `RolloutEngine`. Nothing ends the turn but its text, so whatever follows closes it."""
        return [self._turn(request) for request in requests]

    def _turn(self, request: RolloutRequest) -> Rollout:
        new = self._tokenizer.decode(list(request.prompt_tokens[self._known :]))
        text = self._typed(str(new))
        tokens = encode_bare(text, self._tokenizer)
        self._known = len(request.prompt_tokens) + len(tokens)
        return Rollout(
            request.prompt_id,
            request.group_id,
            request.sample_indices[0],
            request.prompt_tokens,
            tokens,
            (0.0,) * len(tokens),
            FinishReason.STOP,
            policy_version=0,
            response=text,
        )

    def sync(self, weights: Weights) -> None:
        """Nothing: nobody has weights here."""

    def take_metrics(self) -> Mapping[str, Metric]:
        """Return no metrics."""
        return {}
