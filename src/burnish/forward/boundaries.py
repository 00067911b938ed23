"""Lengths beyond which a model treats a text differently, according to its config.

A window or a chunk hides tokens that are further back. Some kinds of rotary embeddings use other angles for every
position as soon as a text is longer than what the model was first trained on. Shorter rows show neither effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_LENGTH = re.compile("window|chunk|block|local|segment|bucket|distance")
_NO_LENGTH = re.compile("layer|expert|feed_forward|head|type|pattern|freq|random|num_mem")
_OTHER_SECTIONS = ("quantization_config", "generation_config")
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_ROTATES_BY_SIDE = ("longrope", "su")


@dataclass(frozen=True, slots=True)
class Boundaries:
    """In tokens. A boundary has no effect on rows up to its length.

    attention: windows, chunks and blocks, ascending. rotation: beyond it another set of angles is used ("longrope").
    stretch: beyond it the angles depend on the length of the longest row, and on rows read earlier
    ("dynamic NTK"). context: longest row that the model takes.
    """

    attention: tuple[int, ...] = ()
    rotation: int | None = None
    stretch: int | None = None
    context: int | None = None

    @staticmethod
    def of(config: PretrainedConfig) -> Boundaries:
        """Read the boundaries from a `transformers` config, without the ones that it marks as unused."""
        settings = config.to_dict()
        kinds = layer_kinds(config)
        unused = set()
        if settings.get("use_sliding_window") is False or (kinds and "sliding_attention" not in kinds):
            unused.add("sliding_window")
        if kinds and "chunked_attention" not in kinds:
            unused.add("attention_chunk_size")
        lengths = {value for name, value in _lengths(settings) if name not in unused}
        rotation = stretch = None
        for rope in _ropes(settings):
            kind = str(rope.get("rope_type") or rope.get("type"))
            if kind in _ROTATES_BY_SIDE:
                rotation = rope.get("original_max_position_embeddings") or settings["original_max_position_embeddings"]
            elif "dynamic" in kind:
                stretch = settings["max_position_embeddings"]
        context = next((value for name in _CONTEXTS if isinstance(value := settings.get(name), int)), None)
        return Boundaries(tuple(sorted(lengths)), rotation, stretch, context)

    def crossed_by(self, length: int) -> tuple[int, ...]:
        """The boundaries of attention that rows of up to `length` tokens can cross."""
        return tuple(boundary for boundary in self.attention if boundary < length)


def layer_kinds(config: PretrainedConfig) -> frozenset[str]:
    """Return the kinds of layers in the config (`full_attention` and the like), an empty set if it lists none."""
    return frozenset(config.to_dict().get("layer_types") or ())


def _lengths(settings: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for key, value in settings.items():
        name = str(key)
        if isinstance(value, Mapping) and name not in _OTHER_SECTIONS:
            yield from _lengths(value)
        names_a_length = _LENGTH.search(name) and not _NO_LENGTH.search(name)
        if names_a_length and isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield name, value


def _ropes(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "rope_type" in settings or "type" in settings:
        yield settings
    for value in settings.values():
        if isinstance(value, Mapping):
            yield from _ropes(value)
