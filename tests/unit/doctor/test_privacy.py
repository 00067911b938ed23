from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest

from burnish.doctor.privacy import hidden


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user alice on the machine lab7.example.org."""
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab7.example.org")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot read /home/alice/models/mine", "cannot read ~/models/mine"),
        ("'/home/alice' is full", "'~' is full"),
        ("/home/alice2/x and /home/alice.old stay", "/home/alice2/x and /home/alice.old stay"),
        ("/scratch/alice/runs, /mnt/data/alice", "/scratch/USER/runs, /mnt/data/USER"),
        ("malice and /usr/lib/alicelib stay", "malice and /usr/lib/alicelib stay"),
        ("no answer from lab7.example.org or lab7:8080", "no answer from HOST or HOST:8080"),
        ("lab70 stays", "lab70 stays"),
        ("one\n  line\tonly", "one line only"),
    ],
)
def test_names_and_folders_are_hidden(text: str, shown: str) -> None:
    assert hidden(text) == shown


def test_short_and_usual_names_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    assert hidden("/root/x on a vm, /mnt/root") == "~/x on a vm, /mnt/root"


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.setenv("HOME", "/")
    assert hidden("/tmp/x") == "/tmp/x"


def test_the_home_folder_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert hidden(f"{tmp_path}/home/a {tmp_path}/disk/b") == "~/a ~/b"
