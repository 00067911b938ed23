"""Distillation end to end: a student learns a teacher's distributions; resumed, shared or at rest, it is one run."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import BuildSft, rows_of, trace, trained, trained_rows, write_lines
from transformers import AutoModelForCausalLM, AutoTokenizer

import burnish
from burnish.config.loading import load_run_data
from burnish.config.schema_distill import DistillConfig
from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.models.resting import Resting
from burnish.observability.metric_names import find_metric
from burnish.trainers import distill
from burnish.trainers.distill import is_sampled, train_distill

Build = Callable[..., DistillConfig]


@pytest.fixture
def teacher(tiny_sft: BuildSft, tmp_path: Path, save_tiny_llama: Callable[..., Path]) -> str:
    """A run of another width than the student, after a few steps."""
    wider = save_tiny_llama("0123456789+=", hidden_size=48, intermediate_size=64)
    trained(tiny_sft("steps=6", f"model={wider}", f"output={tmp_path}/teacher"))
    return f"{tmp_path}/teacher@best"


@pytest.fixture
def config(tiny_sft: BuildSft, teacher: str, tmp_path: Path) -> Build:
    """A run file that distills in `tmp_path/NAME`, on the texts of `tiny_sft`."""

    def build(name: str, *overrides: str) -> DistillConfig:
        fields = tiny_sft(f"output={tmp_path}/{name}").model_dump(exclude_unset=True)
        found = load_run_data({"steps": 4, **fields, "teacher": teacher}, overrides, "distill").config
        assert isinstance(found, DistillConfig)
        return found

    return build


def test_a_share_of_steps_is_spread_evenly() -> None:
    assert [step for step in range(1, 11) if is_sampled(step, 0.3)] == [4, 7, 10]
    assert all(is_sampled(step, 1.0) for step in range(1, 5))
    assert not any(is_sampled(step, 0.0) for step in range(1, 5))


@pytest.mark.slow
def test_another_vocabulary_is_refused_with_the_reason(config: Build, save_tiny_llama: Callable[..., Path]) -> None:
    """When the run is planned, and when it begins without a plan."""
    with pytest.raises(ConfigError, match=r"top_k is 100, but the student has \d+ tokens"):
        trained(config("wide", "top_k=100"))
    other = config("run", f"teacher={save_tiny_llama('9876543210+=')}")
    for begin in (lambda: burnish.plan(other.model_dump(exclude_unset=True)), lambda: trained_rows(other)):
        with pytest.raises(ModelError, match=r"different vocabulary from .*: '0' is id \d+ here and id \d+ there"):
            begin()


@pytest.mark.slow
def test_the_measurements_are_those_of_the_full_distributions(config: Build, tmp_path: Path) -> None:
    """Forward KL, agreement and cross entropy of the untrained student on the held-out sums, from all logits."""
    run = config("run", "steps=1", "top_k=null", "evaluation.at_start=true")
    row = trained_rows(run)[0]
    teacher = max((tmp_path / "teacher" / "checkpoints").glob("step-*")) / "policy"
    tokenizer: Any = AutoTokenizer.from_pretrained(run.model.path)
    found = []
    for line in Path(run.data.eval[0].path).read_text().splitlines():
        example = json.loads(line)
        prompt, whole = (
            tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
            for text in (example["prompt"], example["prompt"] + example["completion"])
        )
        first = prompt.shape[1]
        with torch.no_grad():
            log_s, log_t = (
                AutoModelForCausalLM.from_pretrained(path).double()(whole).logits[0, first - 1 : -1].log_softmax(-1)
                for path in (run.model.path, teacher)
            )
        divergence = (log_t.exp() * (log_t - log_s)).sum(-1)
        nll = -log_s.gather(-1, whole[0, first:, None])[:, 0]
        found.append(torch.stack([divergence, log_s.argmax(-1) == log_t.argmax(-1), nll]))
    expected = torch.cat(found, 1).mean(1).tolist()
    assert [row[f"eval/{name}"] for name in ("divergence", "agreement", "loss")] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_plain_paths_and_chunks_are_the_same_training(config: Build) -> None:
    words = ("divergence=jsd", "beta=0.2", "temperature=2", "hard_weight=0.2", "top_k=4")
    fast, plain = trained_rows(config("fast", *words)), trained_rows(config("plain", *words, "debug.plain=true"))
    for name in ("train/divergence", "train/loss", "train/cross_entropy"):
        assert [row[name] for row in fast[1:]] == pytest.approx([row[name] for row in plain[1:]], rel=1e-3)
    last = plain[-1]
    assert last["train/loss"] == pytest.approx(0.8 * last["train/divergence"] + 0.2 * last["train/cross_entropy"])


def plan_of_teacher(config: DistillConfig) -> list[tuple[str, ...]]:
    memory = burnish.plan(config.model_dump(exclude_unset=True)).plan.memory
    return [item.phases for item in memory if item.name.startswith("teacher")]


@pytest.mark.slow
def test_a_teacher_that_was_kept_teaches_the_same_and_is_not_loaded_again(
    config: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within rounding: the teacher has read the texts in other micro-batches."""
    words = ("top_k=4", "divergence=jsd", "temperature=2", "hard_weight=0.2")
    cache = f"teacher.cache={tmp_path}/kept"
    rows, first = trained_rows(config("plain", *words)), config("first", *words, cache)
    assert plan_of_teacher(config("plain", *words))[-1] == ("update",)
    assert plan_of_teacher(first) == [("teacher",)] * 2
    kept = trained_rows(first)
    assert [row.keys() for row in kept] == [row.keys() for row in rows]
    for name in ("train/loss", "train/divergence", "train/agreement", "eval/divergence", "eval/agreement"):
        values = [row[name] for row in rows if name in row]
        assert [row[name] for row in kept if name in row] == pytest.approx(values, rel=1e-4)
    assert plan_of_teacher(first) == []

    monkeypatch.setattr(distill, "load_model", None)
    again = config("again", *words, cache, "seed=2", "optimization.learning_rate=1e-3")
    trained(again)
    assert "eval/divergence" in burnish.evaluate(again.output, quiet=True).metrics
    changed = {"temperature": "temperature=1", "top_k": "top_k=5", "files": f"teacher.path={again.output}"}
    for what, word in changed.items():
        others = (one for one in words if not one.startswith(what))
        with pytest.raises(ConfigError, match=rf"made with another teacher or other settings \({what}\)"):
            trained(config("other", *others, cache, word))
    with pytest.raises(ConfigError, match="cannot write to teacher"):
        trained(config("other", *words, f"teacher.cache={Path(again.output) / 'config.yaml'}"))
    with pytest.raises(CheckpointError, match="seed: 2 before, 3 now"):  # before the teacher is loaded, which is None
        trained(config("again", *words, f"teacher.cache={tmp_path}/new", "optimization.learning_rate=1e-3", "seed=3"))
    monkeypatch.undo()
    grown = (*words, f"teacher.cache={tmp_path}/grown", "data.eval=[]", "evaluation.every_steps=null")
    train_distill(config("part", *grown, "data.train.0.limit=30"), console=Console())
    train_distill(config("more", *grown), console=Console())
    said = capsys.readouterr().out
    assert all(one in said for one in ("scores 30 texts; 0 are there", "scores 50 texts; 30 are there"))


