"""Which paths are reported: those that a run takes, tried as it tries them."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from burnish.cli.doctor import paths
from burnish.cli.doctor.examination import Report
from burnish.cli.doctor.paths import of_paths
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig, RunConfig
from burnish.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("own_timings")


@pytest.fixture
def model(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("0123456789")


def run(model: Path, folder: Path, kind: str = "rl", **more: object) -> RlConfig:
    data = {"model": {"path": str(model), "device": "cpu"}, "data": {"train": "t.jsonl"}, "output": str(folder)}
    if kind == "rl":
        data |= {"rewards": "exact", "steps": 1, "rollout": {"max_prompt_tokens": 8, "max_response_tokens": 8}}
    return load_run_data({**data, **more}, (), kind).config  # type: ignore[arg-type,return-value]


def found(about: RunConfig | Path | None) -> Report:
    report = Report()
    report.add(report.paths, of_paths(about))
    return report


@pytest.mark.slow
@pytest.mark.compiler
def test_a_model_folder_and_timings_that_are_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_TIMING", "on")
    now, before = found(model).paths, found(model).paths
    assert now["model"] == f"{model.name} (float32)"
    assert "training passes" in now
    assert now["training rows"].startswith("packed, attention by")
    assert {text.rpartition(" ")[2] for text in before.values() if "timed" in text} == {"before"}
    assert [text.replace("before", "now") for text in before.values()] == list(now.values())


@pytest.mark.slow
def test_without_a_model_a_small_one_is_tried() -> None:
    report = found(None)
    assert report.paths["model"].startswith("a small Llama")
    assert {"decoding", "float32 products"} <= set(report.paths)
    assert report.problems == []


def test_paths_are_those_of_the_run(model: Path, tmp_path: Path) -> None:
    plain = found(run(model, tmp_path / "run", debug={"plain": True})).paths
    assert plain["training rows"].startswith("padded")
    assert plain["decoding"] == "the model's own pass"
    assert "decoding" not in found(run(model, tmp_path / "sft", "sft", steps=1)).paths
    assert "decoding" not in found(run(model, tmp_path / "rm", "rm", loss="bradley_terry")).paths


def test_a_run_that_has_begun_goes_by_its_record(model: Path, tmp_path: Path) -> None:
    (tmp_path / "paths.json").write_text(json.dumps({"ways": {}}))
    assert found(run(model, tmp_path)).problems == []
    (tmp_path / "paths.json").write_text("{")
    with pytest.raises(CheckpointError, match="which holds the fast paths"):
        found(run(model, tmp_path))


def test_threads_are_those_of_the_run_and_afterwards_as_before(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(paths, "_tried", lambda *_: [("threads", str(torch.get_num_threads()))])
    assert found(run(model, tmp_path / "run", cluster={"threads": before + 1})).paths["threads"] == str(before + 1)
    assert torch.get_num_threads() == before


def test_a_model_that_cannot_be_tried_is_a_problem(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "config.json").write_text('{"model_type": "llama"')
    (problem,) = found(model).problems
    assert (problem.weight, problem.name) == ("problem", "model")
    assert "config.json" in problem.what

    monkeypatch.setattr(paths, "_tried", Mock(side_effect=ZeroDivisionError("in a kernel")))
    (problem,) = found(model).problems
    assert problem.what.endswith("cannot be tried: the trial ended with ZeroDivisionError: in a kernel")


def test_large_and_distant_models_are_not_loaded(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distant = found(run(Path("Qwen/Qwen2.5-0.5B-Instruct"), tmp_path))
    assert "downloads nothing" in distant.paths["not tried"]
    monkeypatch.setattr(paths, "host_memory", lambda: 8000)
    large = found(model)
    assert "more than the 3.1 KiB that a report loads" in large.paths["not tried"]
    assert large.problems == distant.problems == []
