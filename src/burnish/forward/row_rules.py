"""Rules on which rows may share a pass through a model, found out by trying.

In a pass over padded rows each row should have the numbers that it has alone. Causal attention with a mask ensures
that. A layer that carries a state through the padding breaks it, and so does a mask that is aligned to the end of the
longest row, or angles that depend on its length. The trial compares padded rows with
the same rows alone, including rows longer than the boundaries of the config (`burnish.forward.boundaries`).
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from burnish.errors import ModelError
from burnish.forward.boundaries import Boundaries
from burnish.forward.kernel_layers import FAMILIES
from burnish.forward.microbatches import position_ids
from burnish.types import PreTrainedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Beside = Literal["padded", "equal", "alone"]
TRIED_UP_TO = 512
"""Boundaries up to this many tokens are tried; rows that cross a longer one share a pass only with rows of their own
length."""
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""Largest relative distance of hidden states that rounding explains. A row that sees its neighbour differs more."""

_LENGTHS = (3, 12, 7)
_PAST = 4
"""Rows that test a boundary are this many tokens longer."""
_known: dict[Hashable, RowRules] = {}
"""By architecture, config and number type: a copy of a model with other weights needs no new trial."""


@dataclass(frozen=True, slots=True)
class RowRules:
    """beside: rows that may share a pass with a row: of any length, padded; of equal length; or none.

    tried_up_to: longest rows for which the trial holds (None: any); longer ones share a pass with rows of equal length.
    packed_up_to: longest rows that no window affects, so that they may be packed (None: any).
    rotation, stretch: as in `Boundaries`.
    """

    beside: Beside = "padded"
    tried_up_to: int | None = None
    packed_up_to: int | None = None
    rotation: int | None = None
    stretch: int | None = None

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """Group the rows (`lengths`: tokens of each) that may share a pass, in order of the groups' first rows.

        ModelError where a row is longer than the model's angles are defined for.
        """
        longest = max(lengths, default=0)
        if self.stretch is not None and longest > self.stretch:
            raise ModelError(
                f"a row has {longest} tokens, but beyond {self.stretch} this model's rotations ('dynamic') depend on "
                "the rows that it read before, so a row's numbers are not determined by the row",
                remedy=f"limit prompt and response to {self.stretch} tokens together, or use another kind of rotation",
            )
        groups: dict[Hashable, list[int]] = {}
        for row, length in enumerate(lengths):
            company: Hashable = "beyond", self.rotation is not None and length > self.rotation
            if self.beside == "alone":
                company = "row", row
            elif self.beside == "equal" or (self.tried_up_to is not None and length > self.tried_up_to):
                company = "length", length
            groups.setdefault(company, []).append(row)
        return list(groups.values())


def row_rules(model: PreTrainedModel) -> RowRules:
    """The rules for this model's trunk.

    Raises ModelError for models that let a token see later ones, that cannot run over a text at all, or that give
    other numbers each time.
    """
    trunk = model.base_model
    said = (type(trunk), trunk.config.to_json_string(), trunk.config._attn_implementation)
    key = (*said, trunk.dtype, trunk.device.type)
    if key not in _known:
        _known[key] = _find_rules(trunk)
    return _known[key]


def quiet_outputs(model: PreTrainedModel) -> dict[str, bool]:
    """Arguments that ask only for states or logits, whatever else the model's config asks for."""
    return {"return_dict": True} | dict.fromkeys({"output_router_logits"} & model.config.to_dict().keys(), False)


def plain_inputs(model: PreTrainedModel, tokens_BS: Tensor) -> dict[str, object]:
    """Arguments for a pass over rows of one length, nothing cached."""
    return {"input_ids": tokens_BS, "use_cache": False} | quiet_outputs(model)


def padded_inputs(model: PreTrainedModel, tokens_BS: Tensor, mask_BS: Tensor) -> dict[str, object]:
    """Arguments for a pass over rows padded on the right (mask_BS is 0 there), nothing cached."""
    positions = {"position_ids": position_ids(mask_BS)} if takes(model, "position_ids") else {}
    return plain_inputs(model, tokens_BS) | {"attention_mask": mask_BS} | positions


def takes(model: PreTrainedModel, argument: str) -> bool:
    """Return whether the model's forward pass names this argument."""
    return argument in inspect.signature(_unwrapped(model).forward).parameters


def _unwrapped(model: PreTrainedModel) -> nn.Module:
    """The model inside a wrapper, such as peft's, whose own forward pass names no arguments; else the model itself."""
    return next((part for part in model.modules() if "input_ids" in inspect.signature(part.forward).parameters), model)


def is_near(found: Tensor, wanted: Tensor, *, times: float = 1.0) -> bool:
    """Return whether rounding explains the difference between states or logits. times: factor on the tolerance."""
    distance = float((found.float() - wanted.float()).norm())
    return distance <= times * TOLERANCE.get(wanted.dtype, 1e-4) * float(wanted.float().norm())


