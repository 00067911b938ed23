"""Program of a conversation's process, which holds the environment and calls the tools.

Nothing here trusts the code that it calls to return: deadlines are kept by the training process, which ends this one.
Results of tools become texts, and sources check what environments return. An answer after which the process may serve
other conversations says whether it can (`clean`): not if programs that it started still run.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from burnish.agents.environments.instance import OwnLoop, seed_random
from burnish.agents.environments.messages import encode
from burnish.agents.environments.protocol import Environment, EnvironmentSource, Step
from burnish.agents.tools.loading import LoadedTool
from burnish.agents.tools.results import ToolResult, error_of, result_of
from burnish.errors import BurnishError, EnvironmentFailedError
from burnish.outside.frames import MAX_BYTES, read_frame, read_object
from burnish.outside.plugins import FIX_IT, describe_failure
from burnish.outside.supervise import has_children
from burnish.types import Json

Send = Callable[..., None]
"""Sends messages, all of them at once."""
_CLOSE_SECONDS = 2.0
"""For an environment that has failed to let go of what it holds elsewhere."""


@dataclass(slots=True)
class Session:
    """Tools and environment of a conversation. `environment` is None until it is opened, and where there is none."""

    tools: Mapping[str, LoadedTool]
    source: EnvironmentSource | None
    environment: Environment | None = None
    _loop: OwnLoop = field(default_factory=OwnLoop)

    def serve(self, channel: socket.socket) -> None:
        """Answer requests until the other end is closed."""
        try:
            while True:
                request = read_object(read_frame(channel.recv_into, MAX_BYTES))
                self._answer(request, partial(_send, channel, request["number"]))
        except EOFError:
            pass  # nobody asks any more
        finally:
            self._close()

    def _close(self) -> None:
        environment, self.environment = self.environment, None
        if environment is not None:
            environment.close()

    def _answer(self, request: Mapping[str, Any], send: Send) -> None:
        """One request. Whatever the environment raises ends its conversation, also SystemExit and KeyboardInterrupt;
        what a tool raises is for the model."""
        try:
            match request["do"]:
                case "open":
                    send({"opening": self._open(request["row"], request["seed"])})
                case "call":
                    seed_random(request["seed"])  # whichever process serves the call, a tool draws the same numbers
                    began = time.monotonic()
                    result = self._call_plain(self.tools[request["name"]], request["arguments"], request["limit"])
                    send({**_told(result, began), "clean": not has_children()})
                case "calls":
                    self._call_all(request["calls"], request["limit"], send)
                case "step":
                    assert self.environment is not None
                    began = time.monotonic()
                    step = self.environment.step(request["text"])
                    result = result_of(step.text, request["limit"])
                    ended = step.ended or self.environment.ended()
                    told = {"text": result.text, "cut": result.cut, "seconds": time.monotonic() - began}
                    send({**told, "reward": step.reward, "ended": ended})
                case "reward":  # the end of a conversation: another one may follow
                    assert self.environment is not None
                    reward = self.environment.reward()
                    self._close()
                    send({"reward": reward, "clean": not has_children()})
        except BaseException as error:  # noqa: BLE001  boundary: a user's environment may raise anything
            said = error.line if isinstance(error, BurnishError) else describe_failure(error)
            said = said.removesuffix(f": {FIX_IT}")  # --debug shows no traceback of this process
            closing = threading.Thread(target=self._close_failed, daemon=True)
            closing.start()
            closing.join(_CLOSE_SECONDS)
            send({"failed": _whole(f"{request['do']}: {said}")})

    def _close_failed(self) -> None:
        with contextlib.suppress(BaseException):  # boundary: it can no longer be used, and the reason is known already
            self._close()

    def _open(self, row: Mapping[str, Json], seed: int) -> Json:
        """Start the environment; what it adds to the prompt."""
        own = row.get("seed")
        seed = own % 2**32 if isinstance(own, int) and not isinstance(own, bool) else seed
        seed_random(seed)  # for environments that take no seed
        if self.source is None:
            return None
        self.environment = self.source.start(row, seed)
        opening = self.environment.opening
        if opening is None or isinstance(opening, str):
            return opening and _whole(opening)
        return [{"role": str(turn["role"]), "content": _whole(str(turn["content"]))} for turn in opening]

    def _call_all(self, calls: Sequence[Any], limit: int, send: Send) -> None:
        """Call tools of the environment one after the other, in the order of the turn, because they change its state.
        Each result is sent as soon as it is there, the last one together with the end and the reward."""
        assert self.environment is not None
        steps: list[Step] = []
        last: list[dict[str, Any]] = []
        for index, name, arguments in calls:
            send(*last)
            began = time.monotonic()
            step, result = self._call_environment(name, arguments, limit)
            steps += [] if step is None else [step]
            last = [{"result": index, **_told(result, began)}]
        rewards = [step.reward for step in steps if step.reward is not None]
        ended = any(step.ended for step in steps) or self.environment.ended()
        send(*last, {"called": True, "ended": ended, "reward": sum(rewards) if rewards else None})

    def _call_plain(self, tool: LoadedTool, arguments: Mapping[str, Json], limit: int) -> ToolResult:
        try:
            return result_of(self._loop.settle(tool.function(**arguments)), limit)
        except BaseException as error:  # noqa: BLE001  boundary: a tool may raise anything, also SystemExit
            return error_of(error, limit)

    def _call_environment(self, name: str, arguments: Mapping[str, Json], limit: int) -> tuple[Step | None, ToolResult]:
        """Call a tool of the environment. Raises EnvironmentFailedError if the environment can no longer be used."""
        assert self.environment is not None
        try:
            value = self._loop.settle(self.environment.call(name, arguments))
        except EnvironmentFailedError:
            raise
        except BaseException as error:  # noqa: BLE001  boundary: as above
            return None, error_of(error, limit)
        if isinstance(value, Step):
            return value, result_of(value.text, limit)
        return None, result_of(value, limit)


def _send(channel: socket.socket, number: str, *messages: Mapping[str, Any]) -> None:
    channel.sendall(b"".join(encode({**message, "number": number}) for message in messages))


def _told(result: ToolResult, began: float) -> dict[str, Any]:
    told = {"text": result.text, "failed_call": result.failed, "cut": result.cut, "told": result.told}
    return {**told, "seconds": time.monotonic() - began}


def _whole(text: str) -> str:
    """Halves of surrogate pairs, which no tokenizer takes, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
