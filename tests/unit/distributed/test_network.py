"""Connections to processes of other machines: who may connect, and what their signs of life tell."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from watching import wait_for

from burnish.config.torchrun import TorchrunRank
from burnish.distributed import network
from burnish.distributed.network import DistantPulse, Lines, accept, connect, interface_towards, listen, send_beats
from burnish.distributed.pulse import Pulse
from burnish.distributed.rank_store import RankStore

TOKEN = bytes(range(32))


def accepted(listener: socket.socket, seconds: float = 30.0) -> tuple[threading.Thread, list[Lines]]:
    found: list[Lines] = []
    thread = threading.Thread(target=lambda: found.append(accept(listener, TOKEN, seconds=seconds)))
    thread.start()
    return thread, found


def test_who_knows_the_token_is_connected_and_others_are_turned_away() -> None:
    listener = listen("127.0.0.1")
    address = listener.getsockname()
    thread, found = accepted(listener)
    with socket.create_connection(address) as stranger:
        stranger.sendall(bytes(32) + b"r")
        assert stranger.recv(1) == b""
    with socket.create_connection(address) as silent:
        silent.shutdown(socket.SHUT_WR)
        assert silent.recv(1) == b""
    ours = connect(address, TOKEN, seconds=10)
    thread.join()
    theirs = found[0]
    ours.requests.sendall(b"requests")
    ours.beats.sendall(b"beats")
    assert theirs.requests.recv(100) == b"requests"
    assert theirs.beats.recv(100) == b"beats"
    for stream in (*ours, *theirs):
        assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        stream.close()
    with pytest.raises(ConnectionRefusedError):  # one is enough
        socket.create_connection(address)


def test_nobody_comes() -> None:
    with pytest.raises(TimeoutError):
        accept(listen("127.0.0.1"), TOKEN, seconds=0.05)


def test_beats_arrive_until_the_reader_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "BEAT_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    pulse = Pulse.new()
    sender = threading.Thread(target=send_beats, args=(theirs, pulse))
    sender.start()
    distant = DistantPulse(ours)
    wait_for(lambda: distant.read()[0] >= 3)
    pulse.progress()
    wait_for(lambda: distant.read()[1] >= 1)
    distant.close()
    sender.join(timeout=30)
    assert not sender.is_alive()


def test_connections_above_a_thousand_descriptors(beyond_a_thousand: None) -> None:
    """Beats, and the wait of a rank for its controller."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    first, other = (RankStore(TorchrunRank(rank, 2, 0, 1, 0, "localhost", 1, True, 0), store) for rank in (0, 1))
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(other.await_call)
        lines = connect(first.call(TOKEN)[1]["address"], TOKEN, seconds=10)
        theirs = waiting.result(timeout=10)
        assert theirs.beats.fileno() > 1_023
        beating = threads.submit(send_beats, theirs.beats, Pulse.new())
        pulse = DistantPulse(lines.beats)
        wait_for(lambda: pulse.read()[0] > 1)
        pulse.close()
        beating.result(timeout=10)


def test_half_a_message_is_kept_for_later() -> None:
    ours, theirs = socket.socketpair()
    distant = DistantPulse(ours)
    message = (5).to_bytes(8, "big") + (7).to_bytes(8, "big")
    theirs.sendall(message[:9])
    assert distant.read() == (0, 0)
    theirs.sendall(message[9:] + message[:3])
    assert distant.read() == (5, 7)
    theirs.close()
    assert distant.read() == (5, 7)  # an end is told by the other connection


def test_the_interface_that_leads_somewhere() -> None:
    assert interface_towards("127.0.0.1") == "lo"
