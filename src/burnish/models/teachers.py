"""The teachers of a run: frozen models that score the policy's responses, each those of its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from burnish.forward.batch import Batch, present
from burnish.forward.divergences import Divergence
from burnish.forward.scoring import Compare
from burnish.models.cut import Cut
from burnish.models.distillation import Teacher
from burnish.models.reference import FrozenReference
from burnish.models.roles import Reference


class Teachers:
    """`roles.Reference` of one or several models. Of several, the batch says which one each row has
    (`Batch.teacher`)."""

    def __init__(self, models: Sequence[Reference]) -> None:
        self._models = models

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens, without gradient. 0 past the end of a response."""
        if len(self._models) == 1:
            return self._models[0].logprobs(batch)
        found_BT = torch.zeros(batch.response_tokens.shape)
        for number, model in enumerate(self._models):
            rows = (present(batch.teacher, "teacher") == number).nonzero()[:, 0]
            if len(rows):
                part_BT = model.logprobs(batch.select(rows))
                found_BT[rows, : part_BT.shape[1]] = part_BT
        return found_BT

    def comparison(self, divergence: Divergence) -> Compare:
        """The divergence of a student from the only teacher, which must not share weights with the policy."""
        (model,) = self._models
        assert isinstance(model, FrozenReference), "other teachers are refused when the run file is read"
        return Teacher(model.loaded, divergence).compare

    def rest(self, folder: Path) -> None:
        """Offload all weights that are not the policy's, except while scoring."""
        for model in self._models:
            if isinstance(model, FrozenReference):
                model.rest(folder, name="teacher")

    def share_weights(self, cut: Cut) -> None:
        """See `LocalPolicy.share_weights`."""
        for model in self._models:
            if isinstance(model, FrozenReference):
                model.share_weights(cut)
