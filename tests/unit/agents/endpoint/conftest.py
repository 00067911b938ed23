"""A chat model of single characters whose engine says what it is told, and remembers what it saw."""

import contextlib
import string
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from burnish.agents.endpoint.chat_tokens import Speech
from burnish.agents.endpoint.request_queue import Desk
from burnish.agents.endpoint.requests import Terms
from burnish.agents.endpoint.server import ServerThread, Service
from burnish.agents.endpoint.serving import ServedModel, StandingLoop
from burnish.agents.endpoint.trajectory import Room
from burnish.agents.tools.parsers.tagged import Hermes
from burnish.errors import RolloutError
from burnish.models.characters import character_tokenizer
from burnish.models.weights import Weights
from burnish.rollouts.engine import Sampling
from burnish.types import FinishReason, Metric, Rollout, RolloutRequest

from ..conftest import CALLS

HERMES = (
    """{%- if tools %}{{ '[system\n' }}{{ tools | tojson }}{{ ']\n' }}{%- endif %}"""
    """{%- for m in messages %}{{ '[' + m.role + '\n' + m.content }}"""
    + CALLS
    + """{{ ']\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '[assistant\n' }}{%- endif %}"""
)
FORGETFUL = """{%- for m in messages %}{{ '[' + m.role + '\n' }}
{%- if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] | trim }}
{%- else %}{{ m.content }}{%- endif %}{{ ']\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant\n' }}{%- endif %}"""
MODEL = "tiny"


def tokenizer_of(template: str | None = HERMES) -> Any:
    """`]` ends a turn."""
    alphabet = "".join(c for c in string.printable if c not in "]\r\x0b\x0c")
    return character_tokenizer(alphabet, eos="]", pad="<pad>", unk="?!", context_length=4096, chat_template=template)


def speech_of(template: str | None = HERMES) -> Speech:
    tokenizer = tokenizer_of(template)
    return Speech(tokenizer, frozenset({tokenizer.eos_token_id}), parser=Hermes())


@dataclass
class Script:
    """An engine that says `say(request)`, and remembers what it was given."""

    tokenizer: Any
    say: Callable[[RolloutRequest], str] = lambda request: "yes"
    seen: list[RolloutRequest] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    version: int = 0
    end: str = "]"

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, *, on_finished: Any = None, **given: Any
    ) -> list[Rollout]:
        self.seen += requests
        self.samplings += [sampling] * len(requests)
        rollouts = [self._rollout(request, index, sampling) for request in requests for index in request.sample_indices]
        if on_finished is not None:
            on_finished(rollouts[:1])  # the rest is only returned, which the protocol allows
        return rollouts

    def _rollout(self, request: RolloutRequest, index: int, sampling: Sampling) -> Rollout:
        text = self.say(request)
        tokens = tuple(self.tokenizer.encode(text + self.end, add_special_tokens=False))
        reason = FinishReason.STOP
        if len(tokens) > sampling.max_response_tokens:
            tokens, reason = tokens[: sampling.max_response_tokens], FinishReason.LENGTH
            text = self.tokenizer.decode(list(tokens))
        logprobs = tuple(-0.25 - 0.01 * i for i in range(len(tokens)))
        asked = (request.prompt_id, request.group_id, index, request.prompt_tokens)
        return Rollout(*asked, tokens, logprobs, reason, self.version, text)

    def sync(self, weights: Weights) -> None:
        raise NotImplementedError

    def take_metrics(self) -> Mapping[str, Metric]:
        return {}


ROOM = Room(turns=20, turn_tokens=400, response_tokens=2_000, context=4_000)
SAMPLING = Sampling(max_response_tokens=2_000)


@pytest.fixture
def speech() -> Speech:
    return speech_of()


@pytest.fixture
def script(speech: Speech) -> Script:
    return Script(speech.tokenizer)


@pytest.fixture
def start() -> Iterator[Callable[..., ServerThread]]:
    """Starts servers of a desk: `start(desk, key=..., body_bytes=...)`."""
    servers: list[ServerThread] = []

    def start(desk: Desk, **service: Any) -> ServerThread:
        servers.append(ServerThread(desk, Service(**service)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def serving(speech: Speech, script: Script) -> Iterator[Callable[..., StandingLoop]]:
    """Starts loops that answer with the script or another engine; `record` collects lines."""
    started: list[tuple[StandingLoop, threading.Thread]] = []

    def run(loop: StandingLoop) -> None:
        with contextlib.suppress(RolloutError):  # of a script that fails on purpose
            loop.run()

    def start(
        *, room: Room = ROOM, record: Any = None, sampling: Sampling = SAMPLING, engine: Any = None, **terms: Any
    ) -> StandingLoop:
        standing = ServedModel(engine or script, speech, Terms(sampling, MODEL, room.context, **terms), room)
        loop = StandingLoop(standing, None if record is None else record.append)
        started.append((loop, threading.Thread(target=run, args=[loop], daemon=True)))
        started[-1][1].start()
        return loop

    yield start
    for loop, thread in started:
        loop.desk.close()
        thread.join(10)
        assert not thread.is_alive()
