"""Runs of several domains: nothing depends on interruptions or processes, and one domain is a run without any."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, Run, ctrl_c_in_step, rollouts_of, rows_of, step_rows, trace, trained, untimed_rows

from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.trainers.rl.setup.preflight import preview


@pytest.fixture
def run(tiny_run: BuildRl, tiny_task: Path, tmp_path: Path) -> Run:
    """Trains three domains in `tmp_path/NAME`, two of which know how hard their prompts are."""
    train, held_out = str(tiny_task / "train.jsonl"), str(tiny_task / "eval.jsonl")
    digits = {"name": f"{tiny_task / 'reward.py'}:digits", "label": "digits"}
    easy = {"keep": [0.0, 0.6], "again_after": 2}

    def train_domains(name: str, staleness: int = 0, workers: int = 0, **fields: Any) -> Path:
        config = tiny_run(
            f"output={tmp_path}/{name}",
            steps=6,
            max_staleness=staleness,
            data={},
            rewards=[{**digits, "domains": ["sums", "more"]}],
            domains={
                "sums": {"share": 0.4, "train": train, "eval": held_out, "difficulty": {**easy, "window": 8}},
                "more": {"share": {0: 0.3, 4: 0.1}, "train": train, "normalize": "running", "group_size": 2,
                         "dynamic_sampling": True, "loss_weight": 2.0, "eval": held_out},
                "brief": {"share": 0.3, "train": train, "max_response_tokens": 3,
                          "rewards": {"name": "length", "options": {"maximum": 2}},
                          "difficulty": {"keep": [0.1, 0.9], "outside": "drop"},
                          "evaluation": {"success": "length"}, "eval": held_out},
            },
            algorithm={"preset": "rloo", "max_refills": 1},
            rollout={"prompts_per_step": 7, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 4},
            evaluation={"every_steps": 3, "max_prompts": 4},
            checkpoint={"every_steps": 2},
            cluster={"rollout_workers": workers, "threads": 1},
            **fields,
        )  # fmt: skip
        return trained(config)

    return train_domains


@pytest.mark.slow
def test_three_domains(run: Run) -> None:
    folder = run("run")
    train = step_rows(folder)
    for row in train:
        wanted = {
            name: row.get(f"domain/{name}/prompts", 0.0) + row.get(f"domain/{name}/missing", 0.0)
            for name in ("sums", "more", "brief")
        }
        assert sum(wanted.values()) == 7
        share = 0.3 if row["step"] < 4 else 0.1
        whole = 0.7 + share
        for name, quota in (("sums", 0.4), ("more", share), ("brief", 0.3)):
            assert abs(wanted[name] - 7 * quota / whole) < 1
    lines = rollouts_of(folder)
    assert {tuple(line["reward_parts"]) for line in lines if line["domain"] == "brief"} == {("length",)}
    assert {tuple(line["reward_parts"]) for line in lines if line["domain"] != "brief"} == {("digits",)}
    assert max(len(line["response_tokens"]) for line in lines if line["domain"] == "brief") == 3
    sizes = Counter((line["domain"], line["group_id"]) for line in lines)
    assert {(name, size) for (name, _), size in sizes.items()} == {("sums", 4), ("more", 2), ("brief", 4)}
    assert {f"eval/domain/{name}/accuracy" for name in ("sums", "more", "brief")} <= set(train[-1])


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_resumed_run_of_domains_is_the_same(staleness: int, run: Run, tmp_path: Path) -> None:
    """Ctrl-C in step 3 ends the run after it: positions, pass rates and running moments go on."""
    expected = trace(run("whole", staleness))
    with ctrl_c_in_step(3):
        run("halves", staleness)
    assert [row["step"] for row in rows_of(tmp_path / "halves")][-1] == 3
    assert trace(run("halves", staleness)) == expected


@pytest.mark.slow
def test_rollout_workers_change_nothing(run: Run) -> None:
    assert trace(run("aside", staleness=1, workers=1)) == trace(run("inline", staleness=1))


@pytest.mark.slow
def test_one_domain_has_the_numbers_of_a_run_without_domains(
    tiny_run: BuildRl, tiny_task: Path, tmp_path: Path
) -> None:
    train, evaluation = str(tiny_task / "train.jsonl"), str(tiny_task / "eval.jsonl")
    algorithm = {"preset": "dapo", "max_refills": 1}
    shared: dict[str, Any] = {"steps": 3, "evaluation": {"every_steps": 3}, "algorithm": algorithm}
    plain = tiny_run(f"output={tmp_path}/plain", **shared)
    rewards = [reward.model_dump(mode="json") for reward in plain.rewards]
    domains = {"all": {"train": train, "eval": evaluation, "rewards": rewards}}
    named = tiny_run(f"output={tmp_path}/named", data={}, rewards=[], domains=domains, **shared)
    for config in (plain, named):
        trained(config)
    for one, other in zip(untimed_rows(tmp_path / "plain"), untimed_rows(tmp_path / "named"), strict=True):
        same = {name: value for name, value in one.items() if "failed_fraction/" not in name}
        assert same == {name: other[name] for name in same}
    weights = "checkpoints/step-000003/policy/model.safetensors"
    assert (tmp_path / "plain" / weights).read_bytes() == (tmp_path / "named" / weights).read_bytes()


@pytest.mark.slow
def test_a_domain_without_a_share_is_only_evaluated(tiny_run: BuildRl, tiny_task: Path, tmp_path: Path) -> None:
    """It needs no training data, and no training prompt belongs to it."""
    domains = {
        "sums": {"train": str(tiny_task / "train.jsonl"), "rewards": f"{tiny_task / 'reward.py'}:digits"},
        "unseen": {
            "share": 0,
            "eval": str(tiny_task / "eval.jsonl"),
            "rewards": {"name": "length", "options": {"maximum": 2}},
            "evaluation": {"success": "length"},
        },
    }
    config = tiny_run(steps=1, data={}, rewards=[], domains=domains, evaluation={"every_steps": 1, "max_prompts": 4})
    (row,) = step_rows(trained(config))
    assert "eval/domain/unseen/accuracy" in row
    assert "eval/domain/sums/accuracy" not in row


@pytest.mark.slow
def test_a_reward_for_a_domain_without_prompts_is_refused_before_a_model_loads(tiny_run: BuildRl) -> None:
    rewards = [{"name": "exact"}, {"name": "math", "domains": ["trian"]}]
    with pytest.raises(ConfigError, match="for the domain 'trian', but no training prompt belongs to it"):
        preview(tiny_run(rewards=rewards), None)


@pytest.mark.slow
def test_another_run_says_at_the_start_alone_how_hard_prompts_are(
    tiny_run: BuildRl, tiny_task: Path, tmp_path: Path
) -> None:
    """A resumed run has it in its checkpoint, so the other run may be gone."""
    sums = {"train": str(tiny_task / "train.jsonl"), "rewards": f"{tiny_task / 'reward.py'}:digits"}

    def train(name: str, steps: int, **difficulty: Any) -> None:
        domains = {"sums": {**sums, "difficulty": difficulty}}
        config = tiny_run(f"output={tmp_path}/{name}", steps=steps, data={}, rewards=[], domains=domains)
        trained(config)

    train("first", 1, min_spread=0.0)
    recorded = str(tmp_path / "first")
    train("second", 1, keep=[0.0, 0.5], recorded=recorded)
    (tmp_path / "first").rename(tmp_path / "moved")
    train("second", 2, keep=[0.0, 0.5], recorded=recorded)
    assert [row["step"] for row in rows_of(tmp_path / "second")] == [1, 2]
    with pytest.raises(ConfigError, match=r"difficulty.recorded is .*first', which is not the folder of a run"):
        train("third", 1, keep=[0.0, 0.5], recorded=recorded)


def test_difficulty_needs_a_criterion_only_where_it_asks_what_is_solved(tiny_run: BuildRl, tiny_task: Path) -> None:
    """A reward for length says nothing about that."""
    sums = {"train": str(tiny_task / "train.jsonl"), "rewards": {"name": "length", "options": {"maximum": 2}}}

    def config(**settings: Any) -> RlConfig:
        return tiny_run(steps=1, data={}, rewards=[], domains={"sums": {**sums, **settings}})

    trained(config(difficulty={"min_spread": 0.1}))
    for settings in ({"difficulty": {"keep": [0.0, 0.9]}}, {"difficulty_weight": 1.0}):
        with pytest.raises(ConfigError, match="is set, but nothing says when a response is solved"):
            preview(config(**settings), None)


def test_a_domain_whose_shared_rows_were_all_left_out_says_why(tiny_run: BuildRl, tmp_path: Path) -> None:
    """`1+2=` has four tokens, and the second domain takes at most three."""
    mixed = tmp_path / "mixed.jsonl"
    names = ("sums", "brief", "brief")
    mixed.write_text("".join(json.dumps({"prompt": "1+2=", "answer": "3", "domain": name}) + "\n" for name in names))
    domains: dict[str, Any] = {"sums": {"rewards": "math"}, "brief": {"rewards": "math", "max_prompt_tokens": 3}}
    config = tiny_run(data={"train": str(mixed)}, rewards=[], domains=domains)
    with pytest.raises(ConfigError, match=r"has no row for the domain 'brief', .* trained \(left out: 2 prompts over"):
        preview(config, None)
    domains["unseen"] = {"share": 0, "rewards": "math"}
    domains["brief"] = {"rewards": "math"}
    config = tiny_run(data={"train": str(mixed), "eval": {"path": str(mixed), "limit": 3}}, rewards=[], domains=domains)
    with pytest.raises(ConfigError, match=r"data\.eval has no row for the domain 'unseen', which is to be evaluated"):
        preview(config, None)
