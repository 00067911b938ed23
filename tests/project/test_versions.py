"""The ranges of versions in pyproject.toml are those that are tested."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]
TESTED_EXTRAS = ("serve", "json-schema", "instructions")
"""Those that come with what the tests need."""


def pins(name: str) -> dict[str, Version]:
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    named = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in named}


def ranges() -> dict[str, Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (text for extra in TESTED_EXTRAS for text in project["optional-dependencies"][extra])
    requirements = map(Requirement, [*project["dependencies"], *extras])
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges() -> None:
    lowest = {
        name: Version(next(part.version for part in requirement.specifier if part.operator == ">="))
        for name, requirement in ranges().items()
    }
    assert pins("constraints-oldest.txt") == lowest


def test_the_versions_of_the_default_tests_are_within_the_ranges() -> None:
    pinned = pins("constraints.txt")
    assert [name for name, requirement in ranges().items() if pinned[name] not in requirement.specifier] == []
