"""Frozen models that only score: a separate copy, or the policy's base with the adapter off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from burnish.forward.batch import Batch, Text, TokenScores
from burnish.forward.divergences import Likeliest, PromptScores, score_tokens
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.scoring import ResponsePositions, ResponseScorer
from burnish.models.cut import Cut, CutModel
from burnish.models.loading import LoadedModel
from burnish.models.lora import Adapter
from burnish.models.resting import rest_frozen


class FrozenReference:
    """A separate model whose weights never change."""

    def __init__(
        self, loaded: LoadedModel, *, temperature: float, tokens_per_microbatch: int, lanes: Lanes = ONE_LANE
    ) -> None:
        """Freeze the model and use it as it is. A model that continues to train needs a copy."""
        loaded.model.requires_grad_(False)
        self.loaded = loaded
        self.model = loaded.model
        self._scorer = ResponseScorer(
            loaded.model, temperature=temperature, plain=loaded.plain, vocabulary=loaded.vocabulary
        )
        self._tokens_per_microbatch = tokens_per_microbatch
        self._lanes = lanes
        self._awake: Callable[[], AbstractContextManager[None]] = nullcontext

    def rest(self, folder: Path, *, name: str = "reference") -> None:
        """Offload the weights from now on, except while scoring (`burnish.models.resting`)."""
        self._awake = rest_frozen(name, self.model, folder).awake

    def share_weights(self, cut: Cut) -> None:
        """See `LocalPolicy.share_weights`."""
        shared = CutModel(self.model, self._lanes, cut)
        self._scorer.run_in(shared.root)
        self._lanes = shared.lanes

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens, without gradient. 0 past the end of a response."""
        with self._awake():
            return self._scorer.score_in_microbatches(batch, self._tokens_per_microbatch, lanes=self._lanes).logprobs_BT


class AdapterOffReference:
    """The base model of a LoRA policy, which needs no second copy of the weights. `scores`: the policy's own."""

    def __init__(self, adapter: Adapter, scores: Callable[[Batch], TokenScores]) -> None:
        self._adapter = adapter
        self._scores = scores

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens, without gradient. 0 past the end of a response."""
        with self._adapter.off():
            return self._scores(batch).logprobs_BT


class PromptScorer:
    """Scores given texts under a model: each token, and the tokens that are likeliest there."""

    def __init__(self, loaded: LoadedModel, tokens_per_microbatch: int, *, temperature: float = 1.0) -> None:
        self._pad = loaded.pad_token_id
        self._scorer = ResponseScorer(loaded.model, plain=loaded.plain, vocabulary=loaded.vocabulary)
        self._tokens_per_microbatch, self._temperature = tokens_per_microbatch, temperature

    def __call__(self, text: Sequence[int], k: int) -> PromptScores:
        """Scores of all tokens of a text but the first, and the k likeliest tokens at each."""
        return self.score([(text[:1], text[1:])], k)[0]

    @torch.no_grad()
    def score(self, pairs: Sequence[Text], k: int) -> list[PromptScores]:
        """Scores of the tokens of each response to its prompt, in host memory."""
        batch = Batch.of_texts(pairs, pad_token_id=self._pad)
        found: dict[int, PromptScores] = {}
        for rows, part in self._scorer.trunk.split(batch, self._tokens_per_microbatch):
            part = part.to(self._scorer.model.device)
            positions = ResponsePositions.of(part)
            head, targets_N = self._scorer.below_head(part, positions), positions.take(part.response_tokens)
            scores = score_tokens(head, targets_N, k, temperature=self._temperature)
            lengths = part.host.response_lengths.tolist()
            found |= dict(zip(rows, _cut(scores, lengths), strict=True))
        return [found[row] for row in range(len(pairs))]


def _cut(scores: PromptScores, lengths: Sequence[int]) -> Iterable[PromptScores]:
    """The scores of each row of a batch."""
    columns = [values.cpu().split(lengths) for values in (scores.logprobs_N, scores.ranks_N, *scores.likeliest)]
    return (PromptScores(own, ranks, Likeliest(ids, rest)) for own, ranks, ids, rest in zip(*columns, strict=True))
