"""Traits of the local engine; see `EngineTraits`. It samples from the weights that train, so it has none of its own."""

from __future__ import annotations

from burnish.config.engines import EngineTraits

TRAITS = EngineTraits(
    label="the local engine", can_stop=True, lays_out_weights=True, fixed_steps=True, keeps_rows=True, tries_paths=True
)
