"""The losses as a trainer of someone else's uses them, and the lines of pages that show it."""

import re
from pathlib import Path

import pytest
import torch

from burnish import losses
from burnish.algorithms.pair_losses import PAIR_LOSSES
from burnish.algorithms.policy_losses.table import POLICY_LOSSES

REPOSITORY = Path(__file__).parents[2]


def test_every_loss_is_there() -> None:
    assert {name: getattr(losses, name) for name in POLICY_LOSSES} == {
        name: row.function for name, row in POLICY_LOSSES.items()
    }
    assert all(getattr(losses.preferences, name) is row.function for name, row in PAIR_LOSSES.items())


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_lines_of_a_page(page: str) -> None:
    """Ratios of 1 and a reference equal to the policy: the loss is minus the mean advantage, -(3 * 1 - 1) / 4 a token.
    The advantages 1 and -1 are given, or those of two responses to one prompt with the scores 1 and 0."""
    blocks = re.findall(r"^```python\n(.*?)```", (REPOSITORY / page).read_text(encoding="utf-8"), flags=re.S | re.M)
    (code,) = (block for block in blocks if "losses.ppo_clip" in block)
    logprobs_BT = torch.full((2, 3), -1.0, requires_grad=True)
    given = {
        "logprobs_BT": logprobs_BT,
        "old_logprobs_BT": torch.full((2, 3), -1.0),
        "ref_logprobs_BT": torch.full((2, 3), -1.0),
        "advantages_BT": torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]]),
        "scores_B": torch.tensor([1.0, 0.0]),
        "group_ids_B": torch.tensor([0, 0]),
        "mask_BT": torch.tensor([[True, True, True], [True, False, False]]),
    }
    exec(code, given)
    if "loss" in given:
        assert float(given["loss"].detach()) == pytest.approx(-0.5)
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.tolist() == [[-0.25, -0.25, -0.25], [0.25, 0.0, 0.0]]
