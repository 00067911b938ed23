from __future__ import annotations

from pathlib import Path

import pytest

from burnish.doctor import compiling
from burnish.doctor.compiling import find_kernels, forget_timings
from burnish.errors import KernelError
from burnish.forward.race import RaceResult
from burnish.forward.verdicts import own_cache
from burnish.kernels import build
from burnish.kernels.build import SOURCES


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own_cache.cache_clear()
    yield tmp_path / "cache"
    own_cache.cache_clear()


def compiler(folder: Path, script: str) -> str:
    file = folder / "my cc"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return f"'{file}' -O1"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such")
    found = find_kernels(builds=True)
    assert (found.compiler, found.version, found.built) == (None, None, None)
    assert found.problem == "CC names 'no-such', which does not exist"
    assert found.remedy == "install one, such as the package gcc"


def test_a_compiler_that_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    script = 'if [ "$2" = --version ]; then echo "mycc 1.0"; echo more; else echo "error: out of order" >&2; exit 1; fi'
    monkeypatch.setenv("CC", compiler(tmp_path, script))
    found = find_kernels(builds=True)
    assert (found.compiler, found.version, found.built) == ("my cc", "mycc 1.0", False)
    assert found.problem is not None
    assert found.problem.endswith("failed: error: out of order")
    quick = find_kernels(builds=False)
    assert (quick.version, quick.built, quick.problem) == ("mycc 1.0", None, None)


def test_a_compiler_that_does_not_say_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler(tmp_path, "echo 'error: no licence' >&2; exit 3"))
    found = find_kernels(builds=True)
    assert (found.compiler, found.version) == ("my cc", None)
    assert found.problem is not None
    assert "no licence" in found.problem


@pytest.mark.compiler
def test_a_compiler_that_builds(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    own_cache().keep({"path": "decoding"}, RaceResult("own", {"own": 1.0}))
    found = find_kernels(builds=True)
    assert (found.built, found.problem) == (True, None)
    assert (found.cache, found.cache_problem) == ("burnish in XDG_CACHE_HOME", None)
    assert (found.libraries, found.timings) == (len(SOURCES), 1)


def test_all_sources_are_built() -> None:
    assert set(SOURCES) == {path.name for path in Path(build.__file__).parent.glob("*.c")}


def test_a_cache_that_others_may_write(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_folder.mkdir()
    own_folder.chmod(0o777)
    found = find_kernels(builds=False)
    assert found.cache_problem is not None
    assert found.libraries == 0


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "cache_folder", lambda: None)
    found = find_kernels(builds=False)
    assert (found.cache, found.cache_problem, found.libraries) == (None, None, 0)


def test_errors_of_the_build_are_the_kernels_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KernelError("built for another processor", remedy="remove -march")

    monkeypatch.setattr(compiling, "find_compilers", lambda: [["gcc"]])
    monkeypatch.setattr(compiling, "compiler_version", lambda command: b"gcc 12\n")
    monkeypatch.setattr(compiling, "load_library", fail)
    found = find_kernels(builds=True)
    assert (found.built, found.problem, found.remedy) == (False, "built for another processor", "remove -march")


def test_timings_that_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    own_cache().keep({"path": "decoding"}, RaceResult("own", {"own": 1.0}))
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(KernelError, match="cannot be removed: Permission denied"):
        forget_timings()
