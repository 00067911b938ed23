"""`burnish replay`: with nothing changed it says what the run said; with other rewards or estimators, what they say."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildRl, Run, lines_of, trained, write_lines

from burnish.api.run import run_config
from burnish.cli import main
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError, DataError
from burnish.observability.recorder import read_rollouts
from burnish.trainers.replay import Replayed, open_replay
from burnish.trainers.replay_result import differ, summary_of

pytestmark = pytest.mark.slow_cases("*")

RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"preset": "grpo", "kl_in": "none", "dynamic_sampling": True, "overlong_buffer": 0.5}},
    "remax": {"algorithm": {"preset": "remax", "kl_in": "none"}},
    "ppo": {"algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.3, "kl_target": 0.01}, "critic": {}},
    "rloo": {"algorithm": {"preset": "rloo", "kl_coef": 0.3}},
    "sdft": {"algorithm": "opd", "teacher": {"path": "policy", "prompt": "{answer}{prompt}", "weight": 0.7}},
}


def replayed(folder: Path, *overrides: str, step: int = 2, **given: Any) -> list[Replayed]:
    config = run_config(folder, overrides).config
    assert isinstance(config, RlConfig)
    with open_replay(config, Console(quiet=True), **given) as replayer:
        return replayer.replay(folder / "rollouts" / f"step-{step:06d}.jsonl")


@pytest.fixture
def run(tiny_run: BuildRl, tmp_path: Path) -> Run:
    def train(name: str, **fields: Any) -> Path:
        return trained(tiny_run(f"output={tmp_path / name}", steps=2, **(RUNS[name] | fields)))

    return train


@pytest.mark.parametrize("name", RUNS)
def test_a_replay_of_the_run_itself_changes_nothing(run: Run, name: str) -> None:
    folder = run(name)
    lines = [line for line in read_rollouts(folder / "rollouts" / "step-000002.jsonl") if not line["greedy"]]
    rows = replayed(folder)
    assert [row.after.reward for row in rows] == [line["reward"] for line in lines]
    assert not [row for row in rows if differ(row.before.advantage, row.after.advantage)]
    assert [row.after.why for row in rows] == [line["dropped_because"] for line in lines]
    found = summary_of(rows)
    assert (found.responses, found.scores_changed, found.advantages_changed) == (len(lines), 0, 0)
    assert 0 < found.before.trained == found.after.trained
    assert [row.after for row in rows] == [row.after for row in replayed(folder, keep_scores=True)]


def test_a_replay_of_domains_changes_nothing(tiny_run: BuildRl, tiny_task: Path, tmp_path: Path) -> None:
    train = str(tiny_task / "train.jsonl")
    digits = {"name": f"{tiny_task / 'reward.py'}:digits", "label": "digits", "domains": ["sums", "more"]}
    config = tiny_run(
        steps=2,
        data={},
        rewards=[digits],
        domains={
            "sums": {"train": train, "normalize": "domain", "loss_weight": 2.0},
            "more": {"train": train, "group_size": 3, "dynamic_sampling": True, "reward_clip": 0.4},
            "brief": {"train": train, "rewards": {"name": "length", "options": {"maximum": 2}}},
        },
        rollout={"prompts_per_step": 6, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 4},
    )
    trained(config)
    rows = replayed(tmp_path / "run")
    assert {row.domain for row in rows} == {"sums", "more", "brief"}
    assert summary_of(rows).advantages_changed == 0


def test_other_rewards_score_the_same_responses(run: Run, tmp_path: Path) -> None:
    folder = run("rloo", algorithm={"preset": "rloo", "kl_in": "none"})
    (tmp_path / "other.py").write_text("def longer(response, answer):\n    return len(response) + len(answer) / 10\n")
    rows = replayed(folder, f"rewards={tmp_path / 'other.py'}:longer")
    recorded = read_rollouts(folder / "rollouts" / "step-000002.jsonl")
    assert [row.after.reward for row in rows] == [pytest.approx(len(line["response"]) + 0.2) for line in recorded]
    assert [row.before.reward for row in rows] == [line["reward"] for line in recorded]
    # rloo: the score less the mean of the three siblings'
    first = [row for row in rows if row.group_id == rows[0].group_id]
    scores = [row.after.reward or 0.0 for row in first]
    expected = [score - (sum(scores) - score) / 3 for score in scores]
    assert [row.after.advantage for row in first] == pytest.approx(expected, abs=1e-5)


def test_a_preset_takes_the_place_of_the_runs_own(run: Run) -> None:
    folder = run("grpo", algorithm={"preset": "grpo", "kl_in": "none"})
    config = run_config(folder, ["algorithm.preset=rloo"]).config
    assert all(run_config(folder, [word]).config == config for word in ("algorithm=rloo", "algorithm={preset: rloo}"))
    assert isinstance(config, RlConfig)
    assert (config.algorithm.estimator, config.algorithm.loss) == ("rloo", "reinforce")
    assert config.algorithm.kl_in == "none"  # which the run file had set
    rows = replayed(folder, "algorithm.preset=rloo", keep_scores=True)
    expected = []
    for row in rows:
        scores = [other.before.reward or 0.0 for other in rows if other.group_id == row.group_id]
        own = row.before.reward or 0.0
        expected.append(own - (sum(scores) - own) / 3)
    assert any(expected)
    assert [row.after.advantage for row in rows] == pytest.approx(expected, abs=1e-6)


def test_a_command_writes_what_it_found(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    folder = run("rloo", algorithm={"preset": "rloo", "kl_in": "none"})
    before = sorted(path.name for path in folder.iterdir())
    assert main(["replay", str(folder), "rollout={group_size: 9}"]) == 2
    assert main(["replay", str(folder), "--step", "1", "--step", "2", "rewards.0.weight=3"]) == 0
    said = capsys.readouterr().out
    assert "32 responses" in said
    assert "correlation of advantages" in said
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "replay"])
    written = folder / "replay" / "001"
    rows = lines_of(written / "changes.jsonl")
    assert len(rows) == 32
    assert all(row["after"]["reward"] == pytest.approx(3 * row["before"]["reward"]) for row in rows)
    assert json.loads((written / "summary.json").read_text())["responses"] == 32
    assert "weight: 3.0" in (written / "config.yaml").read_text()


def test_what_was_not_recorded_cannot_be_credited(run: Run) -> None:
    folder = run("rloo", algorithm={"preset": "rloo", "kl_in": "none"})
    with pytest.raises(ConfigError, match="needs token_values, which this step did not record"):
        replayed(folder, "algorithm.estimator=gae")
    with pytest.raises(ConfigError, match="needs old_logprobs and ref_logprobs"):
        replayed(folder, "algorithm.kl_in=reward", "algorithm.kl_coef=0.1")


def test_a_teacher_may_weigh_more_and_be_no_other(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("sdft", rewards=[])
    own, heavier = replayed(folder), replayed(folder, "teacher.weight=1.4")
    assert [row.after.advantage for row in heavier] == pytest.approx([2 * (row.after.advantage or 0) for row in own])
    assert main(["replay", str(folder), "teacher.prompt='{prompt}'"]) == 2
    assert "teacher is not the teacher that the run was recorded with" in capsys.readouterr().err


def test_other_data_is_refused(run: Run, tiny_task: Path, tmp_path: Path) -> None:
    folder = run("rloo", algorithm={"preset": "rloo", "kl_in": "none"})
    rows = lines_of(tiny_task / "train.jsonl")
    for row in rows:
        row["answer"] = "00"
    write_lines(tmp_path / "train.jsonl", rows)
    with pytest.raises(DataError, match="is another one in the training data"):
        replayed(folder, f"data.train={tmp_path / 'train.jsonl'}")
    (tmp_path / "train.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(DataError, match="the training data has no prompt"):
        replayed(folder, f"data.train={tmp_path / 'train.jsonl'}")


def test_a_replay_that_cannot_be(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run("grpo"))
    for words, message in (
        (["--step", "9"], "has no recorded rollouts of step 9"),
        (["rewards=none"], "there is no built-in reward 'none'"),
    ):
        assert main(["replay", folder, *words]) == 2
        assert message in capsys.readouterr().err
