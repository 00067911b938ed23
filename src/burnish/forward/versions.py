"""What one allowed version of a library has and another has not, and where it is probed.

| probed | has it | without it | by |
|---|---|---|---|
| `enable_gqa` of PyTorch's `varlen_attn` | PyTorch 2.12 | key heads are repeated | `varlen_shares_keys` |
| `activation_checkpointing_enable` | transformers 5.23 | `gradient_checkpointing_enable` | `enable_checkpointing` |
| `cache` in a model's forward pass | transformers 5.24 | `past_key_values` | `rollouts.local.cache.as_argument` |

`make test-oldest` and `make test-newest` run the unit tests at both ends of what `pyproject.toml` allows.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@functools.cache
def varlen_shares_keys() -> bool:
    """Whether `varlen_attn` takes fewer heads of keys than of queries."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Let the layers of a model keep only their inputs for the backward pass."""
    how = {"use_reentrant": False}
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    if enable is not None:
        enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
