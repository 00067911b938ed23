"""The other end of `burnish.distributed.processes`: holds roles and answers requests to them.

    python -m burnish.distributed.server SOCKET PARENT

SOCKET is the descriptor of a stream socket, PARENT the id of the process that asks. Messages are tuples, one at a time:

    (paths,)                               sys.path; comes first
    (build, arguments, threads)            build(*arguments) is a context manager that gives the roles by name
    ("call", role, method, args, named)    a method of a role, or a property
    ("read", role, version)                begins to read the tensors of role.publish(), if they have that version
    ("next",)                              the next of these tensors with their names; none at the end
    ("sync", role, version)                role.sync(Weights(...)); tensors are asked for with ("want",), none ends them
    ("end",)

The answer is ("done", result) or ("raised", error, traceback).
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from burnish.distributed.channel import Channel, pickled
from burnish.errors import RolloutError
from burnish.models.roles import Policy
from burnish.models.weights import Weights
from burnish.plugins import STOP_SIGNALS
from burnish.rollouts.engine import RolloutEngine

BUCKET_BYTES = 64 << 20
"""Weights in one message (a larger tensor gets its own)."""

_LOOK_SECONDS = 0.5

Named = tuple[str, Tensor]


class Server:
    """Roles by name, and the answers to requests."""

    def __init__(self, channel: Channel, roles: Mapping[str, Any]) -> None:
        self._channel = channel
        self._roles = roles
        self._reading: Iterator[list[Named]] = iter(())

    def answer(self, kind: str, *rest: Any) -> Any:
        """The result of one message. Raises whatever the role raises."""
        match kind:
            case "call":
                role, method, arguments, named = rest
                asked = getattr(self._roles[role], method)
                return asked(*arguments, **named) if callable(asked) else asked
            case "read":
                self._reading = buckets(self._published(*rest))
                return None
            case "next":
                return next(self._reading, [])
            case "sync":
                role, version = rest
                engine: RolloutEngine = self._roles[role]
                return engine.sync(Weights(version, self._wanted))
        raise ValueError(f"unknown message {kind!r}")

    def _published(self, role: str, version: int) -> Iterator[Named]:
        policy: Policy = self._roles[role]
        weights = policy.publish()
        if weights.version != version:
            raise RolloutError(
                f"version {version} of the weights of {role!r} was requested; it is at version {weights.version} now",
                remedy="call sync() after every update with the weights that publish() gives",
            )
        return weights.tensors()

    def _wanted(self) -> Iterator[Named]:
        while True:
            self._channel.send(pickled(("want",)), seconds=None)
            tensors: list[Named] = self._channel.receive(seconds=None)
            if not tensors:
                return
            yield from tensors


def buckets(tensors: Iterable[Named]) -> Iterator[list[Named]]:
    """The tensors in lists of at most `BUCKET_BYTES`, each list made when it is asked for."""
    bucket: list[Named] = []
    size = 0
    for name, tensor in tensors:
        if bucket and size + tensor.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += tensor.nbytes
    if bucket:
        yield bucket


def serve(channel: Channel) -> None:
    """Build the roles, then answer until the other end says "end" or is gone."""
    try:
        (sys.path[:],) = channel.receive(seconds=None)
        build, arguments, threads = channel.receive(seconds=None)
        torch.set_num_threads(threads)  # the last bits of sums depend on the number of threads
        with build(*arguments) as roles:
            channel.send(pickled(("done", list(roles))), seconds=None)
            _answer_all(channel, Server(channel, roles))
    except EOFError:  # nobody is left to answer
        return
    except BaseException as error:  # noqa: BLE001 - boundary: the other end raises whatever ends the start
        channel.send(_raised(error), seconds=None)


def _answer_all(channel: Channel, server: Server) -> None:
    while (message := channel.receive(seconds=None)) != ("end",):
        try:
            answer = pickled(("done", server.answer(*message)))
        except BaseException as error:  # noqa: BLE001 - boundary: the other end raises whatever a role raises
            answer = _raised(error)
        channel.send(answer, seconds=None)


def _raised(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        message = pickled(("raised", error, text))
        pickle.loads(message)  # some exceptions can be pickled but not unpickled
    except Exception:  # noqa: BLE001 - boundary: errors from outside may hold anything
        message = pickled(("raised", RuntimeError(f"{type(error).__name__}: {error}"), text))
    return message


def _end_with(parent: int) -> None:
    """Wait until the parent has ended, then end everything that was started here."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve the socket that the command line names."""
    for number in STOP_SIGNALS:  # the parent handles them, and needs this process to finish its step
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    descriptor, parent = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    serve(Channel(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main()
