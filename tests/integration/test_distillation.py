"""Runs with a teacher: on-policy distillation in one process and in several, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildRl, rows_of, trace, train, trained, trained_rows

from burnish.checkpointing.run import refused_differences
from burnish.cli import check
from burnish.config.schema import RlConfig
from burnish.config.secrets import hidden
from burnish.errors import ConfigError, DataError, ModelError
from burnish.observability.recorder import read_rollouts
from burnish.planning.rl import plan_rl
from burnish.planning.rl_processes import RlTable
from burnish.trainers.placement import model_facts
from burnish.trainers.replay_gradients import open_policy
from burnish.trainers.rl.setup.preflight import preview_rl


@pytest.fixture(scope="session")
def teacher(save_tiny_llama: Callable[..., Path]) -> Path:
    """A random model twice as wide as the policy, with its vocabulary."""
    return save_tiny_llama("0123456789+=", hidden_size=64, intermediate_size=128, seed=1)


@pytest.fixture
def taught(tiny_run: BuildRl, teacher: Path) -> BuildRl:
    def build(*overrides: str, **fields: Any) -> RlConfig:
        given = {"algorithm": "opd", "teacher": str(teacher), "rewards": [], "optimization": {"learning_rate": 1e-2}}
        return tiny_run(*overrides, **given | fields)

    return build


@pytest.mark.slow
def test_a_policy_comes_closer_to_its_teacher_without_rewards(taught: BuildRl) -> None:
    rows = trained_rows(taught("steps=12"))
    assert not [name for row in rows for name in row if "reward" in name or "constant" in name]
    distances = [row["kl/teacher_per_token"] for row in rows]
    assert sum(distances[-3:]) < 0.5 * sum(distances[:3])


@pytest.mark.slow
def test_whole_distributions_teach_in_one_process_and_in_two(taught: BuildRl, teacher: Path, tmp_path: Path) -> None:
    whole = {"path": str(teacher), "compare": "vocabulary"}
    fixed = ("cluster.lanes=2", "cluster.threads=1")
    folder = trained(taught("steps=12", *fixed, teacher=whole))
    rows = rows_of(folder)
    distances, agreements = ([row[f"policy/teacher_{name}"] for row in rows] for name in ("divergence", "agreement"))
    assert sum(distances[-3:]) < 0.3 * sum(distances[:3])
    assert sum(agreements[-3:]) > sum(agreements[:3])
    assert [row["policy/loss"] for row in rows] == pytest.approx(distances, rel=1e-5)
    two = ("steps=3", *fixed, "cluster.trainers=2", f"output={tmp_path / 'two'}")
    several = trained(taught(*two, teacher=whole))
    one = trained(taught("steps=3", *fixed, f"output={tmp_path / 'one'}", teacher=whole))
    assert trace(several) == trace(one)
    for steps in (2, 3):
        resumed = trained(taught(f"steps={steps}", *fixed, f"output={tmp_path / 'resumed'}", teacher=whole))
    assert trace(resumed) == trace(one)
    with (
        pytest.raises(ConfigError, match="distributions, which no file could hold"),
        open_policy(taught(teacher=whole), Console(quiet=True)),
    ):
        pass


@pytest.mark.slow
def test_a_resting_teacher_teaches_the_same(taught: BuildRl, tmp_path: Path) -> None:
    plain = trained(taught("steps=2"))
    resting = trained(taught("steps=2", "cluster.offload=[teacher]", f"output={tmp_path / 'resting'}"))
    assert [row["policy/loss"] for row in rows_of(resting)] == [row["policy/loss"] for row in rows_of(plain)]


@pytest.mark.slow
def test_the_first_weights_as_teacher_are_at_distance_0(taught: BuildRl) -> None:
    folder = trained(taught("steps=2", teacher="policy"))
    first, second = (row["kl/teacher_per_token"] for row in rows_of(folder))
    assert first == pytest.approx(0.0, abs=1e-6)
    assert second == pytest.approx(0.0, abs=1e-6)  # where there is nothing to learn, nothing moves


def test_a_teacher_with_another_vocabulary_is_refused(taught: BuildRl, save_tiny_llama: Callable[..., Path]) -> None:
    other = save_tiny_llama("9876543210+=", hidden_size=32, intermediate_size=64)
    with pytest.raises(ModelError, match="a different vocabulary from the trained model"):
        train(taught(teacher=str(other)))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("algorithm.preset=grpo", "it is not used: the estimator 'grpo'"),
        ("algorithm.estimator_options.reward_coef=1", "reward_coef is set, but there are no rewards to add"),
        ("algorithm.dynamic_sampling=true", "is set, but only the teacher decides what is learned"),
        ("domains={a: {train: x.jsonl, normalize: running}}", "is set, but only the teacher decides what is learned"),
        ("evaluation.success=right", "success is right, but there are no rewards"),
    ],
)
def test_what_does_not_go_with_a_teacher_is_refused(taught: BuildRl, word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        taught(word)


def test_a_teacher_that_is_not_there_is_missed(taught: BuildRl) -> None:
    with pytest.raises(ConfigError, match="'opd' asks for teacher_logprobs_BT, but the run file has no teacher"):
        train(taught(teacher=None))
    with pytest.raises(ModelError, match=r"teacher.path './nowhere' does not exist"):
        train(taught(teacher="./nowhere"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("cluster.trainers=2",), id="in each trainer", marks=pytest.mark.matrix),
        pytest.param(("cluster.own_process=teacher",), id="in its own process"),
    ],
)
def test_a_teacher_in_other_processes_teaches_the_same_bits(
    taught: BuildRl, tmp_path: Path, words: tuple[str, ...]
) -> None:
    fixed = ("steps=3", "cluster.lanes=2", "cluster.threads=1")
    several = trained(taught(*fixed, *words, f"output={tmp_path / 'several'}"))
    assert trace(several) == trace(trained(taught(*fixed)))


@pytest.mark.slow
def test_a_policy_learns_from_itself_with_the_answer_in_view(taught: BuildRl) -> None:
    """Under another prompt the same weights are another teacher, at a distance from the first step on."""
    folder = trained(taught("steps=2", teacher={"path": "policy", "prompt": "{answer}{prompt}"}))
    assert all(abs(row["kl/teacher_per_token"]) > 1e-4 for row in rows_of(folder))


def test_what_whole_distributions_cannot_be_compared_with(taught: BuildRl) -> None:
    """One model, in the process of the update, on the policy's own rows; nothing else is in the loss."""
    whole = {"path": "policy", "compare": "vocabulary"}
    for words, field in {
        "teacher.prompt=hint": "teacher.prompt",
        "model.lora={}": "teacher.path",
        "cluster.own_process=teacher": "cluster.own_process",
        "cluster.offload=[teacher]": "cluster.offload",
        "rollout.temperature=0.7": "rollout.temperature",
        "algorithm.entropy_coef=0.1": "algorithm.entropy_coef",
        "algorithm.estimator_options.reward_coef=1": "algorithm.estimator_options",
        "domains={a: {train: x.jsonl, loss_weight: 3}}": "domains.a.loss_weight",
    }.items():
        with pytest.raises(ConfigError, match=rf"{field} .*but teacher.compare is vocabulary"):
            taught(words, teacher=whole)


