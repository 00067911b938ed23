from __future__ import annotations

from pathlib import Path

import pytest

from burnish.doctor import examination
from burnish.doctor.examination import examine, find_sandbox, nearest_folder
from burnish.doctor.versions import find_versions
from burnish.errors import SandboxError
from burnish.sandbox import sandbox, trial
from burnish.sandbox.trial import Attack


class Opened:
    """In place of a sandbox; `namespaces` is refused here."""

    def __init__(self, tier: str) -> None:
        if tier == "namespaces":
            raise SandboxError("the tier is not allowed: Operation not permitted", remedy="run elsewhere")
        self.tier = tier

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *exception: object) -> None: ...


def test_the_sandbox_by_its_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "Sandbox", Opened)
    refused = {"namespaces": "the tier is not allowed: Operation not permitted"}
    monkeypatch.setattr(trial, "attack", lambda opened: [Attack("reads a file", True)])
    found = find_sandbox(attacks=True)
    assert (found.auto, found.attacked) == ("landlock", True)
    assert found.tiers == {**refused, "landlock": None}
    monkeypatch.setattr(trial, "attack", lambda opened: [Attack("reads a file", False)])
    found = find_sandbox(attacks=True)
    assert found.auto is None
    assert found.tiers == {**refused, "landlock": "does not hold: reads a file"}
    assert find_sandbox(attacks=False).auto == "landlock"


def test_the_folder_of_a_run_that_is_still_to_be_made(tmp_path: Path) -> None:
    assert nearest_folder(tmp_path / "runs" / "first") == tmp_path
    assert nearest_folder(tmp_path) == tmp_path


def test_without_pytorch_the_rest_is_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    broken = replace(find_versions(), broken={"torch": "OSError: no libcudart"})
    monkeypatch.setattr(examination, "find_versions", lambda: broken)
    monkeypatch.setattr(examination, "find_sandbox", lambda *, attacks: find_sandbox(attacks=False))
    facts = examine()
    assert facts.kernels is facts.rates is facts.paths is facts.gpus is None
    assert facts.processor.threads is None
    assert facts.storage
