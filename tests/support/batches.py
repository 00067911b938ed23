"""Batches put together from parts."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from burnish.forward.batch import Batch


def batch_of(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    pad_token_id: int = 0,
    **fields: torch.Tensor,
) -> Batch:
    """Right-padded rows, trained on at every response token; group ids count the rows unless they are given."""
    batch = Batch.of_texts(list(zip(prompts, responses, strict=True)), pad_token_id=pad_token_id)
    return dataclasses.replace(batch, **fields)


def joined(batches: Sequence[Batch], pad_token_id: int = 0) -> Batch:
    """The rows of several batches under each other. A field is set in all of them or in none."""
    fills = {"prompt_tokens": pad_token_id, "response_tokens": pad_token_id, "turn_index": -1}
    columns: dict[str, torch.Tensor | None] = {}
    for field in dataclasses.fields(Batch):
        parts = [getattr(batch, field.name) for batch in batches]
        if parts[0] is None or parts[0].dim() == 1:
            columns[field.name] = None if parts[0] is None else torch.cat(parts)
            continue
        width, fill = max(part.shape[1] for part in parts), fills.get(field.name, 0)
        columns[field.name] = torch.cat([pad(part, (0, width - part.shape[1]), value=fill) for part in parts])
    return Batch(**columns)  # type: ignore[arg-type]
