"""The compiler is a file of our own here; what the kernels compute stands in the other tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from burnish.errors import KernelError
from burnish.kernels import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "burnish" / "kernels"


def test_a_library_is_built_once_and_kept(cache: Path) -> None:
    build.load_library("decode.c", torch.float32)
    (path,) = cache.iterdir()
    before = path.stat().st_mtime_ns
    build.load_library("decode.c", torch.float32)
    assert [(entry, entry.stat().st_mtime_ns) for entry in cache.iterdir()] == [(path, before)]
    build.load_library("decode.c", torch.bfloat16)
    assert len(list(cache.iterdir())) == 2


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    build.load_library("decode.c", torch.float32)


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(KernelError, match="CC names 'no-such-compiler', which is not there"):
        build.load_library("decode.c", torch.float32)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(KernelError, match="no C compiler"):
        build.load_library("decode.c", torch.float32)


@pytest.mark.parametrize("what", ["compiles nothing", "links nothing that runs"])
def test_a_compiler_that_fails_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    script = {
        "compiles nothing": 'if [ "$1" = --version ]; then exit 0; fi; echo "this processor is unknown" >&2; exit 1',
        "links nothing that runs": 'while [ "$#" -gt 1 ]; do if [ "$1" = -o ]; then echo x > "$2"; fi; shift; done',
    }[what]
    compiler = tmp_path / "my-cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    wanted = {
        "compiles nothing": "my-cc.* failed: this processor is unknown",
        "links nothing that runs": "my-cc built cannot be loaded",
    }[what]
    with pytest.raises(KernelError, match=wanted):
        build.load_library("decode.c", torch.float32)
    assert what != "compiles nothing" or not list(cache.iterdir())


@pytest.mark.usefixtures("cache")
def test_types_without_code_are_refused() -> None:
    with pytest.raises(KernelError, match="no kernels for"):
        build.load_library("decode.c", torch.float64)
