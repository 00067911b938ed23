"""The other end of `burnish.distributed.peers`: holds roles and answers requests to them.

On one machine it is a separate process; on Ray a thread of an actor (`burnish.distributed.ray_workers`); under torchrun
one of its processes (`burnish.distributed.ranks`).

Messages are tuples, one at a time:

    ("check", expected)                    what this machine lacks (`nodes.problems_here`); before what follows
    ("import", build)                      imports what that needs, which arrives with it; before what follows
    (build, arguments, threads)            build(*arguments) is a context manager that gives the roles by name
    ("call", role, method, args, named)    a method of a role, or a property, which counts as alive with every layer of
                                           a model that it runs
    ("read", role, version)                begins to read the tensors of role.publish(), if they have that version
    ("next",)                              the next of these tensors with their names; none at the end
    ("generate", role, arguments, named)   role.generate(...), which counts as alive with every token, and its metrics
    ("generate_until", role, arguments, named)    the same for role.generate_until(...), which ("stop",) stops
    ("stop",)                              has no answer: without anything to stop, it came too late, and means nothing
    ("sync", role, version)                role.sync(Weights(...)); tensors are asked for by ("want",), none ends them
    ("adopt", role, policy)                role.sync(policy.publish()), with the weights of this very process
    ("load", role, layout)                 role.sync(Weights(...)) from what comes through the gate (`handover.Gate`)
    ("share", role, version)               role.publish() to the gate: the answer is the layout
    ("end",)

The answer is ("done", result) or ("raised", error, traceback).
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from burnish.distributed.channel import Channel, pickled
from burnish.distributed.nodes import problems_here
from burnish.distributed.pulse import BEAT_SECONDS, Pulse
from burnish.distributed.weight_transfer import Gate, SharedWeights, TensorLayout
from burnish.errors import RolloutError
from burnish.machine.memory import return_freed_memory
from burnish.models.roles import Policy
from burnish.models.weights import Weights, in_chunks
from burnish.outside.supervise import end_own_group, ignore_stop_signals
from burnish.rollouts.engine import RolloutEngine
from burnish.types import Rollout

BUCKET_BYTES = 64 << 20
"""Weights in one message (a larger tensor gets its own)."""

STACKS_SIGNAL = signal.SIGUSR1
"""Asks a process to write where its threads are."""

STOP = ("stop",)

Named = tuple[str, Tensor]


class MemoryGate:
    """`Gate` of one machine: memory, whose descriptor travels behind a request or an answer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._written: SharedWeights | None = None

    def receive(self, layout: TensorLayout) -> SharedWeights:
        """See `Gate`."""
        return SharedWeights(layout, self._channel.receive_descriptor())

    def publish(self, weights: Weights) -> TensorLayout:
        """See `Gate`."""
        self._written = SharedWeights.write(weights)
        return self._written.layout

    def follow(self) -> None:
        """See `Gate`."""
        if self._written is not None:
            self._channel.send_descriptor(self._written.descriptor, seconds=None)
            self._written.close()
            self._written = None


