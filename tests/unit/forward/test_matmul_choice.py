from unittest.mock import Mock

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.forward import matmul_choice
from burnish.forward.attention import set_packed_attention
from burnish.forward.fast_paths import FastPaths
from burnish.forward.matmul_choice import fast_float32, rms_error
from burnish.forward.race import RaceResult
from burnish.forward.verdicts import VerdictCache
from burnish.machine.matmul_precision import usual_float32

MEDIUM_IS_ACCURATE = matmul_choice.medium_is_accurate


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, with accurate products, whatever else is turned off."""
    monkeypatch.delenv("BURNISH_WITHOUT", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(matmul_choice, "medium_is_accurate", lambda: True)


def build(hidden: int) -> LlamaForCausalLM:
    shape = {"num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8}
    return LlamaForCausalLM(LlamaConfig(hidden_size=hidden, **shape))


def precision_inside(model: LlamaForCausalLM, **fields: bool) -> str:
    with fast_float32(model, **fields) as is_fast:
        inside = torch.get_float32_matmul_precision()
    assert is_fast == (inside == "medium")
    assert torch.get_float32_matmul_precision() == "highest"
    return inside


@pytest.mark.parametrize(("error", "precision"), [(5e-7, "medium"), (2e-3, "highest")], ids=["as accurate", "bfloat16"])
def test_taken_only_where_it_is_as_accurate(error: float, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_choice, "medium_is_accurate", MEDIUM_IS_ACCURATE)
    monkeypatch.setattr(matmul_choice, "rms_error", {"highest": 3e-7, "medium": error}.__getitem__)
    assert precision_inside(build(512)) == precision


def test_narrow_models_take_it_where_their_rows_are_packed_and_rounded() -> None:
    model = build(128)
    assert precision_inside(model) == "highest"  # padded rows have ever new shapes
    assert set_packed_attention(model, "merged")
    assert precision_inside(model) == "medium"
    with torch.device("meta"):
        assert precision_inside(build(128)) == "medium"  # it stands for one elsewhere
    narrower = build(124)
    assert set_packed_attention(narrower, "merged")
    assert precision_inside(narrower) == "highest"
    model.config.model_type = "of another family"
    assert precision_inside(model) == "highest"


def test_not_for_small_or_plain_or_bf16_models_or_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision_inside(build(512)) == "medium"
    assert precision_inside(build(256)) == "highest"
    assert precision_inside(build(512), plain=True) == "highest"
    assert precision_inside(build(512).bfloat16()) == "highest"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert precision_inside(build(512)) == "highest"


def test_given_back_when_the_run_fails() -> None:
    with pytest.raises(RuntimeError, match="stopped"), fast_float32(build(512)):
        raise RuntimeError("stopped")
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_usual_product_is_a_float32_one() -> None:
    assert 1e-8 < rms_error("highest") < 2e-6


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_attention_keeps_the_usual_product(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        with usual_float32():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("medium", "expected"), [(1.0, "medium"), (1.13, "highest")])
def test_taken_only_where_it_is_faster(medium: float, expected: str) -> None:
    outcome = RaceResult(expected, {"medium": medium, "highest": 1.0 if medium > 1 else 2.0})
    paths = FastPaths(cache=VerdictCache(None), timed=True, run_race=lambda _: outcome)
    with fast_float32(build(512), paths=paths):
        assert torch.get_float32_matmul_precision() == expected
    assert f"float32 products by {expected}" in paths.lines()[0]
    if expected == "highest":
        assert "medium: 13 % slower here" in paths.lines()[0]


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_WITHOUT", "medium_float32")
    assert precision_inside(build(512)) == "highest"


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_the_pass_that_is_timed_gives_the_precision_back(precision: str) -> None:
    matmul_choice._linear_pass(precision, 8)
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_measurement_that_fails_is_a_no_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_choice, "medium_is_accurate", Mock(side_effect=RuntimeError("no such instruction")))
    paths = FastPaths(timed=False)
    with fast_float32(build(512), paths=paths) as is_fast:
        assert not is_fast
    assert paths.notes == ["float32 products without medium: the trial ended with RuntimeError: no such instruction"]
