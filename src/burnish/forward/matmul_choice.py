"""Float32 matrix products on a CPU through oneDNN, if they are as accurate as the usual ones, and a comparison of
their speed with bfloat16.

On some processors the usual library is half as fast as oneDNN for the same numbers. PyTorch uses oneDNN once it is
allowed a lower precision ("medium"). The effect depends on the processor: on most no accuracy is lost, on processors
with bfloat16 matrix units the product really is one of bfloat16, and on others oneDNN is slower. So accuracy and
speed are both measured, and "medium" is set only if nothing is lost and time is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from burnish.errors import BurnishError
from burnish.forward.attention import packs_rows
from burnish.forward.fast_paths import FastPaths, failure
from burnish.forward.kernel_layers import FAMILIES
from burnish.forward.race import Contender
from burnish.machine import processor
from burnish.machine.matmul_precision import matmul_precision
from burnish.types import PreTrainedModel

AS_ACCURATE = 2.0
"""Largest accepted ratio of the root-mean-square errors of the other product and the usual one (bfloat16:
thousands)."""
WIDTH = 512
"""Smallest hidden size for which it pays with rows of any length: oneDNN compiles code for each new shape."""
NARROW_WIDTH = 128
"""Smallest hidden size for which it pays where shapes come again (`burnish.machine.matmul_precision`)."""
_ROWS, _WIDEST = 512, 1024
"""Shape of the products that are timed."""
_BFLOAT16_ROWS, _BFLOAT16_WIDTH = 128, 512
_WORTH_A_WORD = 1.1


@contextmanager
def fast_float32(model: PreTrainedModel, *, plain: bool = False, paths: FastPaths | None = None) -> Iterator[bool]:
    """Inside, float32 products may use oneDNN; yields whether they do. Never with `plain`, for other dtypes, for models
    that are too narrow or on a GPU, or if one is visible (the setting would make its products inexact). Numbers change
    by rounding only; `paths` makes and keeps the choice, so that runs can be repeated bit for bit."""
    fits = model.get_input_embeddings().weight.dtype == torch.float32 and _is_wide_enough(model)
    beside_gpu = torch.cuda.is_available() or model.device.type == "mps"
    if plain or not fits or beside_gpu or _faster_precision(model, paths or FastPaths()) == "highest":
        yield False
        return
    with matmul_precision("medium"):
        yield True


def _is_wide_enough(model: PreTrainedModel) -> bool:
    width = model.get_input_embeddings().weight.shape[1]
    # Whether a model without data (on `meta`) packs rows cannot be tried: it stands for one elsewhere that does.
    rounds = model.config.model_type in FAMILIES and (packs_rows(model) or model.device.type == "meta")
    return bool(width >= (NARROW_WIDTH if rounds else WIDTH))


def _faster_precision(model: PreTrainedModel, paths: FastPaths) -> str:
    """`medium` or `highest`, by a linear layer of the model's width both ways."""
    precisions = ("medium", "highest") if _may_be_medium(paths) else ("highest",)
    width = min(model.get_input_embeddings().weight.shape[1], _WIDEST)
    ways = [Contender(precision, partial(_linear_pass, precision, width)) for precision in precisions]
    return paths.choose("float32 products", f"{_ROWS} x {width} x {4 * width}", ways)


def _may_be_medium(paths: FastPaths) -> bool:
    """Return whether "medium" is allowed and proves accurate; a failed trial is noted in `paths` and counts as no."""
    try:
        return processor.allows("medium_float32") and medium_is_accurate()
    except BurnishError:
        raise
    except Exception as error:  # noqa: BLE001 boundary: what oneDNN raises on a processor it does not know
        paths.notes.append(f"float32 products without medium: {failure(error)}")
        return False


def _linear_pass(precision: str, width: int) -> None:
    """The three products of a linear layer: its outputs, and the gradients of its inputs and weights."""
    inputs, weight = torch.ones(_ROWS, width), torch.ones(4 * width, width)
    with matmul_precision(precision):
        outputs = inputs @ weight.T
        _ = outputs @ weight
        _ = outputs.T @ inputs


def medium_is_accurate() -> bool:
    """Return whether a product of normal numbers at "medium" is as close to the float64 one as at "highest"."""
    return rms_error("medium") <= AS_ACCURATE * rms_error("highest")


@torch.no_grad()
def rms_error(precision: str, dtype: torch.dtype = torch.float32) -> float:
    """Root-mean-square error of a product of this type at this precision, over the root mean square of the result."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(512, 512, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    with matmul_precision(precision):
        error = (left.to(dtype) @ right.to(dtype)).double() - exact
    return float(error.square().mean().sqrt() / exact.square().mean().sqrt())


def bfloat16_note(model: PreTrainedModel, paths: FastPaths) -> str | None:
    """Return a warning for a bfloat16 model on a CPU that multiplies float32 clearly faster; None otherwise."""
    if model.dtype != torch.bfloat16 or model.device.type != "cpu":
        return None
    ways = [Contender("bfloat16", _product(torch.bfloat16)), Contender("float32", _product(torch.float32))]
    outcome = paths.timings(
        "number types", f"({_BFLOAT16_ROWS}, {_BFLOAT16_WIDTH}) x ({_BFLOAT16_WIDTH}, {_BFLOAT16_WIDTH})", ways
    )
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
    inputs = torch.randn(_BFLOAT16_ROWS, _BFLOAT16_WIDTH, generator=generator).to(dtype)
    weight = torch.randn(_BFLOAT16_WIDTH, _BFLOAT16_WIDTH, generator=generator).to(dtype)
    return lambda: linear(inputs, weight)
