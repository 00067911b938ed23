"""Sockets of servers."""

from __future__ import annotations

import socket

import pytest

from burnish.errors import ConfigError
from burnish.outside.listening import listening, url_of


def test_a_free_port_is_found_and_named() -> None:
    with listening("127.0.0.1", 0) as listener:
        url = url_of(listener, "127.0.0.1")
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
            pass
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1"), listening("127.0.0.1", int(url[17:])):
            pass
    assert url.startswith("http://127.0.0.1:")


def test_addresses_of_other_kinds() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1, port 0"):
        listening("192.0.2.1", 0).__enter__()  # an address that no machine has
    with socket.socket() as given:
        given.bind(("127.0.0.1", 0))
        assert url_of(given, "::1") == f"http://[::1]:{given.getsockname()[1]}"
