"""Which ways are reported: those that a run takes, tried as it tries them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.doctor import choices
from burnish.doctor.choices import Question, asked_about, find_paths, too_large
from burnish.doctor.compiling import forget_timings
from burnish.forward import verdicts
from burnish.forward.verdicts import own_cache
from burnish.planning.seats import Machine


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kept timings of this test alone."""
    monkeypatch.setattr(verdicts, "cache_folder", lambda: tmp_path / "cache" / "kernels")
    own_cache.cache_clear()
    yield
    own_cache.cache_clear()


@pytest.fixture
def model(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("0123456789")


def run(model: Path, folder: Path, kind: str, **more: object) -> RlConfig:
    data = {"model": {"path": str(model), "device": "cpu"}, "data": {"train": "t.jsonl"}, "output": str(folder)}
    if kind == "rl":
        data |= {"rewards": "exact", "steps": 1, "rollout": {"max_prompt_tokens": 8, "max_response_tokens": 8}}
    return load_run_data({**data, **more}, (), kind).config  # type: ignore[arg-type,return-value]


def test_the_model_of_a_folder(model: Path) -> None:
    found = find_paths(Question.of_folder(model))
    assert found.model.startswith(f"{model.name} (llama, 1 layers of width 16")
    assert found.not_tried is None
    assert found.attention is not None
    assert found.decoder is not None
    ways = {choice.path: choice.way for choice in found.choices}
    assert ways["decoding"] == found.decoder
    assert "training passes" in ways
    assert found.float32 == "highest"


def test_without_a_model_a_small_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_paths(None)
    assert found.model.startswith("a small Llama (llama, 2 layers of width 512")
    assert found.not_tried is None
    assert "decoding" in [choice.path for choice in found.choices]


def test_timings_are_kept_for_a_run_and_can_be_forgotten(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_TIMING", "on")
    first, second = (find_paths(Question.of_folder(model)) for _ in range(2))
    assert {choice.timed for choice in first.choices} <= {"now", None}
    timed = [choice for choice in second.choices if choice.timed is not None]
    assert timed
    assert {choice.timed for choice in timed} == {"before"}
    assert [choice.way for choice in first.choices] == [choice.way for choice in second.choices]
    assert forget_timings() == len(timed)
    assert own_cache().count() == 0


def test_a_question_is_that_of_the_run(model: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "paths.json").write_text(json.dumps({"ways": {"decoding (8 x 8)": "C kernels"}}))
    question = asked_about(run(model, tmp_path / "run", "rl", debug={"plain": True}, seed=3))
    assert question is not None
    assert (question.reach, question.samples, question.plain, question.seed) == (16, True, True, 3)
    assert dict(question.begun) == {"decoding (8 x 8)": "C kernels"}
    assert question.threads == torch.get_num_threads()
    supervised = asked_about(run(model, tmp_path / "sft", "sft", steps=1))
    assert supervised is not None
    assert (supervised.reach, supervised.samples, supervised.head) == (None, False, "language")
    judge = asked_about(run(model, tmp_path / "rm", "rm", loss="bradley_terry"))
    assert judge is not None
    assert (judge.samples, judge.head) == (False, "score")
    assert asked_about(None) is None


def test_the_plain_path_of_a_run_is_padded_and_decodes_by_the_model(model: Path, tmp_path: Path) -> None:
    found = find_paths(asked_about(run(model, tmp_path / "run", "rl", debug={"plain": True})))
    assert found.attention is None
    assert found.decoder == "the model's own pass"


@pytest.mark.compiler
def test_why_no_kernels_are_used_is_a_note(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnish.kernels.attention import attention_kernels
    from burnish.kernels.decoding import decode_kernels
    from burnish.kernels.training import train_kernels

    kinds = (attention_kernels, decode_kernels, train_kernels)
    for kind in kinds:
        kind.cache_clear()
    monkeypatch.setenv("CC", "no-such")
    found = find_paths(Question.of_folder(model))
    for kind in kinds:
        kind.cache_clear()
    assert any("do not use C kernels" in note and "no-such" in note for note in found.notes)
    assert found.decoder == "the model's own pass"
    assert found.attention == "merged"


def test_threads_are_those_of_the_run_and_afterwards_as_before(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(choices, "_tried", lambda question: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    find_paths(asked_about(run(model, tmp_path / "run", "rl", cluster={"threads": before + 1})))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_a_model_that_cannot_be_loaded_is_an_answer(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "llama"')
    found = find_paths(Question.of_folder(model))
    assert found.failed
    assert found.not_tried is not None
    assert "config.json" in found.not_tried


def test_whatever_a_trial_raises_is_an_answer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("in a kernel")

    monkeypatch.setattr(choices, "_tried", fail)
    found = find_paths(Question.of_folder(model))
    assert (found.failed, found.not_tried) == (True, "the trial ended with ZeroDivisionError: in a kernel")


def test_large_and_distant_models_are_not_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = too_large(ModelConfig(path="Qwen/Qwen2.5-0.5B-Instruct"))
    assert reason is not None
    assert "downloads nothing" in reason
    assert too_large(ModelConfig(path=str(model))) is None
    monkeypatch.setattr(choices, "this_machine", lambda: Machine(1, 1, 8000))
    found = find_paths(Question.of_folder(model))
    assert found.not_tried is not None
    assert "more than the 3.1 KiB that a report loads" in found.not_tried
    assert not found.failed
