"""PPO from run file to checkpoint: real optimizer steps, warm-up, early stop, resume, dense and several rewards."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import BuildRl, lines_of, rollouts_of, rows_of, trace, trained, trained_rows
from torch.optim.optimizer import register_optimizer_step_post_hook

from burnish.board.report import write_report
from burnish.trainers.interrupt import StopRequest
from burnish.trainers.outer_loop import run_loop
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.parts import open_rl_run

pytestmark = pytest.mark.slow_cases("*")

QUIET = Console(quiet=True)
KINDS = ("separate", "shared")
PPO = {"preset": "ppo"}
FAST = {"learning_rate": 1e-2, "epochs": 3, "minibatches": 2}

DENSE = """
from burnish.types import Score

def graded(response_tokens: list, response: str) -> Score:
    rewards = tuple(0.25 if token % 2 else -0.5 for token in response_tokens)
    return Score(sum(rewards), token_rewards=rewards)

def long(response: str) -> float:
    return len(response) / 4
"""


class StopAt(StopRequest):
    """Asks to stop once the run stands at a step."""

    def __init__(self, run: RlRun, step: int) -> None:
        super().__init__()
        self._run, self._step = run, step

    def __bool__(self) -> bool:
        return self._run.progress.step >= self._step


@pytest.fixture
def optimizer_steps() -> Iterator[Counter[int]]:
    """Steps of every torch optimizer, counted by PyTorch itself; keys are the optimizers' numbers of weights."""
    counted: Counter[int] = Counter()

    def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        counted[sum(len(group["params"]) for group in optimizer.param_groups)] += 1

    handle = register_optimizer_step_post_hook(count)
    yield counted
    handle.remove()


@pytest.mark.parametrize("kind", KINDS)
def test_real_optimizer_steps(tiny_run: BuildRl, optimizer_steps: Counter[int], kind: str) -> None:
    """3 steps x 3 epochs x 2 minibatches, of which the policy sits out the first step."""
    config = tiny_run(algorithm=PPO, critic={"kind": kind, "warmup_steps": 1}, optimization=FAST)
    with open_rl_run(config, QUIET) as run:
        before = [p.detach().clone() for p in run.policy.model.parameters()]  # type: ignore[attr-defined]
        weights = len(before)
        while run.progress.step < 3:
            row = run.train_step()
            if run.progress.step == 1:
                after = list(run.policy.model.parameters())  # type: ignore[attr-defined]
                assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
                assert "policy/optimizer_steps" not in row
                assert row["critic/value_mean"] == 0
            else:
                assert row["policy/optimizer_steps"] == row["critic/optimizer_steps"] == 6
                assert row["policy/epochs"] == 3
                assert row["critic/value_mean"] != 0
        assert run.policy.version == config.policy_updates == 12
        assert run.critic.version == 18  # type: ignore[union-attr]
        critic_weights = 2 + (len(list(run.critic.trunk.parameters())) if kind == "separate" else 0)  # type: ignore[union-attr]
    assert optimizer_steps == {weights: 12, critic_weights: 18}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["full", "lora"])
def test_resuming_is_exact_to_the_bit(
    tiny_run: BuildRl, tiny_model: Path, tmp_path: Path, kind: str, lora: dict[str, int] | None
) -> None:
    """Critic, its optimizer, the adaptive KL and the order of minibatches all go on where they stopped."""
    fields = {
        "model": {"path": str(tiny_model), "lora": lora},
        "algorithm": {**PPO, "kl_target": 0.05, "kl_horizon": 100},
        "critic": {"kind": kind, "warmup_steps": 1, "learning_rate": 1e-2},
        "optimization": {**FAST, "schedule": "linear", "optimizer": "adam_tf"},
    }
    whole = tiny_run(f"output={tmp_path}/whole", "steps=4", **fields)
    trained(whole)
    parts = tiny_run(f"output={tmp_path}/parts", "steps=4", **fields)
    for stop_at in (1, 3):
        with open_rl_run(parts, QUIET) as run:
            run_loop(run, StopAt(run, stop_at))
            assert run.progress.step == stop_at
    trained(parts)
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")
    newest = tmp_path / "parts" / "checkpoints" / "step-000004"
    assert (newest / "critic" / "value_head.safetensors").is_file()
    assert (newest / "critic" / "model.safetensors").is_file() is (kind == "separate")


