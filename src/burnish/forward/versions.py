"""Features that only some of the allowed versions of a library have, and the place where each is probed.

| probed | has it | without it | by |
|---|---|---|---|
| `enable_gqa` of PyTorch's `varlen_attn` | PyTorch 2.12 | key heads are shared unasked, else repeated | `key_sharing` |
| `out_dtype` of `torch.mm`, `addmm` | CUDA | sums are rounded | `precision.gives_float32_sums` |
| `activation_checkpointing_enable` | transformers 5.23 | `gradient_checkpointing_enable` | `enable_checkpointing` |
| `cache` in a model's forward pass | transformers 5.24 | `past_key_values` | `rollouts.local.cache.as_argument` |

`make test-oldest` and `make test-newest` run the unit tests at both ends of what `pyproject.toml` allows.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Literal

import torch

from burnish.forward.gathering import deterministic
from burnish.types import PreTrainedModel

KeySharing = Literal["asked", "unasked", "repeated"]


@functools.cache
def key_sharing(device_type: str) -> KeySharing:
    """Find out how `varlen_attn` takes fewer heads of keys than of queries: if asked to (`enable_gqa`), without being
    asked (PyTorch 2.11 hands them on to a kernel that can), or only if they are repeated. If it cannot be asked, a pass
    over two tokens, forwards and backwards, decides."""
    from torch.nn.attention.varlen import varlen_attn

    if "enable_gqa" in inspect.signature(varlen_attn).parameters:
        return "asked"
    query, key, value = (
        torch.ones(2, heads, 64, device=device_type, dtype=torch.bfloat16, requires_grad=True) for heads in (2, 1, 1)
    )
    ends = torch.arange(0, 3, 2, device=device_type, dtype=torch.int32)
    try:
        with torch.enable_grad():
            output = varlen_attn(query, key, value, ends, ends, 2, 2)
        assert isinstance(output, torch.Tensor)  # and not with its log-sum-exps
        with deterministic(query.device):  # as in training
            torch.autograd.grad(output, (query, key, value), torch.ones_like(output))
    except RuntimeError:  # the kernel's own check
        return "repeated"
    return "unasked"


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Let the layers of a model keep only their inputs for the backward pass."""
    how = {"use_reentrant": False}
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    if enable is not None:
        enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
