"""The example of three domains: each learns from its own reward what its demonstrations got wrong, and a kill changes
nothing."""

import json
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from runs import rows_of, trace, trained
from scripts import load_script

from burnish.config.loading import load_run_file

pytest.importorskip("reasoning_gym", reason="needs burnish[reasoning-gym]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "three_domains"
SHARES = {"sums": 0.4, "words": 0.3, "chains": 0.3}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example's script writes."""
    folder = tmp_path_factory.mktemp("three-domains")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare.py", str(folder)])
        load_script(EXAMPLE / "prepare.py").main()
    return folder


@pytest.fixture(scope="module")
def words(task: Path) -> tuple[str, ...]:
    """The command of the second half, after the first half has been run."""
    overrides = [f"model.path={task / 'model'}", f"data.train.0.path={task / 'demonstrations.jsonl'}"]
    config = load_run_file(EXAMPLE / "sft.yaml", [*overrides, f"output={task / 'sft'}"], "sft").config
    trained(config)
    (weights,) = (task / "sft" / "checkpoints").glob("step-*/policy")
    held_out = (f"domains.{name}.eval.0.path={task / f'{name}_held_out.jsonl'}" for name in SHARES)
    sums = f"domains.sums.train.0.path={task / 'sums.jsonl'}"
    return ("rl", str(EXAMPLE / "rl.yaml"), f"model.path={weights}", sums, *held_out)


@pytest.fixture(scope="module")
def calm(words: tuple[str, ...], task: Path, commands: Any) -> Path:
    """The folder of a run that nothing happened to."""
    command = commands.start(*words, f"output={task / 'calm'}")
    command.wait(seconds=900)
    assert command.code == 0, command.output
    return task / "calm"


def test_every_domain_learns_and_none_pays_for_it(calm: Path) -> None:
    first, last = rows_of(calm)[0], rows_of(calm)[-1]
    before, after = ({name: row[f"eval/domain/{name}/accuracy"] for name in SHARES} for row in (first, last))
    gains = {name: after[name] - before[name] for name in SHARES}
    assert sum(gains.values()) / len(gains) >= 0.15
    assert min(gains.values()) >= -0.03
    assert sum(before.values()) / len(before) < 0.6, "there was little left to learn"


def test_every_step_has_each_domain_s_share(calm: Path) -> None:
    prompts = load_run_file(EXAMPLE / "rl.yaml").config.rollout.prompts_per_step
    so_far: Counter[str] = Counter()
    for step, row in enumerate(rows_of(calm)[1:], start=1):
        for name, share in SHARES.items():
            count = int(row[f"domain/{name}/prompts"])
            so_far[name] += count
            assert abs(count - prompts * share) < 1, (step, name)
            assert abs(so_far[name] - step * prompts * share) < 1 + 1e-6, (step, name)


def test_each_domain_has_its_own_reward(calm: Path) -> None:
    parts: dict[str, set[str]] = {name: set() for name in SHARES}
    for line in (calm / "rollouts" / "step-000001.jsonl").read_text().splitlines():
        rollout = json.loads(line)
        parts[rollout["domain"]] |= set(rollout["reward_parts"])
    assert parts == {"sums": {"exact"}, "words": {"reasoning_gym", "reasoning_gym/raised"}, "chains": {"math"}}


def test_a_kill_at_any_step_changes_no_bit(calm: Path, words: tuple[str, ...], task: Path, commands: Any) -> None:
    config = load_run_file(EXAMPLE / "rl.yaml").config
    assert config.checkpoint.every_steps is not None
    step = random.randrange(config.checkpoint.every_steps + 1, config.steps)
    folder = task / "killed"
    metrics = folder / "metrics.jsonl"
    command = commands.start(*words, f"output={folder}")
    came = command.wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > step, seconds=900)
    command.kill()
    assert came
    assert command.code == -signal.SIGKILL
    again = commands.start(*words, f"output={folder}")
    again.wait(seconds=900)
    assert again.code == 0, again.output
    assert f"resuming {folder} after step" in again.output
    assert trace(folder) == trace(calm), f"killed after step {step}"
