"""The losses as a trainer of someone else's uses them, and the lines of docs/python.md that show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from burnish import losses
from burnish.algorithms.pair_losses import PAIR_LOSSES
from burnish.algorithms.policy_losses.table import POLICY_LOSSES

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_every_loss_is_there() -> None:
    assert {name: getattr(losses, name) for name in POLICY_LOSSES} == {
        name: row.function for name, row in POLICY_LOSSES.items()
    }
    assert all(getattr(losses.preferences, name) is row.function for name, row in PAIR_LOSSES.items())


def test_the_lines_of_the_page() -> None:
    """Two responses to one prompt, scores 1 and 0, ratios 1: the loss is minus the mean advantage of a token."""
    (code,) = re.findall(r"<!-- test: losses -->\n```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    logprobs_BT = torch.full((2, 3), -1.0, requires_grad=True)
    given = {
        "logprobs_BT": logprobs_BT,
        "old_logprobs_BT": torch.full((2, 3), -1.0),
        "ref_logprobs_BT": torch.full((2, 3), -1.0),
        "scores_B": torch.tensor([1.0, 0.0]),
        "group_ids_B": torch.tensor([0, 0]),
        "mask_BT": torch.tensor([[True, True, True], [True, False, False]]),
    }
    exec(code, given)
    # rloo: advantages 1 and -1; token mean over 4 trained tokens: -(3 * 1 - 1) / 4; the KL of equal models is 0
    loss = given["loss"]
    assert float(loss.detach()) == pytest.approx(-0.5)
    assert logprobs_BT.grad is not None
    assert logprobs_BT.grad.tolist() == [[-0.25, -0.25, -0.25], [0.25, 0.0, 0.0]]