@pytest.mark.parametrize("kind", KINDS)
def test_whitening_each_minibatch_does_not_depend_on_micro_batches(
    tiny_run: BuildRl, tmp_path: Path, kind: str
) -> None:
    """Rewards and advantages of each of the two minibatches by themselves: cut in two or whole, the same steps."""
    algorithm = {**PPO, "whiten_rewards": True, "whiten_advantages": True}
    rows = {}
    for over, budget in (("minibatch", 20), ("minibatch", 100_000), ("step", 100_000)):
        config = tiny_run(
            f"output={tmp_path}/{over}-{budget}",
            "steps=2",
            algorithm={**algorithm, "whiten_over": over},
            critic={"kind": kind},
            optimization={**FAST, "tokens_per_microbatch": budget},
        )
        with open_rl_run(config, QUIET) as run:
            rows[over, budget] = [run.train_step(), run.train_step()]
    names = ("policy/loss", "policy/grad_norm", "critic/loss", "critic/return_mean", "advantage/raw_std",
             "critic/explained_variance", "reward/token_std")  # fmt: skip
    for small, whole, step in zip(*rows.values(), strict=True):
        for name in names:
            assert small[name] == pytest.approx(whole[name], rel=2e-3, abs=1e-5), name
        assert whole["advantage/mean"] == pytest.approx(0.0, abs=1e-5)
        assert whole["critic/return_mean"] != pytest.approx(step["critic/return_mean"], rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("unit", "shares"),
    [("optimizer_step", [(None, 3 / 16), (1 / 12, 5 / 16), (5 / 12, 9 / 16), (9 / 12, 13 / 16)]),
     ("step", [(None, 0), (0, 1 / 4), (1 / 3, 2 / 4), (2 / 3, 3 / 4)])],
)  # fmt: skip
def test_skipped_epochs_do_not_hold_the_learning_rate_back(
    tiny_run: BuildRl, tmp_path: Path, kind: str, unit: str, shares: list[tuple[float | None, float]]
) -> None:
    """4 steps x 4 planned epochs, of which two are made; the critic alone makes all four of the first step (its policy
    does not move). Rates fall from the first planned step of policy and critic, 0 based; `step` moves them once a
    step. The run stops after step 2 and goes on."""
    config = tiny_run(
        "steps=4",
        algorithm={**PPO, "max_epoch_kl": 1e-6},
        critic={"kind": kind, "warmup_steps": 1, "learning_rate": 1e-2},
        optimization={**FAST, "epochs": 4, "minibatches": 1, "schedule": "linear", "schedule_unit": unit},
    )
    with open_rl_run(config, QUIET) as run:
        run_loop(run, StopAt(run, 2))
    rows = trained_rows(config)
    assert [row["policy/epochs"] for row in rows] == [4, 2, 2, 2]
    for row, (policy, critic) in zip(rows, shares, strict=True):
        assert row["critic/learning_rate"] == pytest.approx(1e-2 * (1 - critic))
        if policy is not None:
            assert row["policy/learning_rate"] == pytest.approx(FAST["learning_rate"] * (1 - policy))


