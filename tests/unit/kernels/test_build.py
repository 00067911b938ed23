"""The compiler is a file of our own here; what the kernels compute stands in the other tests."""

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from watching import runs, wait_for

from burnish.errors import KernelError
from burnish.kernels import build
from burnish.machine.private_folders import PREFIX, private_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    try:
        with private_folder(tmp_path):
            pass
    except PermissionError:
        pytest.skip("others may change the folder that tests write to, so nothing is kept there")
    return tmp_path / "cache" / "burnish" / "kernels"


@pytest.mark.slow
@pytest.mark.compiler
def test_a_library_is_built_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By everything that changes what comes out: its type, and words in CC."""
    own = shlex.join(build.find_compilers()[0])
    monkeypatch.setenv("CC", own)
    build.load_library("decode.c", torch.float32)
    (path,) = cache.iterdir()
    before = path.stat().st_mtime_ns
    build.load_library("decode.c", torch.float32)
    assert [(entry, entry.stat().st_mtime_ns) for entry in cache.iterdir()] == [(path, before)]
    build.load_library("decode.c", torch.bfloat16)
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setenv("CC", f"{own} -O1")
    build.load_library("decode.c", torch.float32)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("part", ["its beginning", "half"])
def test_a_library_that_was_cut_short_is_built_anew(cache, tmp_path, monkeypatch, part) -> None:
    """Its first half has everything that the loader checks; without a check of our own, loading ends the process."""
    build.load_library("decode.c", torch.float32)
    (whole,) = cache.iterdir()
    other = tmp_path / "other" / "burnish" / "kernels"  # a path that is loaded stays loaded, whatever stands there
    other.mkdir(parents=True)
    size = whole.stat().st_size
    (other / whole.name).write_bytes(whole.read_bytes()[: 100 if part == "its beginning" else size // 2])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    build.load_library("decode.c", torch.float32)
    assert (other / whole.name).stat().st_size == size


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("whose", ["others may write", "somebody else's"])
def test_a_library_that_others_may_change_is_built_anew(cache: Path, whose: str) -> None:
    build.load_library("decode.c", torch.float32)
    (kept,) = cache.iterdir()
    if whose == "others may write":
        kept.chmod(0o666)
    elif os.geteuid() == 0:  # nobody else gives files away
        os.chown(kept, 65534, 65534)
    else:
        pytest.skip("only root gives files away")
    before = kept.stat().st_ino
    build.load_library("decode.c", torch.float32)
    assert (kept.stat().st_mode & 0o777, kept.stat().st_uid) == (0o600, os.geteuid())
    assert kept.stat().st_ino != before


ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("which", ["folder", "folder above", pytest.param("link", marks=ONLY_ROOT)])
@pytest.mark.parametrize("mode", [0o777, 0o770, pytest.param(None, marks=ONLY_ROOT)], ids=["all", "group", "owner"])
def test_a_folder_that_others_may_change_is_not_used(cache: Path, tmp_path: Path, which: str, mode: int | None) -> None:
    """Whoever may write to it, or owns it or the link to it."""
    cache.mkdir(parents=True, mode=0o700)
    if which == "link":
        cache.rename(tmp_path / "elsewhere")
        cache.symlink_to(tmp_path / "elsewhere")
    theirs = cache.parent if which == "folder above" else cache
    if mode is None:
        os.chown(theirs, 65534, 65534, follow_symlinks=False)
    else:
        theirs.chmod(mode)
    build.load_library("decode.c", torch.float32)
    assert not list(cache.iterdir())


@pytest.mark.slow
@pytest.mark.compiler
def test_a_link_of_the_users_own_is_followed(cache: Path, tmp_path: Path) -> None:
    """As where a home is small and its cache is on another disk."""
    cache.parent.mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    cache.symlink_to(tmp_path / "disk")
    build.load_library("decode.c", torch.float32)
    assert len(list((tmp_path / "disk").iterdir())) == 1


def test_an_empty_home_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    assert build.cache_folder() is None


@pytest.mark.parametrize("named", ["", "relative/path"])
def test_without_a_home_there_is_no_cache(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert build.cache_folder() is None


@pytest.mark.slow
@pytest.mark.compiler
def test_a_compiler_that_does_not_work_is_passed_over(cache, tmp_path, monkeypatch) -> None:
    """`gcc` fails here, `cc` is the machine's own."""
    own = build.find_compilers()[0][0]
    write_compiler(tmp_path / "gcc", "exit 1")
    (tmp_path / "cc").symlink_to(str(shutil.which(own)))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CC", raising=False)
    build.load_library("decode.c", torch.float32)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("CC", "no-such-compiler -O1", "CC names 'no-such-compiler', which does not exist"),
        ("CC", "gcc 'open quote", "which is not a command"),
        ("PATH", "", "no C compiler"),
    ],
)
def test_without_a_compiler_the_reason_is_told(monkeypatch, name, value, told) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(KernelError, match=told):
        build.load_library("decode.c", torch.float32)


