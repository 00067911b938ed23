"""Combinations of fields that cannot work in a reward model's run file; see `burnish.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.checks import check_training
from burnish.config.presets import RM_PRESETS
from burnish.config.problems import Problem
from burnish.config.schema_rm import ComparedFields, NormalizationConfig, RmFields
from burnish.errors import suggestion

_SAMPLING = ("policy", "prompts", "max_response_tokens", "temperature", "ignore_eos")
"""Fields of the normalisation that only samples of the policy read."""


def check_rm(config: RmFields) -> list[Problem]:
    """List the contradictions in a run file of `burnish rm`."""
    return [
        *_preset(config),
        *_pairs_only(config),
        *_score_place(config),
        *held_out_twice(config),
        *check_training(config),
        *_unused_query(config),
        *_normalization(config.normalization, config.preset),
    ]


def held_out_twice(config: ComparedFields) -> Iterator[Problem]:
    """Refuse to hold out training data if there is held-out data already."""
    if config.data.eval and config.held_out_fraction > 0:
        message = f"is {config.held_out_fraction:g}, but data.eval already names held-out data"
        yield Problem("held_out_fraction", message, "remove one of the two")


def _unused_query(config: RmFields) -> Iterator[Problem]:
    if config.data.query is not None and not config.normalization.prompts:
        message = "is set, but it is not used: comparisons have their own prompts"
        yield Problem("data.query", message, "remove it (it only cuts documents in normalization.prompts)")


def _normalization(settings: NormalizationConfig, preset: str | None) -> Iterator[Problem]:
    """Refuse a normalisation that is never made, and fields that only another choice of `kind` or `on` reads.

    Values that come from the preset never contradict what the run file sets.
    """
    set_before = {name: info.default for name, info in NormalizationConfig.model_fields.items()}
    if preset is not None and preset in RM_PRESETS:
        set_before |= {name.removeprefix("normalization."): value for name, value in RM_PRESETS[preset].values.items()}
    changed = [name for name, value in vars(settings).items() if value not in ((), None, set_before[name])]
    if settings.kind == "none":
        for name in (name for name in changed if name not in ("kind", "trainable")):
            yield Problem(f"normalization.{name}", "is set, but kind is none", "set normalization.kind")
        return
    if not (settings.before or settings.after):
        message = f"is {settings.kind}, but normalization.before and normalization.after are both false"
        yield Problem("normalization.kind", message, "set normalization.after (or kind: none)")
    unread, other = {"policy": (("references",), "references"), "references": (_SAMPLING, "policy")}[settings.on]
    for name in (name for name in changed if name in unread):
        message = f"is set, but normalization.on is {settings.on}"
        yield Problem(f"normalization.{name}", message, f"remove it, or set normalization.on: {other}")


def _preset(config: RmFields) -> Iterator[Problem]:
    if config.preset is not None and config.preset not in RM_PRESETS:
        yield Problem("preset", f"{config.preset!r} is not known", suggestion(config.preset, RM_PRESETS))


def _pairs_only(config: RmFields) -> Iterator[Problem]:
    if config.loss == "bradley_terry":
        if config.candidates not in (None, 2):
            message = f"is {config.candidates}, but the loss bradley_terry compares two responses"
            yield Problem("candidates", message, "set loss: best_of")
        return
    for field, default in (("margins", False), ("label_smoothing", 0.0), ("center_coef", 0.0)):
        value = config.__dict__[field]
        if value != default:
            yield Problem(field, f"is {value}, but the loss best_of does not take it", "use loss: bradley_terry")
    if config.ties == "half":
        yield Problem("ties", "is half, but best_of needs a best response", "set ties: drop, or loss: bradley_terry")


def _score_place(config: RmFields) -> Iterator[Problem]:
    if (config.score_at == "last_position") != (config.response_length is not None):
        message = f"is {config.response_length}, but score_at is {config.score_at}"
        yield Problem("response_length", message, "they belong together: set both, or neither")