@pytest.mark.slow
def test_a_served_teacher_is_kept_like_the_one_at_its_path(
    config: Build, teacher: str, serve: Callable[[str], str], tmp_path: Path
) -> None:
    at = (f"teacher.url={serve(teacher)}", "teacher.name=big", "teacher.path=null")
    here, there = (
        trained_rows(config(name, "top_k=4", f"teacher.cache={tmp_path}/{name}-kept", *words))
        for name, words in (("here", ()), ("there", at))
    )
    for name in ("train/loss", "train/agreement", "eval/divergence"):
        assert [row[name] for row in there if name in row] == pytest.approx([row[name] for row in here if name in row])
    moved = ("teacher.url=http://127.0.0.1:9/v1", *at[1:])
    with pytest.raises(ConfigError, match=r"made with another teacher or other settings \(files\)"):
        trained(config("moved", "top_k=4", f"teacher.cache={tmp_path}/there-kept", *moved))


def test_what_a_teacher_at_an_endpoint_cannot_do(tiny_sft: BuildSft) -> None:
    at: dict[str, Any] = {"url": "http://127.0.0.1:9/v1", "name": "big", "cache": "kept"}
    fields: dict[str, Any] = {**tiny_sft().model_dump(exclude_unset=True), "top_k": 4}
    plan = burnish.plan({**fields, "teacher": at}).plan
    assert any("big at http://127.0.0.1:9/v1 (which a plan does not ask)" in role.because for role in plan.models)
    assert not any("teacher" in text for text in (*plan.warnings, *(item.name for item in plan.memory)))
    for other, said in (
        ({"cache": None}, "teacher.cache is not set, but the teacher is at an endpoint"),
        ({"dtype": "bfloat16"}, "teacher.dtype is bfloat16, but the teacher is at an endpoint"),
        ({"path": "large"}, "teacher.path is set, and so is url"),
        ({"name": None}, "teacher.name is not set"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_run_data({**fields, "teacher": {**at, **other}}, [], "distill")
    with pytest.raises(ConfigError, match="temperature is 2, but the teacher is at an endpoint"):
        load_run_data({**fields, "teacher": at}, ["temperature=2"], "distill")


@pytest.mark.slow
@pytest.mark.parametrize("sharding", [pytest.param("whole", marks=pytest.mark.matrix), "optimizer"])
def test_two_trainers_are_one(config: Build, sharding: str) -> None:
    one, two = (
        config("one", "cluster.lanes=2", "cluster.threads=1"),
        config("two", "cluster.trainers=2", "cluster.threads=1", f"cluster.sharding={sharding}"),
    )
    found = trace(trained(two))
    assert "eval/divergence" in found.metrics[-1]
    assert found == trace(trained(one))


@pytest.mark.slow
def test_a_teacher_at_rest_and_a_resume_change_nothing(config: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[int] = []
    lie_down = Resting._lie_down
    monkeypatch.setattr(Resting, "_lie_down", lambda resting: (lie_down(resting), rested.append(resting.num_bytes))[0])
    words = ("sampled_share=0.5", "optimization.schedule=constant", "evaluation.every_steps=2")
    straight, other = config("straight", *words), config("other", *words, "cluster.offload=[teacher,optimizer]")
    rows = trained_rows(straight)
    assert not rested
    assert ["rollout/decoded_tokens" in row for row in rows[1:]] == [False, True, False, True]
    assert ["train/cross_entropy" in row for row in rows[1:]] == [True, False, True, False]
    assert [name for row in rows for name in row if name != "step" and find_metric(name) is None] == []
    trained(config("other", *words, "cluster.offload=[teacher,optimizer]", "steps=2"))
    trained(other)
    assert max(rested) > 0
    found, expected = trace(Path(other.output)), trace(Path(straight.output))
    assert found.metrics == expected.metrics
    assert found.state == expected.state


@pytest.mark.slow
def test_it_is_planned_checked_evaluated_and_reported(config: Build) -> None:
    fields = config("run", "sampled_share=0.5", "cluster.offload=teacher").model_dump(exclude_unset=True)
    plan = burnish.plan(fields)
    items = {item.name: item for item in plan.plan.memory}
    assert items["teacher"].phases == ("update",)
    assert {"policy", "teacher"} == {model.role for model in plan.plan.models}
    assert "teacher" in plan.plan.seats[0].holds
    run = burnish.distill(fields, quiet=True)
    evaluated = burnish.evaluate(run, quiet=True)
    assert evaluated["eval/divergence"] == pytest.approx(rows_of(fields["output"])[-1]["eval/divergence"], rel=1e-3)
    assert "eval/agreement" in run.report().read_text()


@pytest.mark.slow
def test_a_student_learns_more_from_a_teacher_than_from_the_same_texts(
    tiny_model: Path, tmp_path: Path, save_tiny_llama: Callable[..., Path], one_thread: None
) -> None:
    """Texts go on with one of two digits, by chance. The teacher has seen many, and knows the odds."""
    chance = random.Random(0)
    pairs = [(chance.randrange(10), chance.randrange(10)) for _ in range(1_100)]
    rows = [{"prompt": f"{a}+{b}=", "completion": f"{a if chance.random() < 0.7 else b}$"} for a, b in pairs]
    for name, part in (("few", rows[:60]), ("many", rows[60:1_000]), ("eval", rows[1_000:])):
        write_lines(tmp_path / f"{name}.jsonl", part)

    def curve(kind: str, model: Path, texts: str, steps: int, **fields: Any) -> dict[float, float]:
        """Held-out loss by step."""
        data = {
            "output": str(tmp_path / f"{kind}-{texts}"),
            "model": str(model),
            "data": {"train": str(tmp_path / f"{texts}.jsonl"), "eval": str(tmp_path / "eval.jsonl")},
            "max_tokens": 16,
            "steps": steps,
            "optimization": {"learning_rate": 3e-3, "tokens_per_batch": 128, "schedule": "constant"},
            "evaluation": {"every_steps": 20},
            "checkpoint": {"every_steps": None},
            "logging": {"sinks": []},
            **fields,
        }
        rows = trained_rows(load_run_data(data, (), kind).config)
        return {row["step"]: row["eval/loss"] for row in rows if "eval/loss" in row}

    wide = save_tiny_llama("0123456789+=", hidden_size=48, intermediate_size=96)
    curve("sft", wide, "many", 120, optimization={"learning_rate": 1e-2, "tokens_per_batch": 128, "schedule": "linear"})
    alone = curve("sft", tiny_model, "few", 160)
    taught = curve("distill", tiny_model, "few", 160, teacher=str(tmp_path / "sft-many"))
    best = min(alone.values())
    reached = [min(step for step, loss in losses.items() if loss <= best) for losses in (taught, alone)]
    assert reached[0] <= reached[1], (taught, alone)
    assert min(taught.values()) < best - 0.08
