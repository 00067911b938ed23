"""What a run file says of its algorithm that preset and defaults would not."""

import pytest

from burnish.config.loading import load_run_data
from burnish.config.preset_values import own_section
from burnish.config.schema import RlConfig


def resolved(**algorithm: object) -> dict[str, object]:
    run = {"model": "m", "data": {"train": "t.jsonl"}, "rewards": "exact", "algorithm": algorithm}
    return load_run_data(run, (), "rl").config.model_dump(mode="json")


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [
        ({"preset": "rloo"}, {"preset": "rloo"}),
        ({"preset": "rloo", "entropy_coef": 0.01}, {"preset": "rloo", "entropy_coef": 0.01}),
        ({"preset": "rloo", "kl_coef": 0.05, "clip_low": None}, {"preset": "rloo"}),  # the preset's own values
        ({"entropy_coef": 0.01}, {"entropy_coef": 0.01}),
        ({"preset": "grpo", "kl_coef": 0.1}, {"kl_coef": 0.1}),
    ],
)
def test_what_the_preset_says_is_not_the_runs_own(algorithm: dict[str, object], own: dict[str, object]) -> None:
    assert own_section(RlConfig, resolved(**algorithm), "algorithm") == own
