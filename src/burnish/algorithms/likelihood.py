"""Losses of supervised fine-tuning per token, besides the negative log-likelihood itself."""

from __future__ import annotations

from torch import Tensor

from burnish.algorithms.masking import fill_masked


def dynamic_nll(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """-p log p of each token, in which its probability p has no gradient; 0 where the mask is False.

    Its gradient is -grad p in place of -(grad p) / p, so that a token that the model finds unlikely does not outweigh
    the others (dynamic fine-tuning, https://arxiv.org/abs/2508.05629).
    """
    logprobs = fill_masked(logprobs_BT, mask_BT)
    return -logprobs.detach().exp() * logprobs