class RoleServer:
    """Roles by name, and the answers to requests."""

    def __init__(self, channel: Channel, roles: Mapping[str, Any], pulse: Pulse, gate: Gate) -> None:
        self._channel = channel
        self._gate = gate
        self._pulse = pulse
        self._roles = roles
        self._reading: Iterator[list[Named]] = iter(())
        self._is_stopped = False

    def answer(self, kind: str, *rest: Any) -> Any:
        """The result of one message. Raises whatever the role raises."""
        match kind:
            case "call":
                role, method, arguments, named = rest
                # Every module of PyTorch that is called meanwhile is a piece of work: a step of many micro-batches may
                # take longer than a process may go without any.
                with register_module_forward_hook(lambda module, inputs, output: self._pulse.progress()):
                    asked = getattr(self._roles[role], method)
                    return asked(*arguments, **named) if callable(asked) else asked
            case "read":
                self._reading = buckets(self._published(*rest).tensors())
                return None
            case "next":
                return next(self._reading, [])
            case "generate":
                role, arguments, named = rest
                rollouts = self._roles[role].generate(*arguments, **named, on_finished=self._count)
                return rollouts, self._roles[role].take_metrics()
            case "generate_until":
                role, arguments, named = rest
                self._is_stopped = False
                rollouts, begun = self._roles[role].generate_until(
                    *arguments, **named, stopped=self._stopped, on_finished=self._count
                )
                return rollouts, begun, self._roles[role].take_metrics()
            case "adopt":
                role, policy = rest
                return self._roles[role].sync(self._roles[policy].publish())
            case "load":
                role, layout = rest
                shared = self._gate.receive(layout)
                try:
                    return self._roles[role].sync(shared.weights())
                finally:
                    shared.close()  # or every version would stay in memory
            case "share":
                return self._gate.publish(self._published(*rest))
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

    def _stopped(self) -> bool:
        """Return whether the other end wants no more tokens. While it waits for an answer, it says nothing else."""
        if not self._is_stopped and self._channel.has_message():
            self._is_stopped = self._channel.receive(seconds=None) == STOP
        return self._is_stopped

    def _wanted(self) -> Iterator[Named]:
        while True:
            self._channel.send(pickled(("want",)), seconds=None)
            tensors: list[Named] = self._channel.receive(seconds=None)
            if not tensors:
                return
            yield from tensors


def buckets(tensors: Iterable[Named]) -> Iterator[list[Named]]:
    """The tensors in lists of at most `BUCKET_BYTES`, each list made when it is asked for."""
    return in_chunks(tensors, BUCKET_BYTES, lambda tensor: tensor.nbytes)


def serve(channel: Channel, pulse: Pulse, gate: Gate) -> None:
    """Build the roles, then answer until the other end says "end" or is gone."""
    try:
        while (first := channel.receive(seconds=None))[0] in ("check", "import"):
            found = problems_here(first[1]) if first[0] == "check" else None
            channel.send(pickled(("done", found)), seconds=None)
        if first == ("end",):
            return
        build, arguments, threads = first
        torch.set_num_threads(threads)  # the last bits of sums depend on the number of threads
        with build(*arguments) as roles:
            channel.send(pickled(("done", list(roles))), seconds=None)
            _answer_all(channel, RoleServer(channel, roles, pulse, gate), gate)
    except EOFError:  # nobody is left to answer
        return
    except BaseException as error:  # noqa: BLE001 - boundary: the other end raises whatever ends the start
        channel.send(_raised(error), seconds=None)


def _answer_all(channel: Channel, server: RoleServer, gate: Gate) -> None:
    while (message := channel.receive(seconds=None)) != ("end",):
        if message == STOP:
            continue
        answer = _answer(server, message)
        channel.send(answer, seconds=None)
        is_large = len(answer) > BUCKET_BYTES
        del answer  # it may be an optimizer's state, and the next request may take long to come
        if is_large:
            return_freed_memory()
        gate.follow()


def _answer(server: RoleServer, message: tuple[Any, ...]) -> bytes:
    try:
        return pickled(("done", server.answer(*message)))
    except BaseException as error:  # noqa: BLE001 - boundary: whatever a role raises is raised again over there
        return _raised(error)


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
    end_own_group()


def main(descriptor: int, pulse_descriptor: int, parent: int, stacks: str | None = None) -> None:
    """Serve a stream socket. The descriptors are of that and of a `burnish.distributed.pulse`; parent: the id of the
    process that asks; stacks: the file in which a process that stalls says where its threads are."""
    ignore_stop_signals()
    pulse = Pulse(pulse_descriptor)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        threading.Thread(target=_live_with, args=(parent, pulse), daemon=True).start()
    except RuntimeError as error:  # the machine has no more threads, which is the answer to the first request
        channel.receive(seconds=None)
        return channel.send(_raised(error), seconds=None)
    if stacks is not None:
        faulthandler.register(STACKS_SIGNAL, file=open(stacks, "a", encoding="utf-8"), all_threads=True)  # noqa: SIM115
    return serve(channel, pulse, MemoryGate(channel))
