"""Where two runs part, on folders written by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from burnish.checkpointing.comparing import FirstDifference, common_steps, different_settings, first_difference
from burnish.checkpointing.store import CheckpointStore
from burnish.cli import main
from burnish.errors import DataError

Changes = dict[str, Any]
Part = Callable[..., FirstDifference | None]
LINE: Changes = {
    "prompt_id": "p0",
    "sample_index": 0,
    "prompt_tokens": [5, 6],
    "response_tokens": [7, 8],
    "rollout_logprobs": [-0.5, -0.25],
    "reward": 1.0,
    "reward_parts": {"exact": 1.0},
    "old_logprobs": [-0.5, -0.25],
    "token_advantages": [1.0, 1.0],
    "turn_seconds": [[0.5]],
}
ROW: Changes = {"reward/mean": 0.5, "policy/loss": 0.125, "policy/grad_norm": 2.0, "time/step_seconds": 1.0}


def write_run(folder: Path, *, steps: int = 3, line: Changes, row: Changes, config: str = "seed: 0\n") -> Path:
    """A run of some steps that differs in these values from its step 2 on."""
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text(f"model: m\noutput: {folder}\n{config}")
    rows = []
    for step in range(1, steps + 1):
        changes = (line, row) if step >= 2 else ({}, {})
        lines = [LINE, {**LINE, "sample_index": 1, **changes[0]}]
        (folder / "rollouts" / f"step-{step:06d}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        rows.append({"step": step, **ROW, **changes[1]})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


@pytest.fixture
def part(tmp_path: Path) -> Part:
    """From what a run has otherwise to where it parts from the one written above."""

    def compare(line: Changes, row: Changes, **options: float) -> FirstDifference | None:
        runs = [write_run(tmp_path / "a", line={}, row={}), write_run(tmp_path / "b", line=line, row=row)]
        return first_difference(*runs, common_steps(*runs), **options)

    return compare


def test_equal_runs_have_no_first_difference(part: Part) -> None:
    row = {"time/step_seconds": 9.0, "eval/accuracy": 0.5}  # the second of one run alone: nothing to compare
    assert part({"turn_seconds": [[9.0]]}, row) is None


@pytest.mark.parametrize(
    ("line", "row", "quantity", "changed", "compared", "largest"),
    [
        ({"prompt_tokens": [5, 9]}, {}, "prompts", 1, 9, 3.0),
        ({"response_tokens": [7, 8, 9]}, {}, "sampled tokens", 1, 6, 1.0),
        ({"rollout_logprobs": [-0.5, -0.75]}, {}, "log-probabilities of the sampler", 1, 6, 0.5),
        ({"reward": 0.0, "reward_parts": {"exact": 0.0}}, {"reward/mean": 0.25}, "rewards", 3, 5, 1.0),
        ({"reward": None}, {}, "rewards", 1, 5, None),
        ({"old_logprobs": [-0.5, -0.125]}, {}, "log-probabilities of the trainer", 1, 6, 0.125),
        ({"token_advantages": [-1.0, -1.0]}, {}, "advantages", 2, 6, 2.0),
        ({}, {"policy/loss": 0.25}, "loss", 1, 1, 0.125),
        ({}, {"policy/grad_norm": 3.0}, "gradient norm", 1, 1, 1.0),
    ],
)
def test_the_first_quantity(
    part: Part, line: Changes, row: Changes, quantity: str, changed: int, compared: int, largest: float | None
) -> None:
    found = part(line, {"policy/grad_norm": 8.0, **row})
    assert found is not None
    assert (found.step, found.quantity, found.changed, found.compared) == (2, quantity, changed, compared)
    assert found.largest == largest
    assert found.later == (() if quantity == "gradient norm" else ("gradient norm",))


def test_small_differences_may_be_accepted(part: Part) -> None:
    found = part({"rollout_logprobs": [-0.5, -0.251]}, {"policy/loss": 0.25}, tolerance=0.01)
    assert found is not None
    assert (found.quantity, found.example.place) == ("loss", "policy/loss")


def test_no_token_is_nearly_another(part: Part) -> None:
    found = part({"response_tokens": [7, 9]}, {}, tolerance=1.0)
    assert found is not None
    assert str(found) == (
        "step 2, sampled tokens: 1 of 6 values differ, by up to 1; "
        "first [1] of response_tokens of prompt 'p0', sample 1: 8 and 9"
    )


def test_weights_are_compared_where_both_runs_kept_them(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, line={}, row={}) for name in ("a", "b")]
    for run, change in zip(runs, (0.0, 0.5), strict=True):
        tensors = {"up": torch.ones(2, 2), "down": torch.tensor([1.0, 2.0 - change])}
        CheckpointStore(run).save(2, lambda folder, tensors=tensors: save_file(tensors, folder / "model.safetensors"))
    found = first_difference(*runs, [1, 2, 3])
    assert found is not None
    assert (found.step, found.quantity, found.changed, found.compared) == (2, "weights", 1, 2)
    assert found.example == ("weights", "down in model.safetensors", 2.0, 1.5)


def test_settings_and_steps_that_are_not_shared(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", line={}, row={})
    second = write_run(tmp_path / "b", line={}, row={}, steps=2, config="seed: 1\n")
    assert [(one.field, one.before, one.now) for one in different_settings(first, second)] == [("seed", 0, 1)]
    assert common_steps(first, second) == [1, 2]
    (second / "metrics.jsonl").write_text('{"step": 7}\n')
    with pytest.raises(DataError, match=r"no step in common: .* steps 1 to 3 and steps 7 to 7"):
        common_steps(first, second)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "a", line={}, row={}, config="seed: 0\nrewards: exact\n")
    second = write_run(tmp_path / "b", line={}, row={"policy/loss": 0.5}, config="seed: 0\nrewards: math\n")
    assert main(["bisect", str(first), str(first)]) == 0
    assert "3 steps compared, 1 to 3: no difference" in capsys.readouterr().out
    assert main(["bisect", str(first), str(second)]) == 1
    said = capsys.readouterr().out
    assert "rewards: 'exact' in A, 'math' in B" in said
    assert "first difference (A and B): step 2, loss: 1 of 1 values differ, by up to 0.375" in said
    assert main(["bisect", str(first), str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
