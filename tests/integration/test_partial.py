"""Responses that go on with new weights (`partial`): an engine that waits for them makes the numbers known."""

import json
import os
import time
from pathlib import Path

import pytest
from runs import BuildRl, Run, ctrl_c_in_step, rollouts_of, rows_of, step_rows, trace, trained

from burnish.models.weights import Weights
from burnish.trainers.rl.supply.threaded import SupplyPartial

STEPS = 5
ENGINE = """
import os, pathlib, time
from burnish.rollouts.local.engine import LocalEngine


class PatientEngine(LocalEngine):
    # After its first token, a batch of step s waits for the weights of step s - 1, the newest there can be.
    def generate_until(self, requests, sampling, *, seed, step, stopped, on_finished=None):
        asked = 0

        def stopped_in_time():
            nonlocal asked
            asked += 1
            if asked == 1:
                return False
            pathlib.Path(os.environ["BEGUN"], str(step)).touch()
            while self.version < step - 1 and not stopped():
                time.sleep(0.001)
            return stopped()

        return super().generate_until(
            requests, sampling, seed=seed, step=step, stopped=stopped_in_time, on_finished=on_finished
        )
"""


@pytest.fixture
def run(tiny_run: BuildRl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Trains in `tmp_path/NAME` and returns the folder. The policy publishes once the next batch has been begun."""
    (tmp_path / "patient.py").write_text(ENGINE)
    publish = SupplyPartial.publish

    def after_the_next_has_begun(supply: SupplyPartial, weights: Weights, step: int) -> None:
        deadline = time.monotonic() + 120.0
        while step < STEPS and not Path(os.environ["BEGUN"], str(step + 1)).exists():
            assert time.monotonic() < deadline, f"the batch of step {step + 1} has not been begun"
            time.sleep(0.001)
        publish(supply, weights, step)

    monkeypatch.setattr(SupplyPartial, "publish", after_the_next_has_begun)

    def train(name: str) -> Path:
        begun = tmp_path / f"{name}-begun"
        begun.mkdir(exist_ok=True)
        monkeypatch.setenv("BEGUN", str(begun))
        config = tiny_run(
            f"output={tmp_path}/{name}",
            steps=STEPS,
            max_staleness=1,
            partial=True,
            evaluation={"every_steps": 2},
            checkpoint={"every_steps": 2},
            cluster={"rollout_workers": 1, "threads": 1},
        )
        rollout = config.rollout.model_copy(
            update={"engine": f"{tmp_path}/patient.py:PatientEngine", "ignore_eos": True}
        )
        return trained(config.model_copy(update={"rollout": rollout}))

    return train


@pytest.mark.slow
def test_responses_go_on_with_new_weights_and_a_run_with_what_its_checkpoint_holds(run: Run, tmp_path: Path) -> None:
    """One optimizer step a step: the batch of step s has one token of version s - 2, and three of version s - 1. The
    second run is ended by Ctrl-C after its third step, when the fourth batch is being sampled, and goes on."""
    whole = run("whole")
    assert all("versions" not in rollout for rollout in rollouts_of(whole, 1))
    for step in range(2, STEPS + 1):
        assert {json.dumps(r["versions"]) for r in rollouts_of(whole, step)} == {f"[[0, {step - 2}], [1, {step - 1}]]"}
    rows = step_rows(whole)
    assert [row["rollout/staleness"] for row in rows] == [0.0] + [0.25] * (STEPS - 1)
    assert [row["rollout/renewed_fraction"] for row in rows] == [0.0] + [1.0] * (STEPS - 1)
    # Log-probabilities are those of the weights that sampled each token, so they differ from the trainer's.
    assert rows[0]["rollout/logprob_diff_max"] < 1e-4 < rows[2]["rollout/logprob_diff_max"]

    with ctrl_c_in_step(3):
        run("halves")
    assert len(rows_of(tmp_path / "halves")) == 4
    assert trace(run("halves")) == trace(whole)