def write_compiler(path: Path, script: str) -> str:
    """A compiler that tells its version and does this for everything else."""
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then exit 0; fi\n{script}\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo "this processor is unknown" >&2; exit 1', "my-cc.* failed: this processor is unknown"),
        (
            'while [ "$#" -gt 1 ]; do if [ "$1" = -o ]; then echo x > "$2"; fi; shift; done',
            "my-cc built cannot be loaded",
        ),
        ("kill -SEGV $$", "SIGSEGV"),
        ("exit 0", "cannot be loaded"),
        ("echo; exit 3", "exit status 3"),
        ("printf '\\377\\376 error' >&2; exit 1", "error"),
    ],
)
def test_a_compiler_that_fails_or_makes_nothing_is_named(cache, tmp_path, monkeypatch, script, message) -> None:
    monkeypatch.setenv("CC", write_compiler(tmp_path / "my-cc", script))
    with pytest.raises(KernelError, match=message):
        build.load_library("decode.c", torch.float32)
    assert not list(cache.glob("*.so"))


@pytest.mark.compiler
@pytest.mark.usefixtures("cache")
def test_a_library_without_our_functions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shutil.which(build.find_compilers()[0][0])
    script = (
        f'echo "int other;" > o.c; for last; do :; done; {own} -shared -fPIC o.c -o object.o; cp object.o library.so'
    )
    monkeypatch.setenv("CC", write_compiler(tmp_path / "my-cc", script))
    with pytest.raises(KernelError, match="lacks the functions"):
        build.load_library("decode.c", torch.float32)


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_hangs_is_ended_with_all_it_started_and_not_asked_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(build, "_SECONDS", 1)
    monkeypatch.setattr(build, "_hanging", {})
    hanging = write_compiler(tmp_path / "my-cc", f"sleep 300 & echo $! >> {tmp_path}/started; wait")
    monkeypatch.setenv("CC", hanging)
    for source in ("decode.c", "train.c"):
        with pytest.raises(KernelError, match="did not finish within 1 seconds"):
            build.load_library(source, torch.float32)
    (started,) = (tmp_path / "started").read_text().split()
    wait_for(lambda: not runs(int(started)))


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("folder", ["/proc/burnish", "/dev/null", "/" + "x" * 300, "/\udcff" + "y" * 5000])
def test_a_cache_that_cannot_be_had_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    build.load_library("decode.c", torch.float32)


@pytest.mark.slow_cases("burnish.kernels.build.os.fsync-error0", "burnish.kernels.build.ctypes.CDLL-error5")
@pytest.mark.compiler
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("burnish.kernels.build.os.fsync", OSError(errno.ENOSPC, "No space left on device")),
        ("burnish.kernels.build.tempfile.gettempdir", FileNotFoundError("No usable temporary directory")),
        ("burnish.outside.supervise.subprocess.Popen", BlockingIOError(errno.EAGAIN, "Resource unavailable")),
        ("burnish.kernels.build.Path.read_bytes", PermissionError(errno.EACCES, "Permission denied")),
        ("burnish.kernels.build.description", RuntimeError("what nobody has thought of")),
        ("burnish.kernels.build.ctypes.CDLL", OSError("failed to map segment from shared object")),
    ],
)
def test_whatever_is_wrong_with_the_machine_is_a_kernel_error(monkeypatch, place, error) -> None:
    monkeypatch.setattr(place, Mock(side_effect=error))
    if "gettempdir" in place:
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(KernelError, match=str(error.args[-1])):
        build.load_library("decode.c", torch.float32)


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("has_cache", [True, False])
def test_what_a_killed_build_leaves_is_swept_by_the_next(cache, tmp_path, monkeypatch, has_cache) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    if not has_cache:
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    started = tmp_path / "started"
    script = f"touch half.s; echo $$ > {started}.new; mv {started}.new {started}; exec sleep 300"
    compiler = write_compiler(tmp_path / "my-cc", script)
    load = "import torch; from burnish.kernels.build import load_library; load_library('decode.c', torch.float32)"
    building = subprocess.Popen([sys.executable, "-c", load], env=os.environ | {"CC": compiler})
    try:
        wait_for(lambda: started.exists() or building.poll() is not None, 120)
        assert building.poll() is None
    finally:
        building.kill()
        building.wait()
    os.kill(int(started.read_text()), signal.SIGKILL)
    place = cache if has_cache else temporary
    assert [entry.name for entry in place.glob("*/half.s")] == ["half.s"]
    assert not has_cache or not list(temporary.iterdir())
    build.load_library("decode.c", torch.float32)
    assert not list(place.glob(f"{PREFIX}*"))
    assert not list(temporary.iterdir())


@pytest.mark.compiler
@pytest.mark.usefixtures("cache")
def test_types_without_code_are_refused() -> None:
    with pytest.raises(KernelError, match="no kernels for"):
        build.load_library("decode.c", torch.float64)
