"""Choices by made-up times; that real ways agree stands where they are."""

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from burnish.config.schema_data import ModelConfig
from burnish.forward.fast_paths import FastPaths
from burnish.forward.kernel_layers import uses_layer_kernels
from burnish.forward.matmul_choice import bfloat16_note
from burnish.forward.probe import use_layer_kernels
from burnish.forward.race import Contender, RaceResult
from burnish.forward.verdicts import VerdictCache
from burnish.machine.matmul_precision import matmul_precision
from burnish.models.loading import load_model


class Stopwatch:
    """In place of a race: the times given, by name of the way."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = {name.replace("_", " "): value for name, value in seconds.items()}
        self.asked = 0

    def __call__(self, ways: Sequence[Contender]) -> RaceResult:
        self.asked += 1
        seconds = {way.name: self.seconds[way.name] for way in ways}
        return RaceResult(min(seconds, key=seconds.__getitem__), seconds)


def ways(*names: str) -> list[Contender]:
    return [Contender(name, lambda: None) for name in names]


def paths(watch: Stopwatch, recorded: dict[str, str] | None = None, cache: VerdictCache | None = None) -> FastPaths:
    return FastPaths(recorded, cache=cache or VerdictCache(None), timed=True, run_race=watch)


def test_a_fast_path_that_is_slower_here_is_not_taken() -> None:
    slower = paths(Stopwatch(kernels=2.0, own=1.0))
    assert slower.choose("decoding", "8 x 8", ways("kernels", "own")) == "own"
    assert slower.lines() == ["fast paths: decoding by own (kernels: 100 % slower here); timed now"]
    faster = paths(Stopwatch(kernels=1.0, own=1.6))
    assert faster.choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    assert faster.lines() == ["fast paths: decoding by kernels (1.60x own); timed now"]


def test_a_verdict_is_found_again_for_the_same_question_only() -> None:
    cache = VerdictCache(None)
    watch = Stopwatch(kernels=1.0, own=2.0, fused=3.0)
    for _ in range(2):
        assert paths(watch, cache=cache).choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    assert watch.asked == 1
    turned = Stopwatch(kernels=2.0, own=1.0, fused=3.0)
    assert paths(turned, cache=cache).choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    assert paths(turned, cache=cache).choose("decoding", "8 x 9", ways("kernels", "own")) == "own"
    assert paths(turned, cache=cache).choose("training", "8 x 8", ways("kernels", "own")) == "own"
    assert paths(turned, cache=cache).choose("decoding", "8 x 8", ways("kernels", "fused", "own")) == "own"


def test_what_is_switched_off_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, watch = VerdictCache(None), Stopwatch(kernels=1.0, own=2.0)
    paths(watch, cache=cache).choose("training", "8 x 8", ways("kernels", "own"))
    monkeypatch.setenv("BURNISH_WITHOUT", "onednn")
    paths(watch, cache=cache).choose("training", "8 x 8", ways("kernels", "own"))
    with matmul_precision("medium"):
        paths(watch, cache=cache).choose("training", "8 x 8", ways("kernels", "own"))
    assert watch.asked == 3


def test_a_second_model_of_a_shape_takes_what_the_first_took() -> None:
    """Both have one entry in the record, by which a resumed run goes on with both."""
    watch = Stopwatch(kernels=1.0, own=2.0)
    both = paths(watch)
    assert both.choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    watch.seconds = {"kernels": 2.0, "own": 1.0}
    with matmul_precision("medium"):  # times it anew
        assert both.choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    assert watch.asked == 2
    assert both.choose("decoding", "8 x 8", ways("own")) == "own"  # unless it cannot
    assert both.notes == []


def test_a_run_says_whether_it_has_timed_or_knew(tmp_path: Path) -> None:
    first, second = (paths(Stopwatch(kernels=1.0, own=2.0), cache=VerdictCache(tmp_path)) for _ in range(2))
    assert first.choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    assert second.choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    assert first.lines() == ["fast paths: decoding by kernels (2.00x own); timed now"]
    assert second.lines() == ["fast paths: decoding by kernels (2.00x own); timed before"]
    second.choose("training", "8 x 8", ways("kernels", "own"))
    assert second.lines()[0].endswith("; timed now: training; the others timed before")
    assert [choice.timed for choice in second.choices] == ["before", "now"]
    second.choose("training", "8 x 8", ways("kernels", "own"))  # asked again by this start
    assert [choice.timed for choice in second.choices] == ["before", "now"]
    second.choose("packing", "8 x 8", ways("own"))
    assert second.choices[-1].timed is None


def test_a_resumed_run_goes_on_as_it_began() -> None:
    began = paths(Stopwatch(kernels=2.0, own=1.0))
    began.choose("decoding", "8 x 8", ways("kernels", "own"))
    resumed = paths(Stopwatch(kernels=1.0, own=2.0), began.record())
    assert resumed.choose("decoding", "8 x 8", ways("kernels", "own")) == "own"
    assert resumed.record() == began.record() == {"decoding (8 x 8)": "own"}
    assert resumed.lines() == [
        "fast paths: decoding by own (kernels: only 50 % faster here, as the run began); timed now"
    ]
    assert resumed.choose("decoding", "9 x 9", ways("kernels", "own")) == "kernels"  # of another model


def test_a_run_that_cannot_go_on_as_it_began_says_so() -> None:
    resumed = paths(Stopwatch(), {"decoding (8 x 8)": "kernels"})
    assert resumed.choose("decoding", "8 x 8", ways("own")) == "own"
    assert resumed.lines()[1] == (
        "this run began with decoding by kernels, and goes on with own: its numbers will differ in the last bits from "
        "those of an undisturbed run"
    )
    assert resumed.record() == {"decoding (8 x 8)": "own"}


def test_what_is_required_is_taken_and_said_to_be_slower() -> None:
    slower = paths(Stopwatch(kernels=1.25, own=1.0))
    assert slower.choose("decoding", "8 x 8", ways("kernels", "own"), required="kernels") == "kernels"
    assert slower.lines() == ["fast paths: decoding by kernels (0.80x own, required); timed now"]


def test_without_timing_the_first_is_taken() -> None:
    untimed = FastPaths(timed=False, run_race=Stopwatch())
    assert untimed.choose("decoding", "8 x 8", ways("kernels", "own")) == "kernels"
    assert untimed.lines() == ["fast paths: decoding by kernels"]
    assert FastPaths(timed=False).lines() == []


def broken() -> None:
    raise RuntimeError("bf16 path needs\n the cpu support")


def test_a_way_that_fails_is_left_out_and_told_and_tried_again_next_time() -> None:
    cache, watch = VerdictCache(None), Stopwatch(fused=1.0, own=2.0)
    three = [Contender("kernels", broken), *ways("fused", "own")]
    for _ in range(2):
        chosen = paths(watch, cache=cache)
        assert chosen.choose("decoding", "8 x 8", three) == "fused"
        assert chosen.lines()[1] == (
            "decoding without kernels: the trial ended with RuntimeError: bf16 path needs the cpu support"
        )
    assert watch.asked == 2
    two = paths(watch, {"decoding (8 x 8)": "kernels"}, cache)
    assert two.choose("decoding", "8 x 8", [Contender("kernels", broken), *ways("own")]) == "own"
    assert "began with decoding by kernels" in two.lines()[2]


@pytest.mark.slow
def test_a_bfloat16_model_is_told_where_float32_is_faster(load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BURNISH_WITHOUT", raising=False)
    model = load("llama", dtype="bfloat16").model
    note = bfloat16_note(model, paths(Stopwatch(bfloat16=9.0, float32=1.0)))
    assert "take 9 times as long as those of float32; set model.dtype: float32" in note
    assert bfloat16_note(model, paths(Stopwatch(bfloat16=1.0, float32=2.0))) is None
    assert bfloat16_note(load("llama").model, paths(Stopwatch())) is None
    monkeypatch.setenv("BURNISH_WITHOUT", "bfloat16")  # nothing is timed: as the processor is described
    assert "bfloat16 is emulated" in "".join(load("llama", dtype="bfloat16").notes)


@pytest.mark.compiler
@pytest.mark.parametrize(("kernels", "own", "taken"), [(1.0, 2.0, True), (2.0, 1.0, False)])
def test_layers_keep_kernels_only_where_they_are_faster(load, kernels: float, own: float, taken: bool) -> None:
    watch = Stopwatch(**{"C kernels": kernels, "the model's own layers": own})
    config = load_config(load)
    loaded = load_model(config, paths=paths(watch))
    assert uses_layer_kernels(loaded.model) is taken
    assert len(loaded.model.model.layers) == loaded.model.config.num_hidden_layers
    required = load_model(config.model_copy(update={"kernels": "required"}), paths=paths(watch))
    assert uses_layer_kernels(required.model)


def load_config(load) -> ModelConfig:
    return ModelConfig(path=load("llama").model.name_or_path, device="cpu")


@pytest.mark.compiler
@pytest.mark.parametrize("error", [RuntimeError, ZeroDivisionError, OSError])
def test_whatever_the_trial_of_kernels_raises_is_a_no(load, error: type[Exception], monkeypatch) -> None:
    monkeypatch.setattr(
        "burnish.forward.probe.set_layer_kernels", Mock(side_effect=error("this processor knows no such instruction"))
    )
    loaded = load("llama")
    assert not uses_layer_kernels(loaded.model)
    assert f"the trial ended with {error.__name__}: this processor knows no such instruction" in loaded.notes[-1]
    notes: list[str] = []
    assert not use_layer_kernels(loaded.model, notes)
    assert len(notes) == 1


def test_a_run_that_began_without_kernels_goes_on_without(load) -> None:
    """It had no compiler, or `model.kernels: off`; then there is one. And the other way round it is told."""
    config = load_config(load)
    began = FastPaths(timed=False)
    load_model(config.model_copy(update={"kernels": "off"}), paths=began)
    resumed = FastPaths(began.record(), timed=False)
    assert not uses_layer_kernels(load_model(config, paths=resumed).model)
    assert "began" not in " ".join(resumed.notes)
    told = FastPaths({entry: "C kernels" for entry in began.record()}, timed=False)
    load_model(config.model_copy(update={"kernels": "off"}), paths=told)
    assert "this run began with training passes by C kernels, and goes on with the model's own layers" in told.notes[0]
