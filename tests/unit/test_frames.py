"""Messages arrive whole, however they are cut on the way, and never longer than allowed."""

import socket
import time

import pytest

from burnish.outside.frames import LENGTH, Correspondent, FrameReader, GarbledError, frame, read_frame, until

MESSAGES = [b"one", b"", b"three\n" * 1000]


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_messages_come_in_any_pieces(size: int) -> None:
    data = b"".join(map(frame, MESSAGES))
    reader, found = FrameReader(10_000), []
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
        found += list(reader.frames())
    assert found == MESSAGES


def test_messages_in_front_of_one_that_is_too_long_are_read() -> None:
    reader = FrameReader(10)
    reader.feed(frame(b"0123456789") + frame(b"0123456789a")[: LENGTH.size + 1])
    found = reader.frames()
    assert next(found) == b"0123456789"
    with pytest.raises(GarbledError):
        next(found)


def test_a_message_has_a_deadline_and_an_end() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(frame(b"whole") + frame(b"half")[:-1])
            assert read_frame(until(time.monotonic() + 10, ours), 5) == b"whole"
            with pytest.raises(TimeoutError):
                read_frame(until(time.monotonic() + 0.01, ours), 5)
        with pytest.raises(EOFError):
            read_frame(until(time.monotonic() + 10, ours), 5)


def test_a_process_that_does_not_read_keeps_nobody_waiting() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = Correspondent(ours, 100)
        sent = frame(b"x" * 3_000_000)
        process.post(sent)
        process.post(frame(b"last"))
        received = b""
        while len(received) < len(sent) + len(frame(b"last")):
            received += theirs.recv(1 << 20)
            process.flush()
        assert received == sent + frame(b"last")
        assert not process.has_said_anything()
        theirs.sendall(frame(b"answer"))
        theirs.close()
        assert list(process.arrived()) == [b"answer"]
        assert process.gone
