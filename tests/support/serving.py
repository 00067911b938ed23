"""Servers in a thread of this process."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from watching import wait_for

from burnish.outside.listening import UVICORN, listening


@contextmanager
def served(application: Callable[[Callable[[], bool]], Any]) -> Iterator[socket.socket]:
    """Serve an application, and yield what it listens on. It is made with a function that says whether it is to end."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs burnish[serve]")
    with listening("127.0.0.1", 0) as listener:
        app = application(lambda: server.should_exit)
        server = uvicorn.Server(uvicorn.Config(app, **UVICORN))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        try:
            yield listener
        finally:
            server.should_exit = True
            thread.join(60)
        assert not thread.is_alive()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    """Whether anybody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
