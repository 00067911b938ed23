"""Version, changelog and citation agree, and the pinned versions are complete."""

import re
from datetime import date
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import burnish

GPU_LIBRARIES = ("nvidia-", "cuda-", "triton")
"""What PyTorch's builds for CUDA bring along, each in its own exact version."""


@pytest.fixture(scope="module")
def releases(repository: Path) -> list[tuple[Version, date]]:
    """The versions of the changelog with their days, newest first."""
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.*)$", text, flags=re.M)
    assert heads[0] == "Unreleased"
    found = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)", head) for head in heads[1:]]
    assert all(found), heads
    return [(Version(match[1]), date.fromisoformat(match[2])) for match in found if match]


@pytest.fixture(scope="module")
def citation(repository: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((repository / "CITATION.cff").read_text(encoding="utf-8"))
    return data


def test_the_newest_release_is_this_version(releases: list[tuple[Version, date]]) -> None:
    assert releases[0][0] == Version(burnish.__version__)
    assert releases == sorted(releases, reverse=True)
    assert len({version for version, _ in releases}) == len(releases)


def test_changes_are_under_the_usual_heads(repository: Path) -> None:
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = set(re.findall(r"^### (.*)$", text, flags=re.M))
    assert heads <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_version_has_one_home(pyproject: dict[str, Any]) -> None:
    assert "version" not in pyproject["project"]
    assert "version" in pyproject["project"]["dynamic"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "burnish.__version__"}


def test_the_citation_is_that_of_this_version(
    citation: dict[str, Any], releases: list[tuple[Version, date]], pyproject: dict[str, Any]
) -> None:
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == burnish.__version__
    assert citation["date-released"] == releases[0][1]
    assert citation["license"] == pyproject["project"]["license"]
    assert citation["repository-code"] == pyproject["project"]["urls"]["Repository"]


def test_every_package_that_make_installs_is_pinned(repository: Path, pyproject: dict[str, Any]) -> None:
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    pinned = {canonicalize_name(name) for name, _ in pins}
    assert len(pinned) == len(pins)
    needed = closure(pyproject["project"], ("dev", "instructions", "json-schema"))
    assert {"torch", "mkdocs-material", "pytest"} <= needed
    assert needed <= pinned, sorted(needed - pinned)


def closure(project: dict[str, Any], extras: tuple[str, ...]) -> set[str]:
    """Names of all packages that the project with these extras brings to this machine, read from what is installed."""
    todo = [Requirement(line) for line in project["dependencies"]]
    todo += [Requirement(line) for extra in extras for line in project["optional-dependencies"][extra]]
    seen: set[str] = set()
    names: set[str] = set()
    while todo:
        requirement = todo.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        name = canonicalize_name(requirement.name)
        if name == project["name"]:  # an extra that is part of another one
            todo += [
                Requirement(line) for extra in requirement.extras for line in project["optional-dependencies"][extra]
            ]
        elif not name.startswith(GPU_LIBRARIES):
            names.add(name)
            todo += requirements_of(requirement)
    return names


def requirements_of(requirement: Requirement) -> list[Requirement]:
    """What this package needs here in its turn, extras included."""
    try:
        lines = distribution(requirement.name).requires or []
    except PackageNotFoundError:
        pytest.skip(f"{requirement} is not installed: make check brings what the checks need")
    found = [Requirement(line) for line in lines]
    environments = [{"extra": extra} for extra in ("", *requirement.extras)]
    return [needed for needed in found if needed.marker is None or any(map(needed.marker.evaluate, environments))]


def test_the_versions_of_python_are_the_same_everywhere(repository: Path, pyproject: dict[str, Any]) -> None:
    """The classifiers, the tested versions and the lowest one that is let in."""
    classifiers = pyproject["project"]["classifiers"]
    named = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(classifiers), flags=re.M)
    workflow = yaml.safe_load((repository / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert pyproject["project"]["requires-python"] == f">={named[0]}"
    assert pyproject["tool"]["mypy"]["python_version"] == named[0]
