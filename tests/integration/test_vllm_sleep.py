"""`cluster.offload: [rollout_engine]`: vLLM sleeps while anything trains. On a vLLM without a model, which raises where
memory that sleeps is used."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, rows_of, trained

pytestmark = pytest.mark.slow

LOSS = """
import os
from pathlib import Path
from burnish.algorithms.policy_losses.clipped import ppo_clip


def loss(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT):
    with Path(os.environ["FAKE_VLLM_CALLS"]).open("a") as calls:
        calls.write("learn\\n")
    return ppo_clip(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
"""


@pytest.fixture
def train(tiny_run: BuildRl, fake_vllm: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Trains three steps with an evaluation after the second, and returns what vLLM was asked and when a loss was
    computed."""
    (tmp_path / "mine.py").write_text(LOSS)

    def run(
        offload: tuple[str, ...] = ("rollout_engine",), staleness: int = 0, rank: int = 0, **cluster: Any
    ) -> list[str]:
        config = tiny_run(
            "rollout.engine=vllm",
            *([f"model.lora.rank={rank}"] if rank else []),
            f"algorithm.loss={tmp_path}/mine.py:loss",
            f"max_staleness={staleness}",
            evaluation={"every_steps": 2, "at_start": False},
            cluster={"lanes": 2, "threads": 1, "offload": offload, **cluster},
        )
        trained(config)
        return fake_vllm.read_text().splitlines()

    return run


def test_it_sleeps_from_the_last_sample_of_a_step_until_the_next_weights(
    train: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Two lanes, so two calls a step, and one for an evaluation."""
    wakes = ["wake weights", "push", "wake kv_cache"]
    step = ["generate", "generate", "sleep 1", "learn", "learn"]
    assert train() == [
        *("build enable_sleep_mode", "push", *step),
        *(*wakes, *step),
        *(*wakes, "generate", "generate", "sleep 1"),  # after step 2, with the weights of step 3
        *("wake weights kv_cache", *step),
        *(*wakes, "generate", "generate", "sleep 1"),  # after the last one
    ]
    rows = rows_of(tmp_path / "run")
    assert all(row["time/engine_sleep_seconds"] > 0 for row in rows if row["step"] == 2)


def test_batches_ahead_of_training_are_sampled_before_it_sleeps(train: Callable[..., list[str]]) -> None:
    calls = train(staleness=1)
    assert calls[: calls.index("learn")] == ["build enable_sleep_mode", "push", *["generate"] * 4, "sleep 1"]


def test_the_engines_of_all_trainers_sleep_before_any_of_them_trains(train: Callable[..., list[str]]) -> None:
    awake = learned = 0
    for call in train(trainers=2):
        awake += call.startswith(("build", "wake weights")) - call.startswith("sleep")
        learned += call == "learn"
        assert awake == 0 or call != "learn"
    assert awake == 0
    assert learned == 3 * 2


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.matrix)])
def test_rollout_workers_get_new_weights(train: Callable[..., list[str]], rank: int) -> None:
    """With LoRA only adapters, of which vLLM gets no more."""
    calls = train((), rank=rank, rollout_workers=1)
    update = "adapter" if rank else "push"
    after = calls[calls.index("learn") :]
    assert [call for call in after if call in ("push", "adapter")] == [update] * 3
    assert {call for call in after if "generate" in call} == {"generate with adapter" if rank else "generate"}
