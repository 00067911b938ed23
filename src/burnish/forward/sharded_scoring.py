"""Passes through a model of whose weights each process of a team has a part only."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from burnish.forward.batch import Batch
from burnish.forward.scoring import ResponseScorer
from burnish.forward.token_scores import TokenScores

Fields = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class ShardedScorer(ResponseScorer):
    """A `ResponseScorer` whose passes run in `root(pass)`, a module that brings the weights together.

    It returns what the pass returns, and looks for tensors with a gradient in tuples.
    """

    def __init__(self, whole: ResponseScorer, root: nn.Module) -> None:
        """`whole`: the scorer of the model before it was cut, whose ways it keeps."""
        vars(self).update(vars(whole))
        self._root = root

    def score(self, batch: Batch, **options: Any) -> TokenScores:
        """See `ResponseScorer.score`."""
        score = super().score
        return TokenScores(*self._root(lambda: _fields(score(batch, **options))))


def _fields(scores: TokenScores) -> Fields:
    return scores.logprobs_BT, scores.entropy_BT, scores.correct_BT, scores.values_BT, scores.router_loss