def test_a_template_that_names_no_column_is_refused_before_the_run(taught: BuildRl) -> None:
    with pytest.raises(DataError, match=r"prompt '.*': teacher.prompt names the column 'hint'"):
        train(taught(teacher={"path": "policy", "prompt": "{hint}{prompt}"}))


def test_a_plan_tries_teachers_on_the_rows_and_counts_their_memory(taught: BuildRl, teacher: Path) -> None:
    template = {"path": str(teacher), "prompt": "{answer}{prompt}"}
    config = taught("rollout.max_prompt_tokens=5", teacher=template)
    facts = model_facts(config)
    assert facts is not None
    assert facts.teacher is not None
    preview_rl(config, facts, here=True)
    short = replace(facts, teachers=(replace(facts.teacher, context_tokens=9),))
    for here in (True, False):
        with pytest.raises(DataError, match=r"prompt '.*': teacher.prompt names the column 'hint'"):
            preview_rl(taught(teacher=template | {"prompt": "{hint}"}), facts, here=here)
        with pytest.raises(ConfigError, match=r"teacher.prompt makes \d tokens of prompt .*\.max_response_tokens 4 in"):
            preview_rl(config, short, here=here)
        with pytest.raises(ConfigError, match=r"teacher.path .* has a context of 9 tokens"):
            preview_rl(taught(teacher=template), short, here=here)
    assert "the sizes of teacher" in " ".join(plan_rl(config, facts=replace(facts, teachers=(None,))).warnings)
    assert facts.teacher.num_parameters > facts.num_parameters
    whole = taught(teacher=template | {"prompt": None, "compare": "vocabulary"})
    table = RlTable(whole, facts)
    needed = {item.name: item.phases for item in table.teachers()}
    assert needed["comparison with the teacher"] == ("update",)
    assert needed["passes of a teacher"] == ("teacher", "update")


