"""Which command a run file is for, judged by its keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from burnish.config.schema import Kind, RlConfig, RmConfig, SftConfig
from burnish.config.yaml_text import parse_yaml, read_run_text

_ONLY_RL = set(RlConfig.model_fields) - set(SftConfig.model_fields) - set(RmConfig.model_fields)
_ONLY_RM = set(RmConfig.model_fields) - set(SftConfig.model_fields) - set(RlConfig.model_fields)


def kind_of_file(path: str | Path, overrides: Sequence[str] = ()) -> Kind:
    """`rl` if the file or an override has a key that only RL runs have (rewards, rollout, algorithm ...), `rm` if it
    has one that only reward models have (loss, normalization, score_at ...), else `sft`. A file that cannot be
    understood counts as `rl`: loading it then reports what is wrong."""
    data = parse_yaml(read_run_text(Path(path))).data
    words = {word.partition("=")[0].partition(".")[0] for word in overrides}
    return kind_of_data(data, words)


def kind_of_data(data: object, further_keys: Collection[str] = ()) -> Kind:
    """Like `kind_of_file`, for plain data."""
    if not isinstance(data, dict):
        return "rl"
    keys = set(data) | set(further_keys)
    if _ONLY_RL & keys:
        return "rl"
    return "rm" if _ONLY_RM & keys else "sft"
