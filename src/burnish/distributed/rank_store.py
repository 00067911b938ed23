"""Rendezvous of torchrun's processes: notes in the store that torchrun has for them.

The controller leaves a note with a secret, each other rank one with the address at which it waits. They are plain JSON,
because it is not known yet whether all run the same versions. A store may hold notes from before a restart: an answer
is to one call, and whoever waits looks for a newer call.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypedDict, cast

import torch.distributed as dist

from burnish.config.torchrun import TorchrunRank
from burnish.distributed.network import Address, Lines, accept, address_of, address_towards, listen, listen_here
from burnish.distributed.nodes import versions_here, words_here
from burnish.errors import BurnishError, ConfigError
from burnish.outside.frames import can_be_read

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

MEETING_SECONDS = 600.0
"""For all processes to come: they import PyTorch, perhaps from a slow disk that many read at once."""
_CALL = "burnish/call"
_LOOK_SECONDS = 0.5


class RankCall(TypedDict):
    """The controller's note. session: the secret of this start, as hexadecimal digits. node, address: where the
    controller is."""

    session: str
    node: int
    address: str


class RankReply(TypedDict):
    """The note of each other rank. address: at which it waits for the controller. words: `nodes.words_here`."""

    host: str
    address: Address
    versions: Mapping[str, str]
    words: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class RankStore:
    """The store, seen from one process."""

    here: TorchrunRank
    store: Store

    @staticmethod
    def joined(here: TorchrunRank) -> RankStore:
        """ConfigError if there is no store at the address that torchrun has given."""
        with _reaching(here):
            store = dist.TCPStore(  # type: ignore[attr-defined]
                here.address,
                here.port,
                is_master=here.rank == 0 and not here.agent_holds_store,
                wait_for_workers=False,
                multi_tenant=True,
                timeout=timedelta(seconds=MEETING_SECONDS),
            )
        return RankStore(here, store)

    def call(self, token: bytes) -> dict[int, RankReply]:
        """Call all other ranks. Returns what they have answered, by rank. ConfigError for ranks that do not."""
        session = token.hex()
        own = "127.0.0.1" if self.here.on_one_machine else address_towards(self.here.address)
        self._write(_CALL, RankCall(session=session, node=self.here.node, address=own))
        answers: dict[int, RankReply] = {}
        missing = list(range(1, self.here.size))
        deadline = time.monotonic() + MEETING_SECONDS
        while missing and time.monotonic() < deadline:
            answer = self._read(f"burnish/{session}/{missing[0]}")
            if answer is None:
                time.sleep(_LOOK_SECONDS)
            else:
                answers[missing.pop(0)] = cast(RankReply, answer)
        missing = [rank for rank in missing if self._read(f"burnish/{session}/{rank}") is None]
        if missing:
            raise ConfigError(
                f"ranks that have not come within {MEETING_SECONDS:g} seconds: {', '.join(map(str, missing))}",
                remedy="see what they have said; all nodes start the same command",
            )
        return answers

    def await_call(self) -> Lines:
        """Wait until the controller connects, which knows the secret of its newest call. BurnishError if it does not
        come."""
        deadline = time.monotonic() + MEETING_SECONDS
        listener: socket.socket | None = None
        answered = ""
        try:
            while time.monotonic() < deadline:
                call = cast(RankCall | None, self._read(_CALL))
                if call is not None and call["session"] != answered:
                    if listener is not None:
                        listener.close()
                    listener, answered = self._listener(call), call["session"]
                    self._write(f"burnish/{answered}/{self.here.rank}", _answer_at(listener))
                if listener is None:
                    time.sleep(_LOOK_SECONDS)
                elif can_be_read(listener.fileno(), _LOOK_SECONDS):
                    return accept(listener, bytes.fromhex(answered), seconds=deadline - time.monotonic())
        except TimeoutError:
            pass  # somebody else came
        finally:
            if listener is not None:
                listener.close()
        raise BurnishError(
            f"rank {self.here.rank}: rank 0 has not come within {MEETING_SECONDS:g} seconds",
            remedy="see what rank 0 has said; all nodes start the same command",
        )

    def _listener(self, call: RankCall) -> socket.socket:
        """Listen at an address that the controller can reach. A node may know itself by a loopback address, which leads
        no other node there: then torchrun's own address does."""
        if call["node"] == self.here.node:
            return listen_here()
        controller = call["address"]
        return listen(address_towards(self.here.address if ip_address(controller).is_loopback else controller))

    def _write(self, key: str, note: RankCall | RankReply) -> None:
        with _reaching(self.here):
            self.store.set(key, json.dumps(note))

    def _read(self, key: str) -> object | None:
        with _reaching(self.here):
            return json.loads(self.store.get(key)) if self.store.check([key]) else None


def _answer_at(listener: socket.socket) -> RankReply:
    address, host = address_of(listener), socket.gethostname()
    return RankReply(host=host, address=address, versions=versions_here(), words=words_here())


@contextmanager
def _reaching(here: TorchrunRank) -> Iterator[None]:
    try:
        yield
    except dist.DistError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"rank {here.rank}: torchrun's store at {here.address}:{here.port} cannot be reached ({reason})",
            remedy="see whether torchrun has ended on the first node, and whether nodes reach each other at every port",
        ) from error
