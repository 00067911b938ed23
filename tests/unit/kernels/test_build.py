"""The compiler is a file of our own here; what the kernels compute stands in the other tests."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from burnish.errors import KernelError
from burnish.kernels import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "burnish" / "kernels"


@pytest.mark.compiler
def test_a_library_is_built_once_and_kept(cache: Path) -> None:
    build.load_library("decode.c", torch.float32)
    (path,) = cache.iterdir()
    before = path.stat().st_mtime_ns
    build.load_library("decode.c", torch.float32)
    assert [(entry, entry.stat().st_mtime_ns) for entry in cache.iterdir()] == [(path, before)]
    build.load_library("decode.c", torch.bfloat16)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.compiler
def test_what_the_name_does_not_say_is_built_apart(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words in CC change what comes out."""
    own = shlex.join(build.find_compilers()[0])
    monkeypatch.setenv("CC", own)
    build.load_library("decode.c", torch.float32)
    monkeypatch.setenv("CC", f"{own} -O1")
    build.load_library("decode.c", torch.float32)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.compiler
def test_a_broken_file_is_built_anew(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load_library("decode.c", torch.float32)
    (whole,) = cache.iterdir()
    other = tmp_path / "other" / "burnish" / "kernels"  # a path that is loaded stays loaded, whatever stands there
    other.mkdir(parents=True)
    (other / whole.name).write_bytes(whole.read_bytes()[:100])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    build.load_library("decode.c", torch.float32)
    assert (other / whole.name).stat().st_size == whole.stat().st_size


@pytest.mark.compiler
def test_a_folder_that_others_may_write_is_not_trusted(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    build.load_library("decode.c", torch.float32)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("named", ["", "relative/path"])
def test_without_a_home_there_is_no_cache(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert build.cache_folder() is None


@pytest.mark.compiler
def test_a_compiler_that_does_not_work_is_passed_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`gcc` fails here, `cc` is the machine's own."""
    own = build.find_compilers()[0][0]
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gcc").write_text("#!/bin/sh\nexit 1\n")
    (folder / "gcc").chmod(0o755)
    (folder / "cc").symlink_to(str(shutil.which(own)))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CC", raising=False)
    build.load_library("decode.c", torch.float32)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.compiler
def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    build.load_library("decode.c", torch.float32)


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(KernelError, match="CC names 'no-such-compiler', which is not there"):
        build.load_library("decode.c", torch.float32)
    monkeypatch.setenv("CC", "gcc 'open quote")
    with pytest.raises(KernelError, match="which is no command"):
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


@pytest.mark.compiler
@pytest.mark.usefixtures("cache")
def test_types_without_code_are_refused() -> None:
    with pytest.raises(KernelError, match="no kernels for"):
        build.load_library("decode.c", torch.float64)
