from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from burnish.doctor.versions import EXTRAS, PACKAGES, find_versions, version_of

REPOSITORY = Path(__file__).resolve().parents[3]
OF_DEVELOPERS = {"dev", "site", "notebook"}


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = {name: words for name, words in project["optional-dependencies"].items() if name not in OF_DEVELOPERS}
    assert set(EXTRAS) == set(declared)
    for name, (packages, _) in EXTRAS.items():
        assert list(packages) == [word.partition(">=")[0] for word in declared[name]]
    needed = {word.partition(">=")[0] for word in project["dependencies"]}
    assert set(PACKAGES) - needed == {"tokenizers"}  # which transformers brings


def test_versions_are_the_installed_ones() -> None:
    import torch

    found = find_versions()
    assert found.packages["torch"] is not None
    assert torch.__version__.startswith(found.packages["torch"].partition("+")[0])
    assert found.broken == {}
    assert version_of("no-such-package") is None


def test_a_package_that_does_not_load_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open\nshared object file")
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", fail)
    assert find_versions().broken == {
        "torch": "OSError: libcudart.so.12: cannot open shared object file",
        "transformers": "ModuleNotFoundError: No module named 'transformers'",
    }
