"""Keep the minibatch whose loss or gradient is not finite, for inspection."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from burnish.errors import DivergenceError
from burnish.forward.batch import Batch
from burnish.observability.atomic import write_text_atomically

DIVERGED_FOLDER = "diverged"


@contextmanager
def keeping_batch(run_dir: Path, step: int, batch: Batch) -> Iterator[None]:
    """On DivergenceError in the optimizer step inside, write the minibatch to `diverged/` and name the file in the
    error.

    `step-000123.safetensors` holds the fields of the batch by name. `step-000123.json` holds the message and, for each
    row, its group, its tokens, the number of trained ones, and the fields that are not finite.
    """
    try:
        yield
    except DivergenceError as error:
        where = _keep(run_dir / DIVERGED_FOLDER, step, batch, error.message)
        raise DivergenceError(f"{error.message}; {where}", remedy=error.remedy) from error


def _keep(folder: Path, step: int, batch: Batch, message: str) -> str:
    """Save the batch; return a sentence with its file, or why it was not saved: a full disk must not hide the
    divergence."""
    path = folder / f"step-{step:06d}.safetensors"
    host = batch.to("cpu")
    values = ((f.name, getattr(host, f.name)) for f in dataclasses.fields(host))
    tensors = {name: value.contiguous().clone() for name, value in values if value is not None}
    content = {"step": step, "message": message, "rows": [_row(batch, tensors, i) for i in range(len(batch))]}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path)
        write_text_atomically(path.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        return f"the minibatch could not be saved ({error})"
    return f"the minibatch of step {step} is in {path}"


def _row(batch: Batch, tensors: dict[str, Tensor], row: int) -> dict[str, object]:
    length = int(batch.response_lengths[row])
    odd = [name for name, value in tensors.items() if value.dim() == 2 and not value[row, :length].isfinite().all()]
    return {
        "group_id": int(batch.group_ids[row]),
        "prompt_tokens": batch.prompt_tokens[row, : int(batch.prompt_lengths[row])].tolist(),
        "response_tokens": batch.response_tokens[row, :length].tolist(),
        "trained_tokens": int(batch.loss_mask[row].sum()),
        "not_finite": odd,
    }
