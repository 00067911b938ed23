"""`debug.plain`: the fast paths against the plain one, over whole runs."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from runs import BuildRl, rows_of

from burnish.config.schema import RlConfig
from burnish.forward.attention import packs_rows
from burnish.models.policy import LocalPolicy
from burnish.trainers.cluster import train_rl
from burnish.trainers.rl.setup.parts import open_rl_run

pytestmark = pytest.mark.slow_cases("*")

ALGORITHMS = {
    "grpo": {"algorithm": {"preset": "grpo"}, "optimization": {"learning_rate": 1e-3, "epochs": 2, "minibatches": 2}},
    "ppo": {"algorithm": {"preset": "ppo"}, "critic": {"learning_rate": 1e-3}},
    "ppo_shared": {"algorithm": {"preset": "ppo"}, "critic": {"kind": "shared", "learning_rate": 1e-3}},
}


def metrics(config: RlConfig) -> list[dict[str, float]]:
    result = train_rl(config, console=Console(file=io.StringIO()))
    rows = rows_of(result.folder)
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "throughput/"))} for row in rows]


@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_a_run_gives_the_same_numbers_with_and_without_fast_paths(tiny_run: BuildRl, tmp_path: Path, kind: str) -> None:
    """Three steps, all metrics: float32 rounding is all that may differ."""
    fast, plain = (
        metrics(tiny_run(f"output={tmp_path}/{word}", f"debug.plain={word}", **ALGORITHMS[kind]))
        for word in ("false", "true")
    )
    assert len(fast) == 3
    for one, other in zip(fast, plain, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            closeness = 0.01 if name.endswith("_fraction") else 1e-4  # a token on the edge may fall to either side
            assert other[name] == pytest.approx(value, rel=1e-3, abs=closeness), name


def test_plain_rows_are_never_packed(tiny_run: BuildRl, tmp_path: Path) -> None:
    for plain in (False, True):
        with open_rl_run(
            tiny_run(f"debug.plain={plain}", f"output={tmp_path}/{plain}"), Console(file=io.StringIO())
        ) as run:
            assert isinstance(run.policy, LocalPolicy)
            assert packs_rows(run.policy.model) is not plain
