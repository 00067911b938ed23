"""Values that a preset supplies beneath a run file, minus the settings of features that the file turns off."""

from __future__ import annotations

from collections.abc import Mapping

from burnish.config import fields
from burnish.config.presets import Preset
from burnish.config.schema_run import RunConfig
from burnish.types import Json


def preset_of(run_file: type[RunConfig], given: Mapping[str, Json]) -> Preset | None:
    """The preset that a run file of this class names, or the default one. None for an unknown name."""
    section, _, field = run_file.preset_field.rpartition(".")
    known = {item.path: item.info for item in fields.all_fields(run_file)}.get(run_file.preset_field)
    default = None if known is None else known.default
    name = (_section(given, section) if section else given).get(field, default)
    return run_file.presets.get(name) if isinstance(name, str) else None


def preset_values(preset: Preset, given: Mapping[str, Json]) -> dict[str, Json]:
    """The preset's values by dotted path. `given` is what the run file and command line set, shorthand written out."""
    dropped = {*_kl(given), *_whitening(given, preset), *_incomplete_responses(given, preset)}
    return {key: value for key, value in preset.values.items() if key not in dropped}


def values_beneath(run_file: type[RunConfig], resolved: Mapping[str, Json]) -> dict[str, object]:
    """Settings that the defaults and the preset of a resolved run file say, by dotted path."""
    defaults = {field.path: field.info.get_default(call_default_factory=True) for field in fields.all_fields(run_file)}
    preset = preset_of(run_file, resolved)
    return defaults | ({} if preset is None else dict(preset.values))


def own_section(run_file: type[RunConfig], resolved: Mapping[str, Json], section: str) -> dict[str, Json]:
    """A section of a resolved run file, without what the preset and the defaults say by themselves: another preset can
    then take its place."""
    known = values_beneath(run_file, resolved)
    own = _section(resolved, section)
    return {name: value for name, value in own.items() if value != known.get(f"{section}.{name}")}


def _kl(given: Mapping[str, Json]) -> tuple[str, ...]:
    """KL settings to drop: a run file that turns the preset's KL off with one field need not unset the others."""
    said = _section(given, "algorithm")
    steering = ("algorithm.kl_estimator", "algorithm.kl_target", "algorithm.kl_horizon")
    if said.get("kl_in") == "none" and said.get("kl_coef", 0) == 0:
        return ("algorithm.kl_coef", *steering)
    if said.get("kl_coef") in (0, 0.0) and "kl_in" not in said:
        return ("algorithm.kl_in", *steering)
    if "kl_target" in said and said["kl_target"] is None:
        return ("algorithm.kl_horizon",)
    return ()


def _whitening(given: Mapping[str, Json], preset: Preset) -> tuple[str, ...]:
    """`whiten_over` is dropped if nothing is whitened."""
    said, switches = _section(given, "algorithm"), ("whiten_rewards", "whiten_advantages")
    is_on = any(said.get(switch, preset.values.get(f"algorithm.{switch}", False)) is not False for switch in switches)
    return () if is_on else ("algorithm.whiten_over",)


def _incomplete_responses(given: Mapping[str, Json], preset: Preset) -> tuple[str, ...]:
    """Without a `truncate_token`, the position to look for it and the score of responses without it are dropped."""
    if preset.values.get("scoring.truncate_token") is None:
        return ()
    is_off = _section(given, "scoring").get("truncate_token", "") is None
    return ("scoring.truncate_after", "scoring.incomplete_score") if is_off else ()


def _section(given: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    section = given.get(name)
    return section if isinstance(section, dict) else {}
