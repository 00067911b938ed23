"""Messages over a socket: deadlines are for silence, not for whole messages."""

import socket
import threading
import time

import pytest

from burnish.distributed.channel import Channel, pickled


def test_a_message_may_take_longer_than_its_deadline_while_it_is_read_and_written() -> None:
    """Half a second of work in pieces, with a deadline of a fifth of that."""
    here, there = socket.socketpair()
    message = pickled(b"x" * 8_000_000)
    expected = len(message).to_bytes(8, "big") + message
    read = bytearray()

    def reads_slowly() -> None:
        while len(read) < len(expected):
            read.extend(there.recv(500_000))
            time.sleep(0.02)

    def writes_slowly() -> None:
        for start in range(0, len(expected), 500_000):
            there.sendall(expected[start : start + 500_000])
            time.sleep(0.02)

    channel = Channel(here)
    for work in (reads_slowly, writes_slowly):
        thread = threading.Thread(target=work)
        thread.start()
        if work is reads_slowly:
            channel.send(message, seconds=0.2)
        else:
            assert channel.receive(seconds=0.2) == b"x" * 8_000_000
        thread.join()
    assert read == expected
    for end in (here, there):
        end.close()


def test_silence_ends_in_time() -> None:
    here, there = socket.socketpair()
    channel = Channel(here)
    with pytest.raises(TimeoutError):
        channel.send(b"x" * 50_000_000, seconds=0.1)
    there.sendall((100).to_bytes(8, "big") + b"half")
    with pytest.raises(TimeoutError):
        channel.receive(seconds=0.1)
    for end in (here, there):
        end.close()
