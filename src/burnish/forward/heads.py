"""Finding out how a model turns its last hidden state into logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from burnish.forward.few_layers import telling_layers
from burnish.forward.logprobs import HeadTransform
from burnish.forward.row_rules import plain_inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROBE_TOKENS = 4


def find_head_transform(model: PreTrainedModel) -> HeadTransform | None:
    """The transform that makes the model's own logits from those of its output embedding; None if none does.

    Candidates come from the model's config (logit scale, soft cap), and a comparison on a few tokens decides. None
    means that scores must be taken from the model's own full logits.
    """
    base, output = model.base_model, model.get_output_embeddings()
    if output is None or base is model or type(output) is not nn.Linear:
        return None
    device = output.weight.device
    tokens = torch.arange(PROBE_TOKENS, device=device)[None] % output.weight.shape[0]
    with torch.no_grad(), telling_layers(model):
        expected = model(**plain_inputs(model, tokens)).logits.float()
        hidden = base(**plain_inputs(base, tokens))[0]
        if hidden.shape[-1] != output.weight.shape[1]:
            return None
        raw = nn.functional.linear(hidden, output.weight, output.bias)
        tolerance = 1e-5 if raw.dtype == torch.float32 else 2e-2
        for transform in _candidates(model.config.get_text_config()):
            if _agree(transform(raw.float()), expected, tolerance):
                return transform
    return None


def _agree(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-3))


def _candidates(config: object) -> list[HeadTransform]:
    # Foreign configs: each family names its scale differently (Cohere multiplies, Granite divides).
    scales = [1.0]
    logit_scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    multiplier = getattr(config, "lm_head_multiplier", None)
    scales += [float(value) for value in (logit_scale, multiplier) if isinstance(value, (int, float))]
    scales += [1.0 / value for value in (divisor,) if isinstance(value, (int, float)) and value]
    softcap = getattr(config, "final_logit_softcapping", None)
    caps = [float(softcap), None] if isinstance(softcap, (int, float)) else [None]
    return [HeadTransform(scale, cap) for cap in caps for scale in reversed(scales)]
