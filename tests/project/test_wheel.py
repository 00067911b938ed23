"""The wheel holds all of the package, and runs where there is no repository."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import burnish

pytestmark = pytest.mark.slow  # building it takes seconds


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make wheel` does it, from a copy: setuptools would pack what an earlier build has left."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(repository / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, copy / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(copy / "dist")]
    run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], cwd=copy)
    [built] = (copy / "dist").glob("*.whl")
    return built


def run(command: Sequence[str], *, cwd: Path, seconds: float = 600, **variables: str) -> str:
    """Standard output of a command without this process's module path. Fails with all that it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=environment | variables, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def test_the_wheel_holds_every_file_of_the_package(repository: Path, wheel: Path) -> None:
    """Code and everything else: C sources, the report's page, the mark that there are types."""
    source = repository / "src"
    files = {
        str(path.relative_to(source))
        for path in (source / "burnish").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {".py", ".c", ".h", ".html", ".css", ".js", ".typed"} <= {Path(name).suffix for name in files}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == files


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    folder = f"burnish-{burnish.__version__}.dist-info"
    metadata = archive.read(f"{folder}/METADATA").decode()
    assert f"\nVersion: {burnish.__version__}\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    assert "burnish = burnish.cli:main" in archive.read(f"{folder}/entry_points.txt").decode()
    assert archive.read(f"{folder}/licenses/LICENSE")


WATCH = """
import os, sys

def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        if os.path.realpath(arguments[0]).startswith({repository!r}):
            os.write(log, (arguments[0] + "\\n").encode())

log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(note)
"""
"""Runs in every Python of the new environment, and writes down each file of the repository that is opened."""


@dataclass(frozen=True)
class Elsewhere:
    """An environment with the wheel, a folder to work in, and the list of the repository's files that were opened."""

    bin: Path
    folder: Path
    log: Path

    def run(self, *command: str, seconds: float = 600) -> str:
        program, *words = command
        return run([str(self.bin / program), *words], cwd=self.folder, seconds=seconds, COLUMNS="200")

    def opened(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture(scope="module")
def elsewhere(repository: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    """The wheel with the pinned versions, PyTorch first so that no other build of it comes along. Skips without a
    package index."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run([sys.executable, "-m", "venv", str(folder / "venv")], cwd=folder)
    place = Elsewhere(folder / "venv" / "bin", folder, folder / "opened.txt")
    pins = folder / "constraints.txt"
    shutil.copy(repository / "constraints.txt", pins)
    install = [str(place.bin / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(pins)]
    probe = subprocess.run(
        [*install, "--retries", "1", "typing_extensions"], capture_output=True, text=True, cwd=folder
    )
    if probe.returncode:
        pytest.skip(f"no package can be installed here: {probe.stderr[-300:]}")
    run([*install, "torch==2.13.0"], cwd=folder, seconds=1800)
    run([*install, str(wheel)], cwd=folder, seconds=1800)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "watch_repository.py").write_text(WATCH.format(repository=str(repository), log=str(place.log)))
    (packages / "watch_repository.pth").write_text("import watch_repository\n")
    return place


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_the_demo_runs_from_the_wheel_alone(elsewhere: Elsewhere, repository: Path) -> None:
    assert elsewhere.run("burnish", "--version").split() == ["burnish", burnish.__version__]
    elsewhere.run("python", "-m", "pip", "check")
    where = elsewhere.run("python", "-c", "import burnish; print(burnish.__file__)").strip()
    assert Path(where).is_relative_to(elsewhere.folder)

    elsewhere.run("burnish", "demo", "--output", "demo", seconds=1800)
    rows = [json.loads(line) for line in (elsewhere.folder / "demo/rl/metrics.jsonl").read_text().splitlines()]
    accuracies = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    assert accuracies[0] <= 0.65
    assert accuracies[-1] >= 0.95
    assert "Held-out accuracy" in (elsewhere.folder / "demo/rl/report.html").read_text(encoding="utf-8")
    assert elsewhere.opened() == []

    elsewhere.run("python", "-c", f"open({str(repository / 'README.md')!r})")  # the watch does see
    assert elsewhere.opened() == [str(repository / "README.md")]
