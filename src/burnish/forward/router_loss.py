"""The load-balancing loss of mixture models, which keeps a router from sending all tokens to a few experts (Fedus et
al. 2021, https://arxiv.org/abs/2101.03961, equations 4 to 6), as the model's own module computes it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from burnish.errors import ModelError
from burnish.types import PreTrainedModel

_FUNCTION = "load_balancing_loss_func"
_ARGUMENTS = ["gate_logits", "num_experts", "top_k", "attention_mask"]


class RouterLoss:
    """Sum of the load-balancing losses of one micro-batch's forward passes.

    With E experts: E * sum over experts of (its share of the tokens) * (its mean probability), over all layers and all
    tokens of the pass that predict another, prompts among them. Where all experts are used alike it is the number of
    experts that a token is sent to.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Raise ModelError for models without a router, or with one for which `transformers` has no such loss."""
        settings = model.config.get_text_config().to_dict()
        found = vars(sys.modules[type(model).__module__]).get(_FUNCTION)
        experts = settings.get("num_experts_per_tok")
        if found is None or list(inspect.signature(found).parameters) != _ARGUMENTS or not isinstance(experts, int):
            raise ModelError(
                f"model.router_aux_coef is set, but this {model.config.model_type} model has no router with a "
                "load-balancing loss",
                remedy="set model.router_aux_coef: 0",
            )
        self._function: Callable[..., Any] = found
        self._experts_per_token = experts
        self._passes: list[tuple[Tensor, Tensor]] = []

    def add(self, router_logits: tuple[Tensor, ...], weights_BS: Tensor) -> None:
        """Take the logits (B * S, experts) of each layer of a pass, and how often each token counts (padding: 0)."""
        loss = self._function(router_logits, router_logits[0].shape[-1], self._experts_per_token, weights_BS)
        self._passes.append((loss, weights_BS.sum()))

    def take(self) -> Tensor:
        """() float32: the mean over the passes since the last call, by their numbers of tokens."""
        losses, tokens = (torch.stack(part) for part in zip(*self._passes, strict=True))
        self._passes = []
        return (losses * tokens).sum() / tokens.sum()