@torch.no_grad()
def _find_rules(trunk: PreTrainedModel) -> RowRules:
    boundaries = Boundaries.of(trunk.config)
    untried = [boundary for boundary in boundaries.attention if boundary > TRIED_UP_TO]
    rules = partial(
        RowRules,
        tried_up_to=min(untried, default=None),
        packed_up_to=min(boundaries.attention, default=None),
        rotation=boundaries.rotation,
        stretch=boundaries.stretch,
    )
    if trunk.config.model_type in FAMILIES:  # whose masks transformers makes for padded rows, windows included
        return replace(rules(), tried_up_to=None)
    _check_settings(trunk.config)
    with evaluation_mode(trunk):
        return rules(beside=_try(trunk, _texts(trunk, boundaries), rules()))


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode inside. Afterwards each module is in its earlier mode, which may differ between modules."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check_settings(config: PretrainedConfig) -> None:
    """Refuse what a trial on short texts does not show."""
    settings, kind = config.to_dict(), config.model_type
    if settings.get("attention_type") == "block_sparse":
        raise ModelError(
            f"the block-sparse attention of this {kind} model lets a token see the tokens after it",
            remedy="set attention_type: original_full in the model's config.json",
        )
    every = settings.get("rescale_every") or 0
    if 0 < every < settings.get("num_hidden_layers", 0):
        raise ModelError(
            f"this {kind} model divides its own weights in evaluation mode (rescale_every: {every}), and they would be "
            "saved so",
            remedy="set rescale_every: 0 in the model's config.json",
        )


def _try(trunk: PreTrainedModel, texts: list[Tensor], rules: RowRules) -> Beside:
    alone = [_states_alone(trunk, text) for text in texts]
    if not all(bool(states.isfinite().all()) for states in alone):
        return "padded"  # weights that are not finite show nothing; the first pass over real rows tells
    longest = max(range(len(texts)), key=lambda row: len(texts[row]))
    _check_reads_forwards(trunk, texts[longest], alone[longest])
    groups = rules.groups([len(text) for text in texts])
    side_by_side = [[(texts[row], alone[row]) for row in rows] for rows in groups]
    if all(_agrees(trunk, [text for text, _ in rows], [states for _, states in rows]) for rows in side_by_side):
        return "padded"
    pairs = [torch.stack([text, text.flip(0)]) for text in texts]
    if all(_runs_alike(trunk, plain_inputs(trunk, pair), [own]) for pair, own in zip(pairs, alone, strict=True)):
        return "equal"
    return "alone"


def _states_alone(trunk: PreTrainedModel, text: Tensor) -> Tensor:
    try:
        states: Tensor = trunk(**plain_inputs(trunk, text[None]))[0][0]
    except Exception as error:  # boundary to a foreign model: anything may come out of it
        raise ModelError(
            f"this {trunk.config.model_type} model cannot run over a text ({type(error).__name__}: {error})",
            remedy="use a causal language model of transformers that needs nothing but token ids",
        ) from error
    return states


def _check_reads_forwards(trunk: PreTrainedModel, text: Tensor, states: Tensor) -> None:
    if not is_near(_states_alone(trunk, text), states):
        raise ModelError(
            f"this {trunk.config.model_type} model gives different numbers each time it reads the same text",
            remedy="use a model that is deterministic in evaluation mode",
        )
    other = torch.cat([text[:-1], text[:1]])
    if not is_near(_states_alone(trunk, other)[:-1], states[:-1]):
        raise ModelError(
            f"this {trunk.config.model_type} model lets a token see the tokens after it, so it has no probability of a "
            "text",
            remedy="use a causal language model; one that can be both says is_decoder: true in its config.json",
        )


def _agrees(trunk: PreTrainedModel, texts: list[Tensor], wanted: list[Tensor]) -> bool:
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    return _runs_alike(trunk, padded_inputs(trunk, pad(texts), pad([torch.ones_like(text) for text in texts])), wanted)


def _runs_alike(trunk: PreTrainedModel, inputs: dict[str, object], wanted: list[Tensor]) -> bool:
    """Return whether the first rows of this pass have the states that they have alone."""
    try:
        found = trunk(**inputs)[0]
    except Exception:  # noqa: BLE001  boundary to a foreign model: one that cannot take such rows gets others
        return False
    return all(is_near(found[row, : len(states)], states) for row, states in enumerate(wanted))


def _texts(trunk: PreTrainedModel, boundaries: Boundaries) -> list[Tensor]:
    """Rows of several lengths, the longest beyond every boundary that the trial goes up to."""
    near = [boundary for boundary in boundaries.attention if boundary <= TRIED_UP_TO]
    lengths = [*_LENGTHS, *((max(near) // 2 + _PAST, max(near) + _PAST) if near else ())]
    longest = min(limit for limit in (boundaries.context, boundaries.stretch, max(lengths)) if limit is not None)
    vocabulary = int(_embedding_weight(trunk).shape[0])
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, vocabulary, (len(lengths), longest), generator=generator).to(trunk.device)
    return [row[: min(length, longest)] for row, length in zip(text, lengths, strict=True)]


def _embedding_weight(trunk: PreTrainedModel) -> Tensor:
    try:
        return trunk.get_input_embeddings().weight
    except NotImplementedError as error:
        raise ModelError(
            f"this {trunk.config.model_type} model does not say where its token embedding is",
            remedy="use a causal language model of another architecture",
        ) from error
