"""`burnish replay --gradients`: the run's own settings give its own loss and gradient, bit for bit."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildRl, rows_of, trained

from burnish.api.run import run_config
from burnish.cli import main
from burnish.cli.replay import OWN, _show_estimates
from burnish.config.schema import RlConfig
from burnish.errors import CheckpointError
from burnish.trainers.replay import open_replay
from burnish.trainers.replay_gradients import (
    ReplayedGradient,
    load_weights_before,
    open_policy,
    replay_gradients,
    signal_to_noise,
)
from burnish.trainers.telemetry.rollout_notes import notes_of

QUIET = Console(quiet=True)
ONCE = {"optimization": {"learning_rate": 1e-2, "epochs": 1}, "checkpoint": {"every_steps": 1, "keep": 9}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"preset": "grpo", "kl_coef": 0.3},
    "dr_grpo": {"preset": "dr_grpo", "skip_zero_advantages": True},
    "dapo": {"preset": "dapo", "top_entropy": 0.5},
    "rloo": {"preset": "rloo", "kl_coef": 0.3, "kl_target": 0.01},
    "ppo": {"preset": "ppo", "kl_coef": 0.3},
    "opd": {"preset": "opd"},
}
TEACHER = {"path": "policy", "prompt": "{answer}{prompt}", "weight": 0.7}


def gradients(folder: Path, step: int, **variants: str) -> list[ReplayedGradient]:
    """Of the run's own settings, and of these."""
    configs = [run_config(folder, words).config for words in ([], *([word] for word in variants.values()))]
    replayers = {}
    own = configs[0]
    assert isinstance(own, RlConfig)
    with open_policy(own, QUIET) as policy:
        load_weights_before(policy, folder, step)
        for name, config in zip(("own", *variants), configs, strict=True):
            assert isinstance(config, RlConfig)
            with open_replay(config, QUIET, keep_scores=True) as replayer:  # which asks no reward any more
                replayers[name] = replayer
        return replay_gradients(folder / "rollouts" / f"step-{step:06d}.jsonl", policy, replayers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_settings_of_a_run_give_its_own_gradient(tiny_run: BuildRl, name: str) -> None:
    models = {"ppo": {"critic": {}}, "opd": {"teacher": TEACHER}}.get(name, {})
    config = tiny_run(steps=3, algorithm=ALGORITHMS[name], **ONCE, **models)
    trained(config)
    logged = {int(row["step"]): row for row in rows_of(config.output)}
    for step in (1, 3):
        (found,) = gradients(Path(config.output), step)
        assert found.norm == logged[step]["policy/grad_norm"]
        assert {metric: logged[step][metric] for metric in found.metrics} == found.metrics
        assert {"policy/loss", "policy/entropy"} <= found.metrics.keys()
        assert found.cosine == pytest.approx(1.0)
    with open_replay(config, QUIET, keep_scores=True) as replayer:
        recorded = replayer.read(Path(config.output) / "rollouts" / "step-000003.jsonl")
        credited = replayer.credited(recorded)
    assert credited.batch is not None
    for rollout, note in zip(credited.rollouts, notes_of(credited.batch), strict=True):
        assert list(note.token_advantages or ()) == recorded.lines[rollout.key]["token_advantages"]


@pytest.mark.slow
def test_lanes_give_the_same_bits_too(tiny_run: BuildRl) -> None:
    config = tiny_run("cluster.lanes=2", steps=2, **ONCE)
    trained(config)
    (found,) = gradients(Path(config.output), 2)
    assert found.norm == rows_of(config.output)[-1]["policy/grad_norm"]


@pytest.fixture
def folder(tiny_run: BuildRl) -> Path:
    """A run of dr_grpo with checkpoints of steps 2 and 3."""
    checkpoint = {"every_steps": 1, "keep": 2}
    config = tiny_run(steps=3, algorithm="dr_grpo", **(ONCE | {"checkpoint": checkpoint}))
    return trained(config)


@pytest.mark.slow
def test_other_algorithms_on_the_same_batch(folder: Path) -> None:
    own, clip, rloo = gradients(
        folder, 3, clip="algorithm.clip_high=0.5", rloo="algorithm={preset: rloo, kl_in: none, kl_coef: 0}"
    )
    assert (clip.norm, clip.metrics) == (own.norm, own.metrics)  # on policy, the ratio is 1, which no bound clips
    # rloo subtracts the mean of the others, which is dr_grpo's advantage times n / (n - 1), and sums over all tokens
    # what dr_grpo divides by the longest response: 4 tokens.
    assert rloo.norm == pytest.approx(own.norm * 4 / 3 * 4, rel=1e-4)
    assert rloo.cosine == pytest.approx(1.0, abs=1e-5)
    assert rloo.signal_to_noise == pytest.approx(own.signal_to_noise, rel=1e-3)


@pytest.mark.slow
def test_weights_that_are_not_at_hand(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"step 2 began with the weights after step 1, .*\n.*--step (1|3)"):
        gradients(folder, 2)


@pytest.mark.slow
def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    words = ["--gradients", "--algorithms", "rloo,estimator=grpo", "algorithm.kl_in=none"]
    assert main(["replay", str(folder), *words]) == 0
    said = capsys.readouterr().out
    assert "(logged)" in said
    written = folder / "replay" / "001"
    rows = json.loads((written / "gradients.json").read_text())
    assert [row["algorithm"] for row in rows] == ["as recorded", "algorithm.kl_in=none", "rloo", "estimator=grpo"]
    assert {row["step"] for row in rows} == {3}
    assert (written / "gradients.svg").read_text().count("<rect") == 1 + 3 * 4
    for name, why in {"grpo": "did not record", "remax": "is trained on (greedy response without a score)"}.items():
        assert main(["replay", str(folder), "--gradients", "--algorithms", name]) == 2
        assert why in capsys.readouterr().err
    assert main(["replay", str(folder), "--algorithms", "rloo"]) == 2


@pytest.mark.parametrize(
    ("total", "groups", "ratio"),
    [
        # (1, 0) and (1, 1): their inner product is 1, so the sum's signal is 4; its noise is 3 * 2 - 5 = 1.
        (5.0, [1.0, 2.0], 4.0),
        # (1, 0) and (-1, 0): they cancel. Signal 2 * (0 - 2) = -4, noise 2 * 2 - 0 = 4.
        (0.0, [1.0, 1.0], -1.0),
        (4.0, [1.0, 1.0], None),  # they agree
        (1.0, [1.0], None),
    ],
)
def test_signal_to_noise(total: float, groups: list[float], ratio: float | None) -> None:
    assert signal_to_noise(total, groups) == ratio


def test_what_was_logged_says_of_how_many_updates_it_is_the_mean() -> None:
    console = Console(width=160, file=io.StringIO())
    rows = [ReplayedGradient(step, OWN, 1.0, 1.0, None, {}) for step in (1, 2)]
    _show_estimates(rows, {1: {"policy/optimizer_steps": 4.0}, 2: {"policy/optimizer_steps": 1.0}}, console)
    said = console.file.getvalue()
    assert (said.count("(logged, mean of 4 updates)"), said.count("(logged)")) == (1, 1)