def test_dense_and_several_rewards_become_returns_per_token(tiny_run: BuildRl, tmp_path: Path) -> None:
    """With gamma = lam = 1 a return is the sum of the rewards from its token on: dense ones at their tokens, the score
    of a whole response on its last token."""
    (tmp_path / "dense.py").write_text(DENSE)
    config = tiny_run(
        "steps=2",
        algorithm={**PPO, "kl_in": "none", "lam": 1.0},
        rewards=[{"name": f"{tmp_path}/dense.py:graded"}, {"name": f"{tmp_path}/dense.py:long", "weight": 2.0}],
        optimization=FAST,
    )
    for line in rollouts_of(trained(config), 2):
        rewards = [0.25 if token % 2 else -0.5 for token in line["response_tokens"]]
        rewards[-1] += 2.0 * len(line["response"]) / 4
        expected = [sum(rewards[t:]) for t in range(len(rewards))]
        assert line["token_returns"] == pytest.approx(expected, abs=1e-5)
        assert any(line["token_values"])
        assert line["reward"] == pytest.approx(sum(rewards))


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_and_report_know_values(tiny_run: BuildRl, kind: str) -> None:
    evaluation = {"at_start": True, "every_steps": 2}
    config = tiny_run("steps=2", algorithm=PPO, critic={"kind": kind}, optimization=FAST, evaluation=evaluation)
    trained(config)
    before, _, last = rows_of(config.output)
    assert before["eval/value_mean"] == 0
    assert last["eval/value_mean"] != 0
    file = Path(config.output) / "rollouts" / "eval-000002.jsonl"
    lines = lines_of(file)
    assert all(len(line["token_values"]) == len(line["response_tokens"]) for line in lines)
    firsts = [line["token_values"][0] for line in lines]
    assert last["eval/value_mean"] == pytest.approx(sum(firsts) / len(firsts))
    page = write_report(Path(config.output)).read_text()
    assert "Return by value" in page
    assert '"metric":"eval/value_mean"' in page


@pytest.mark.parametrize("kind", KINDS)
def test_credit_and_value_loss_of_a_step_in_plain_numbers(tiny_run: BuildRl, kind: str) -> None:
    """From recorded values, log-probabilities and rewards to returns, whitened advantages and the value loss."""
    gamma, lam, kl_coef = 0.95, 0.9, 0.3
    config = tiny_run(
        "steps=3",
        algorithm={**PPO, "gamma": gamma, "lam": lam, "kl_coef": kl_coef},
        critic={"kind": kind, "learning_rate": 1e-2},
        optimization={"learning_rate": 1e-2, "epochs": 1, "tokens_per_microbatch": 20},
    )
    trained(config)
    lines, raw, moved = rollouts_of(config.output, 3), [], 0.0
    for line in lines:
        values = line["token_values"]
        rewards = [-kl_coef * (a - b) for a, b in zip(line["old_logprobs"], line["ref_logprobs"], strict=True)]
        moved = max(moved, *map(abs, rewards))
        rewards[-1] += line["reward"]
        advantages = [0.0] * (len(values) + 1)
        for t in reversed(range(len(values))):
            after = values[t + 1] if t + 1 < len(values) else 0.0
            advantages[t] = rewards[t] + gamma * after - values[t] + gamma * lam * advantages[t + 1]
        raw.append(advantages[:-1])
        assert any(values)
        assert line["token_returns"] == pytest.approx([a + v for a, v in zip(raw[-1], values, strict=True)], abs=1e-4)
    assert moved > 1e-3  # so the KL has reached the returns
    flat = [advantage for row in raw for advantage in row]
    mean = sum(flat) / len(flat)
    spread = (sum((a - mean) ** 2 for a in flat) / len(flat)) ** 0.5
    for line, row in zip(lines, raw, strict=True):
        assert line["token_advantages"] == pytest.approx([(a - mean) / spread for a in row], abs=2e-3)
    row = rows_of(config.output)[-1]
    # One update a step: its values are still those of the rollouts, so the loss is half the mean squared advantage.
    assert row["critic/loss"] == pytest.approx(sum(a * a for a in flat) / len(flat) / 2, rel=1e-3)
    assert row["critic/clip_fraction"] == 0
