"""Sockets of this project's servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from burnish.errors import ConfigError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses at which nobody but this machine itself can ask."""


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; port 0 takes a free one. ConfigError if the address cannot be had."""
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, address = min((family, address) for family, *_, address in found)  # IPv4 first
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}, port {port}: {error.strerror}", remedy="choose another address or port"
            ) from error
        listener.listen(1_024)
        yield listener


def url_of(listener: socket.socket, host: str) -> str:
    """Where clients find it, under the name of the host that it was made for."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"
