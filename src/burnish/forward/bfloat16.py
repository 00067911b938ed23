"""Whether this processor multiplies bfloat16 itself or emulates it with float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from burnish import processor
from burnish.forward.fast_paths import FastPaths
from burnish.forward.race import Way

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROWS, _WIDTH = 128, 512
_WORTH_A_WORD = 1.1


def bfloat16_note(model: PreTrainedModel, paths: FastPaths) -> str | None:
    """What the user of a bfloat16 model should know on a CPU that multiplies float32 faster; None otherwise."""
    if model.dtype != torch.bfloat16 or model.device.type != "cpu":
        return None
    ways = [Way("bfloat16", _product(torch.bfloat16)), Way("float32", _product(torch.float32))]
    outcome = paths.timings("number types", f"({_ROWS}, {_WIDTH}) x ({_WIDTH}, {_WIDTH})", ways)
    if outcome is None or len(outcome.seconds) < len(ways) or not processor.allows("bfloat16"):
        return processor.emulation_note()
    times = outcome.seconds["bfloat16"] / outcome.seconds["float32"]
    if times < _WORTH_A_WORD:
        return None
    return (
        f"bfloat16 is emulated on this processor: its matrix products take {times:.2g} times as long as those of "
        f"float32; {processor.REMEDY}"
    )


def _product(dtype: torch.dtype) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(_ROWS, _WIDTH, generator=generator).to(dtype)
    weight = torch.randn(_WIDTH, _WIDTH, generator=generator).to(dtype)
    return lambda: linear(inputs, weight)
