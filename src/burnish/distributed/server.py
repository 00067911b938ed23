"""The other end of `burnish.distributed.processes`: holds roles and answers requests to them.

    python -m burnish.distributed.server SOCKET PULSE PARENT [STACKS]

SOCKET is the descriptor of a stream socket, PULSE that of a `burnish.distributed.pulse`, PARENT the id of the process
that asks, STACKS the file in which a process that stalls says where its threads are. Messages are tuples, one
at a time:

    (paths,)                               sys.path; comes first
    (build, arguments, threads)            build(*arguments) is a context manager that gives the roles by name
    ("call", role, method, args, named)    a method of a role, or a property
    ("read", role, version)                begins to read the tensors of role.publish(), if they have that version
    ("next",)                              the next of these tensors with their names; none at the end
    ("generate", role, arguments, named)   role.generate(...), which counts as alive with every token
    ("sync", role, version)                role.sync(Weights(...)); tensors are asked for by ("want",), none ends them
    ("adopt", role, policy)                role.sync(policy.publish()), with the weights of this very process
    ("load", role, layout)                 role.sync(Weights(...)) from memory whose descriptor follows
    ("share", role, version)               role.publish() as memory: the answer is its layout, its descriptor follows
    ("end",)

The answer is ("done", result) or ("raised", error, traceback).
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.distributed.channel import Channel, pickled
from burnish.distributed.handover import SharedWeights
from burnish.distributed.pulse import BEAT_SECONDS, Pulse
from burnish.errors import RolloutError
from burnish.models.roles import Policy
from burnish.models.weights import Weights
from burnish.plugins import STOP_SIGNALS
from burnish.rollouts.engine import RolloutEngine
from burnish.types import Rollout

BUCKET_BYTES = 64 << 20
"""Weights in one message (a larger tensor gets its own)."""

STACKS_SIGNAL = signal.SIGUSR1
"""Asks a process to write where its threads are."""

Named = tuple[str, Tensor]


class Server:
    """Roles by name, and the answers to requests."""

    def __init__(self, channel: Channel, roles: Mapping[str, Any], pulse: Pulse) -> None:
        self._channel = channel
        self._pulse = pulse
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
                self._reading = buckets(self._published(*rest).tensors())
                return None
            case "next":
                return next(self._reading, [])
            case "generate":
                role, arguments, named = rest
                return self._roles[role].generate(*arguments, **named, on_finished=self._count)
            case "adopt":
                role, policy = rest
                return self._roles[role].sync(self._roles[policy].publish())
            case "load":
                role, layout = rest
                shared = SharedWeights(layout, self._channel.receive_descriptor())
                try:
                    return self._roles[role].sync(shared.weights())
                finally:
                    shared.close()  # or every version would stay in memory
            case "share":
                shared = SharedWeights.write(self._published(*rest))
                self._channel.send(pickled(("done", shared.layout)), seconds=None)
                self._channel.send_descriptor(shared.descriptor, seconds=None)
                return shared.close()
            case "sync":
                role, version = rest
                engine: RolloutEngine = self._roles[role]
                return engine.sync(Weights(version, self._wanted))
        raise ValueError(f"unknown message {kind!r}")

    def _published(self, role: str, version: int) -> Weights:
        policy: Policy = self._roles[role]
        weights = policy.publish()
        if weights.version != version:
            raise RolloutError(
                f"version {version} of the weights of {role!r} was requested; it is at version {weights.version} now",
                remedy="call sync() after every update with the weights that publish() gives",
            )
        return weights

    def _count(self, finished: Sequence[Rollout]) -> None:
        self._pulse.progress()

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


def serve(channel: Channel, pulse: Pulse) -> None:
    """Build the roles, then answer until the other end says "end" or is gone."""
    try:
        (sys.path[:],) = channel.receive(seconds=None)
        build, arguments, threads = channel.receive(seconds=None)
        torch.set_num_threads(threads)  # the last bits of sums depend on the number of threads
        with build(*arguments) as roles:
            channel.send(pickled(("done", list(roles))), seconds=None)
            _answer_all(channel, Server(channel, roles, pulse))
    except EOFError:  # nobody is left to answer
        return
    except BaseException as error:  # noqa: BLE001 - boundary: the other end raises whatever ends the start
        channel.send(_raised(error), seconds=None)


def _answer_all(channel: Channel, server: Server) -> None:
    while (message := channel.receive(seconds=None)) != ("end",):
        try:
            result = server.answer(*message)
            if message[0] == "share":  # answered already, with a descriptor behind it
                continue
            answer = pickled(("done", result))
        except BaseException as error:  # noqa: BLE001 - boundary: whatever a role raises is raised again over there
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


def _live_with(parent: int, pulse: Pulse) -> None:
    """Wait until the parent has ended, then end everything that was started here."""
    while os.getppid() == parent:
        pulse.beat()
        time.sleep(BEAT_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve the socket that the command line names."""
    for number in STOP_SIGNALS:  # the parent handles them, and needs this process to finish its step
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    descriptor, shared, parent = map(int, sys.argv[1:4])
    pulse = Pulse(shared)
    threading.Thread(target=_live_with, args=(parent, pulse), daemon=True).start()
    for stacks in sys.argv[4:]:
        faulthandler.register(STACKS_SIGNAL, file=open(stacks, "a", encoding="utf-8"), all_threads=True)  # noqa: SIM115
    serve(Channel(socket.socket(fileno=descriptor)), pulse)


if __name__ == "__main__":
    main()
