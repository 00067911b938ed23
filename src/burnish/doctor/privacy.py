"""Names of the user and of the machine, and folders of theirs, kept out of what goes into a public report."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from pathlib import Path

_SHORTEST = 3
"""Shorter names would be found inside of words that have nothing to do with them."""
_USUAL = frozenset({"root", "localhost", "user", "linux", "ubuntu", "debian"})


def hidden(text: str) -> str:
    """One line without the home folder (`~`), the user's name as a part of paths, and the name of the machine."""
    text = " ".join(text.split())
    home = os.path.expanduser("~")
    for folder in sorted({home, os.path.realpath(home)} - {"/", "~"}, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])", "~", text)
    for name in _user_names():
        text = re.sub(rf"(?<=/){re.escape(name)}(?![\w.-])", "USER", text)
    for name in _host_names():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "HOST", text)
    return text


def _user_names() -> set[str]:
    names = {Path(os.path.expanduser("~")).name}
    with contextlib.suppress(OSError, KeyError):  # a container may run under a number without a name
        names.add(getpass.getuser())
    return _telling(names)


def _host_names() -> list[str]:
    name = socket.gethostname()
    return sorted(_telling({name, name.partition(".")[0]}), key=len, reverse=True)


def _telling(names: set[str]) -> set[str]:
    return {name for name in names if len(name) >= _SHORTEST and name.lower() not in _USUAL}
