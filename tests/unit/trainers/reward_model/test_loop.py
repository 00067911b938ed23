"""`burnish rm` end to end on a preference with a known rule; resume, normalisation, reports."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from runs import ctrl_c_in_step, preference_run, untimed_rows
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from burnish.api.run import run_config
from burnish.board.report import write_report
from burnish.config.loading import load_run_data
from burnish.config.schema import RmConfig
from burnish.config.schema_data import ModelConfig
from burnish.data.preference_tokens import PreferenceExample
from burnish.data.preferences import PreferenceSet
from burnish.errors import BurnishError, ConfigError, DivergenceError
from burnish.models.reward_model import load_reward_model
from burnish.trainers.interrupt import StopRequest
from burnish.trainers.outer_loop import run_loop
from burnish.trainers.result import RunResult
from burnish.trainers.reward_model.loop import RmRun, evaluated_comparisons, open_rm_run, train_reward_model

QUIET = Console(quiet=True)
NORMALISES = ("normalization.kind=gain_bias", "normalization.responses=8", "normalization.max_response_tokens=6")


@pytest.fixture(scope="module")
def model(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("abcdefgh?", hidden_size=32, intermediate_size=64)


@pytest.fixture
def rm_run(model: Path, tmp_path: Path) -> Callable[..., RmConfig]:
    def build(*overrides: str, pairs: int = 96, **fields: Any) -> RmConfig:
        own = {"optimization": {"learning_rate": 1e-2, "comparisons_per_batch": 16}, **fields}
        data = preference_run(model, tmp_path, pairs) | own
        return load_run_data(data, list(overrides), "rm").config

    return build


def assert_alike(whole: RunResult, again: RunResult) -> None:
    """The metrics without times, and the weights, are the same bits."""
    assert untimed_rows(again.folder) == untimed_rows(whole.folder)
    first, second = (load_file(result.weights / "model.safetensors") for result in (whole, again))
    assert all(bool((first[name] == second[name]).all()) for name in first)


@pytest.mark.slow
def test_a_run_writes_what_both_libraries_load(rm_run: Callable[..., RmConfig]) -> None:
    config = rm_run()
    result = train_reward_model(config, console=QUIET)
    rows = untimed_rows(config.output)
    assert result.step == 6  # 96 / 16
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert rows[-1]["rm/learning_rate"] == pytest.approx(1e-2 / 6)  # linear to 0
    assert sum(row["train/comparisons"] for row in rows[1:]) == 96
    for name in ("eval/accuracy", "eval/accuracy_low", "eval/calibration_error", "eval/length_correlation"):
        assert name in rows[0]
        assert name in rows[3]
        assert name not in rows[2]
    assert AutoModelForSequenceClassification.from_pretrained(result.weights).config.num_labels == 1
    assert load_reward_model(ModelConfig(path=str(result.weights), device="cpu")).normalization.gain == 1.0
    histogram = json.loads((result.folder / "score_histogram.json").read_text())
    assert sum(histogram["best"]) == sum(histogram["others"]) == 64
    page = write_report(result.folder).read_text()
    assert "Calibration error" in page
    assert "Held-out scores" in page


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["true", "false"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(rm_run, tmp_path: Path, trainable: str) -> None:
    words = (*NORMALISES, f"normalization.trainable={trainable}")
    whole = train_reward_model(rm_run(*words, f"output={tmp_path / 'whole'}"), console=QUIET)
    config = rm_run(*words)
    with ctrl_c_in_step(3):
        assert train_reward_model(config, console=QUIET).step == 3
    again = train_reward_model(config, console=QUIET)
    assert_alike(whole, again)
    saved, resaved = (folder / "burnish_reward_model.json" for folder in (whole.weights, again.weights))
    assert saved.read_text() == resaved.read_text()


@pytest.mark.slow_cases("policy")
@pytest.mark.parametrize("on", ["policy", "references"])
def test_normalisation_ends_at_mean_0(on: str, rm_run: Callable[..., RmConfig]) -> None:
    words = ["normalization.kind=bias"] if on == "references" else [NORMALISES[0], NORMALISES[2]]
    with open_rm_run(rm_run(f"normalization.on={on}", "normalization.responses=32", *words), QUIET) as run:
        run_loop(run, StopRequest())
        scores = run.learner.score(run.measure.pairs())
        assert len(scores) == 32
        mean = sum(scores) / 32
        assert mean == pytest.approx(0, abs=1e-5)
        if on == "policy":
            assert sum((score - mean) ** 2 for score in scores) / 32 == pytest.approx(1, abs=1e-4)
        else:
            assert run.learner.model.normalization.gain == 1.0


def test_a_split_replaces_a_held_out_file(rm_run: Callable[..., RmConfig]) -> None:
    config = rm_run("held_out_fraction=0.25", "data.eval=[]")
    train_reward_model(config, console=QUIET)
    rows = untimed_rows(config.output)
    assert 0 < rows[0]["eval/comparisons"] < 96
    assert rows[0]["eval/comparisons"] + sum(row["train/comparisons"] for row in rows[1:]) == 96
    with pytest.raises(ConfigError, match=r"0\.25 before, 0\.5 now, which holds out other comparisons"):
        run_config(Path(config.output), ["held_out_fraction=0.5"])


def test_candidates_train_with_best_of(rm_run: Callable[..., RmConfig], tmp_path: Path) -> None:
    rows = [{"prompt": "b?", "responses": ["bc", "aa", "cd", "ef"], "best": 1}] * 8
    file = tmp_path / "four.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = (f"data.train={file}", f"data.eval={file}")
    with pytest.raises(ConfigError, match=r"also training data"):
        rm_run(*words)
    config = rm_run(f"data.train={file}", "data.eval=[]", "evaluation.every_steps=null", "loss=best_of", "steps=8")
    train_reward_model(config, console=QUIET)
    assert untimed_rows(config.output)[-1]["train/accuracy"] == 1.0
    pairs = config.model_copy(update={"loss": "bradley_terry", "output": str(tmp_path / "b")})
    with pytest.raises(ConfigError, match=r"4 candidates.*\n.*loss: best_of"):
        train_reward_model(pairs, console=QUIET)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("candidates=4", "loss bradley_terry compares two"),
        ("score_at=last_position", "response_length is None"),
        ("held_out_fraction=0.1", "data.eval already names held-out data"),
    ],
)
def test_contradictions_are_found_before_anything_loads(word: str, message: str, rm_run) -> None:
    with pytest.raises(ConfigError, match=message):
        rm_run(word)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["margins=true"], r"train.jsonl:1: the comparison has no margin, but margins is true"),
        (["score_at=last_position", "response_length=1"], r"train.jsonl:1: a response has \d+ tokens, .* read at 1\n"),
        (["label_pad_token_id=3"], "label_pad_token_id is 3, but no source of the data holds token ids"),
        (["optimization.warmup_steps=7"], "warmup_steps is 7, but the run makes 6 optimizer steps"),
    ],
)
def test_settings_that_the_data_do_not_fit(words: list[str], message: str, rm_run: Callable[..., RmConfig]) -> None:
    with pytest.raises(BurnishError, match=message):
        train_reward_model(rm_run(*words), console=QUIET)


@pytest.mark.slow
def test_a_known_rule_is_learned(rm_run: Callable[..., RmConfig]) -> None:
    rarely = ("evaluation.every_steps=null", "checkpoint.every_steps=null")
    config = rm_run("optimization.epochs=3", "optimization.learning_rate=5e-3", *rarely, pairs=3000)
    train_reward_model(config, console=QUIET)
    last = untimed_rows(config.output)[-1]
    assert last["eval/accuracy"] > 0.95
    assert last["eval/length_rule_accuracy"] < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("stopped_at", [3, 6])
def test_an_error_beside_the_updates_loses_no_step_and_normalises_once(rm_run, tmp_path, stopped_at: int) -> None:
    """In the evaluation of step 3, and in that of the last step, which the normalisation comes before."""
    fields: dict[str, Any] = {"checkpoint": {"every_steps": None}}
    whole = train_reward_model(rm_run(*NORMALISES, f"output={tmp_path / 'whole'}", **fields), console=QUIET)
    config, real = rm_run(*NORMALISES, **fields), RmRun.evaluate

    def evaluate(run: RmRun) -> dict[str, float]:
        if run.progress.step == stopped_at:
            raise BurnishError("the evaluation fails")
        return real(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RmRun, "evaluate", evaluate)
        with pytest.raises(BurnishError, match="the evaluation fails"):
            train_reward_model(config, console=QUIET)
    (saved,) = (Path(config.output) / "checkpoints").iterdir()
    assert json.loads((saved / "pending.json").read_text())["normalised"] is (stopped_at == 6)
    assert saved.name == f"step-{stopped_at:06d}"
    again = train_reward_model(config, console=QUIET)
    assert_alike(whole, again)


@pytest.mark.slow
def test_a_run_that_ends_early_is_normalised_and_measured_after_that(rm_run: Callable[..., RmConfig]) -> None:
    rule = "stop_when={metric: eval/accuracy, above: 0}"
    config = rm_run(*NORMALISES, rule, "evaluation.at_start=false")
    result = train_reward_model(config, console=QUIET)
    rows = untimed_rows(config.output)
    assert (result.step, result.stopped, rows[-1]["step"]) == (3, False, 3)
    with open_rm_run(config, QUIET) as run:
        scores = run.learner.score(run.measure.pairs())
        assert sum(scores) / len(scores) == pytest.approx(0, abs=1e-5)
        assert run.evaluate()["eval/score_mean"] == pytest.approx(rows[-1]["eval/score_mean"], abs=1e-6)


@pytest.mark.slow
def test_what_normalises_is_looked_at_before_the_first_step(rm_run, model, save_tiny_llama, tmp_path) -> None:
    def refusal(*overrides: str, **normalization: Any) -> str:
        settings = {"kind": "bias", "before": False, **normalization}
        config = rm_run(*overrides, normalization=settings, output=str(tmp_path / "refused"))
        with pytest.raises(BurnishError) as caught:
            train_reward_model(config, console=QUIET)
        assert not list(tmp_path.glob("refused/checkpoints/*"))
        return str(caught.value)

    assert "no-such.jsonl" in refusal(on="references", references=str(tmp_path / "no-such.jsonl"))
    assert "normalization.policy" in refusal(policy=str(tmp_path / "no-such-folder"))
    other = save_tiny_llama("xyz", hidden_size=32, intermediate_size=64)
    assert "have different tokenizers" in refusal(policy=str(other))
    assert "have different tokenizers" in refusal(f"model.tokenizer={model}", policy=str(other))
    assert "no prompt leaves room" in refusal(max_response_tokens=24)


def test_held_out_comparisons_are_drawn_from_all_data_sets() -> None:
    examples = tuple(
        PreferenceExample(f"{i}", (1,), ((2,), (3,)), 0, tie=i in (3, 150), conversation=f"{i}") for i in range(200)
    )
    heldout = PreferenceSet(examples, source_sizes=(100, 100), weights=(1.0, 1.0))
    config: Any = SimpleNamespace(evaluation=SimpleNamespace(max_prompts=20), seed=3)
    drawn = [int(example.id) for example in evaluated_comparisons(config, heldout)]
    assert len(drawn) == 20
    assert drawn == sorted(set(drawn) - {3, 150})
    assert sum(number < 100 for number in drawn) == 10
    config.evaluation.max_prompts = None
    assert len(evaluated_comparisons(config, heldout)) == 198


def test_scores_that_are_no_numbers_end_the_run_with_a_reason(rm_run: Callable[..., RmConfig]) -> None:
    with open_rm_run(rm_run(), QUIET) as run:
        run.learner.compare = lambda comparisons: [[float("nan"), 1.0]] * len(comparisons)  # type: ignore[method-assign]
        with pytest.raises(DivergenceError, match="held-out scores are not finite"):
            run.evaluate()