RECORDED = {"sinks": [], "record_rollouts": True}


def recorded(folder: Path) -> list[dict[str, Any]]:
    return list(read_rollouts(folder / "rollouts" / "step-000001.jsonl"))


def check_domains(taught: BuildRl, tiny_task: Path, teacher: Any) -> None:
    """One has the policy itself as its teacher, so that its advantages are 0, the other one this."""
    rows = {"train": f"{tiny_task}/train.jsonl"}
    domains = {"own": {**rows, "teacher": "policy"}, "other": {**rows, "teacher": teacher}}
    folder = trained(taught("steps=1", teacher=None, data={}, domains=domains, logging=RECORDED))
    sizes = {name: [abs(one["advantage"]) for one in recorded(folder) if one["domain"] == name] for name in domains}
    assert max(sizes["own"]) == pytest.approx(0.0, abs=1e-5)
    assert max(sizes["other"]) > 0.1


@pytest.mark.slow
def test_each_domain_has_its_teacher(taught: BuildRl, teacher: Path, tiny_task: Path) -> None:
    check_domains(taught, tiny_task, str(teacher))


@pytest.mark.slow
def test_a_served_teacher_is_the_one_at_its_path(
    taught: BuildRl, teacher: Path, serve: Callable[[str], str], tmp_path: Path, tiny_task: Path
) -> None:
    at = {"url": serve(str(teacher)), "name": "big"}
    for name, more in (("plain", {}), ("hinted", {"prompt": "{answer}{prompt}"})):
        found = []
        for place, one in (("here", {"path": str(teacher)}), ("there", at)):
            output = f"output={tmp_path}/{name}-{place}"
            found.append(trained(taught("steps=2", output, teacher={**one, **more}, logging=RECORDED)))
        here, there = found
        assert [line["response"] for line in recorded(here)] == [line["response"] for line in recorded(there)]
        for one, other in zip(recorded(here), recorded(there), strict=True):
            assert other["teacher_logprobs"] == pytest.approx(one["teacher_logprobs"], abs=1e-5)
        last = (rows_of(folder)[-1]["kl/teacher_per_token"] for folder in found)
        assert next(last) == pytest.approx(next(last), abs=1e-3)
    check_domains(taught, tiny_task, at)


NOBODY: dict[str, Any] = {"url": "http://127.0.0.1:9/v1", "name": "big"}


def test_what_a_teacher_at_an_endpoint_cannot_do(taught: BuildRl) -> None:
    for words, said in {
        "rollout.temperature=0.7": "rollout.temperature is 0.7, but the teacher is at an endpoint",
        "teacher.compare=vocabulary": "teacher.compare is vocabulary, but the teacher is at an endpoint",
        "cluster.own_process=teacher": "is teacher, but the teacher is at an endpoint",
        "cluster.offload=[teacher]": "teacher, but the teacher is at an endpoint",
        "teacher.path=policy": "teacher.path is set, and so is url",
        "teacher.name=null": "teacher.name is not set",
        "teacher.url=http://me:hunter2@there/v1": "a key belongs in an environment variable",
    }.items():
        with pytest.raises(ConfigError, match=said) as refused:
            taught(words, teacher=NOBODY)
        assert "hunter2" not in hidden(str(refused.value))
    with pytest.raises(ConfigError, match=r"teacher.path is not set, and neither is url"):
        taught(teacher={"name": "big"})
    with pytest.raises(ConfigError, match=r"teacher.concurrency is set, but has no effect without url"):
        taught("teacher.concurrency=3")


def test_an_endpoint_is_planned_without_memory_and_may_move(
    taught: BuildRl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = taught(teacher=NOBODY)
    facts = model_facts(config)
    assert facts is not None
    assert [item.name for item in RlTable(config, facts).teachers()] == []
    assert not any("sizes" in warning for warning in plan_rl(config, facts=facts).warnings)
    assert any("which a plan does not ask" in model.because for model in plan_rl(config, facts=facts).models)
    moved = taught(teacher=NOBODY | {"url": "http://127.0.0.1:10/v1", "concurrency": 3, "key_variable": "KEY"})
    assert refused_differences(config.model_dump(mode="json"), moved) == []
    other = taught(teacher=NOBODY | {"name": "bigger"})
    assert [one.field for one in refused_differences(config.model_dump(mode="json"), other)] == ["teacher.name"]
    monkeypatch.setattr(check, "_ENDPOINT_SECONDS", 0.2)
    check.check_gold_answers(config, None, 1, Console())
    assert "has not answered within timeout_seconds 0.2" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match=r"teacher.key_variable names KEY, which is not set"):
        train(moved)
