"""The boundary to users' estimators and losses: what they return is checked where they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.algorithms.policy_losses import PolicyLoss
from burnish.errors import ConfigError
from burnish.outside.plugins import calling_outside
from burnish.types import Metric

_EXTENDING = "see docs/extending.md for what it must return"


def checked_advantages(result: Any, mask_BT: Tensor, *, name: str, token_level: bool) -> tuple[Tensor, Tensor | None]:
    """(advantages, returns) of a user's estimator as float32: (B,) and None, or both (B, T) for a token-level one.

    Raises ConfigError for anything except floating-point tensors of these shapes, and for numbers that are not
    finite where they are used.
    """
    if not token_level:
        return _numbers("advantages", result, mask_BT.any(dim=1), name), None
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise _refused(name, f"{_described(result)}, not the pair (advantages_BT, returns_BT)")
    advantages_BT, returns_BT = result
    return _numbers("advantages", advantages_BT, mask_BT, name), _numbers("returns", returns_BT, mask_BT, name)


def _numbers(what: str, value: Any, counts: Tensor, name: str) -> Tensor:
    """`value` checked. `counts`: True where the numbers are used; it has their shape."""
    if not isinstance(value, Tensor) or value.shape != counts.shape or not value.is_floating_point():
        raise _refused(name, f"{_described(value)} as {what}, not floating numbers of shape {tuple(counts.shape)}")
    value = value.detach().to(counts.device, torch.float32)
    odd = int((~value.isfinite() & counts).sum())
    if odd:
        raise _refused(name, f"{odd} {what} that are not finite")
    return value


@dataclass(frozen=True, slots=True)
class CheckedLoss:
    """A user's policy loss. Raises ConfigError if it raises, or returns something that is not a loss."""

    function: Callable[..., Any]
    name: str

    def __call__(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, **numbers: Any
    ) -> PolicyLoss:
        with calling_outside(f"algorithm.loss {self.name!r}", ConfigError):
            result: Any = self.function(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, **numbers)
        if not isinstance(result, PolicyLoss):
            raise self._refused(f"{_described(result)}, not a PolicyLoss")
        loss: Any = result.per_token_BT
        if not isinstance(loss, Tensor) or loss.shape != mask_BT.shape or not loss.is_floating_point():
            wanted = f"floating numbers of shape {tuple(mask_BT.shape)}"
            raise self._refused(f"{_described(loss)} as per_token_BT, not {wanted}")
        if logprobs_BT.requires_grad and not loss.requires_grad:
            raise self._refused("a loss that does not depend on logprobs_BT, so nothing would be learned")
        metrics: Any = result.metrics
        if not isinstance(metrics, Mapping) or not all(isinstance(metric, Metric) for metric in metrics.values()):
            raise self._refused(f"{metrics!r:.80} as metrics, not names to burnish.types.Metric")
        return result

    def _refused(self, found: str) -> ConfigError:
        return ConfigError(f"algorithm.loss {self.name!r} returned {found}", remedy=_EXTENDING)


def _refused(name: str, found: str) -> ConfigError:
    return ConfigError(f"algorithm.estimator {name!r} returned {found}", remedy=_EXTENDING)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} and shape {tuple(value.shape)}"
    return f"{value!r:.60}" if value is None or isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
