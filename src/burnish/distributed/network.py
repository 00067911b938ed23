"""Processes that something else has started, such as Ray: two connections to each, and signs of life over one.

Requests are pickled, so whoever connects has to know a secret first, which travels another way (with Ray: through Ray).
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from burnish.distributed.pulse import BEAT_SECONDS, Pulse
from burnish.outside.frames import can_be_read, exactly, until
from burnish.outside.supervise import activity

TOKEN_BYTES = 32
_REQUESTS, _BEATS = b"r", b"b"
_COUNTERS = struct.Struct("!QQ")
_SIOCGIFADDR = 0x8915
_GREETING_SECONDS = 5.0
_MOST_OF_A_WISH = 4096

Address = tuple[str, int] | str
"""A host and a port; or, on one machine, the name of a socket, which can hand over memory."""


class Lines(NamedTuple):
    """The two connections, seen from either side."""

    requests: socket.socket
    beats: socket.socket


def listen(address: str) -> socket.socket:
    """A socket at a free port of this address, which is kept: nobody else can take the port in between."""
    return socket.create_server((address, 0))


def listen_here() -> socket.socket:
    """A socket for processes of this machine, with a name that nobody else has. It leaves no file behind."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0burnish-{secrets.token_hex(16)}")  # a name that begins with a zero byte is not in the file system
    listener.listen()
    return listener


def address_of(listener: socket.socket) -> Address:
    """Return the address at which `connect` finds the socket."""
    if listener.family == socket.AF_UNIX:
        name: bytes = listener.getsockname()
        return name.decode().removeprefix("\0")
    host, port = listener.getsockname()[:2]
    return host, port


def accept(listener: socket.socket, token: bytes, *, seconds: float) -> Lines:
    """The connections of the one who knows the token; others are turned away. TimeoutError if nobody comes in time."""
    deadline = time.monotonic() + seconds
    lines: dict[bytes, socket.socket] = {}
    with listener:
        while len(lines) < 2:
            listener.settimeout(max(deadline - time.monotonic(), 1e-3))
            stream, _ = listener.accept()
            kind = _greeting(stream, token)
            if kind in (_REQUESTS, _BEATS) and kind not in lines:
                lines[kind] = _ready(stream)
            else:
                stream.close()
    return Lines(lines[_REQUESTS], lines[_BEATS])


def connect(address: Address, token: bytes, *, seconds: float) -> Lines:
    """The same connections, from the other side. OSError when nobody listens there."""
    streams: list[socket.socket] = []
    try:
        for kind in (_REQUESTS, _BEATS):
            streams.append(_connection(address, seconds))
            streams[-1].sendall(token + kind)
    except OSError:
        for stream in streams:
            stream.close()
        raise
    return Lines(*map(_ready, streams))


def _connection(address: Address, seconds: float) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address, timeout=seconds)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(seconds)
    try:
        stream.connect(f"\0{address}")
    except OSError:
        stream.close()
        raise
    return stream


def _greeting(stream: socket.socket, token: bytes) -> bytes:
    """Read which connection this is to be; empty if the other end does not know the token."""
    said = b""
    with contextlib.suppress(OSError, EOFError):
        said = bytes(exactly(until(time.monotonic() + _GREETING_SECONDS, stream), TOKEN_BYTES + 1))
    stream.settimeout(_GREETING_SECONDS)
    return said[TOKEN_BYTES:] if hmac.compare_digest(said[:TOKEN_BYTES], token) else b""


def _ready(stream: socket.socket) -> socket.socket:
    """A connection that sends at once what it is given."""
    if stream.family != socket.AF_UNIX:  # a request is two writes, and must not wait in between
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def send_beats(stream: socket.socket, pulse: Pulse, fulfil: Callable[[str], None] | None = None) -> None:
    """Beat, and tell the other end of it, until that is gone. `fulfil` gets what `DistantPulse.wish` sends."""
    stream.settimeout(None)  # a network that stands still is noticed at the other end
    with contextlib.suppress(OSError):
        while True:
            pulse.beat()
            stream.sendall(_COUNTERS.pack(*pulse.read()))
            if can_be_read(stream.fileno(), BEAT_SECONDS):
                wish = stream.recv(_MOST_OF_A_WISH)
                if not wish:
                    return
                if fulfil is not None:
                    fulfil(wish.decode())


def send_activity(descriptor: int, pid: int) -> None:
    """Tell the other end what the system sees of the process that has started this one, until it or the connection
    ends: in place of beats, which that process cannot send yet."""
    with socket.socket(fileno=descriptor) as stream, contextlib.suppress(OSError):
        while os.getppid() == pid:
            stream.sendall(_COUNTERS.pack(activity(pid), 0))
            time.sleep(BEAT_SECONDS)


class DistantPulse:
    """The counters of `Pulse` in a process elsewhere, as it last sent them. `ended`: it sends no more.

    It may be read by several threads.
    """

    def __init__(self, stream: socket.socket) -> None:
        self.ended = False
        self._stream = stream
        self._stream.setblocking(False)
        self._arrived = b""
        self._counters = (0, 0)
        self._reading = threading.Lock()

    def read(self) -> tuple[int, int]:
        """Beats so far, and pieces of work done so far."""
        with self._reading:
            try:
                while more := self._stream.recv(1 << 16):
                    self._arrived += more
                self.ended = True
            except BlockingIOError:
                pass  # nothing new
            except OSError:
                self.ended = True
            whole = len(self._arrived) // _COUNTERS.size * _COUNTERS.size
            if whole:
                beats, done = _COUNTERS.unpack_from(self._arrived, whole - _COUNTERS.size)
                self._counters = (beats, done)
                self._arrived = self._arrived[whole:]
            return self._counters

    def wish(self, text: str) -> None:
        """Send a short text to whoever beats. Nothing happens if nobody does any more."""
        with contextlib.suppress(OSError):
            self._stream.sendall(text.encode()[:_MOST_OF_A_WISH])

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with contextlib.suppress(OSError):  # it may have ended
            self._stream.shutdown(socket.SHUT_RDWR)  # at once, though another thread may be reading
        self._stream.close()


def address_towards(host: str) -> str:
    """The address of this machine from which it reaches the other one. OSError if it does not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: the system only chooses an address
        address: str = probe.getsockname()[0]
    return address


def interface_towards(host: str) -> str:
    """The name of the network interface with that address. OSError if there is none."""
    own = address_towards(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24] == socket.inet_aton(own):
                    return name
    raise OSError(f"no network interface of this machine has the address {own}, from which it reaches {host}")
