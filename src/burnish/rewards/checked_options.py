"""Options of rewards that run in the training process, checked like the sections of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from burnish.config.explain import explain
from burnish.config.section import Section
from burnish.errors import ConfigError
from burnish.rewards.inputs import check_options

S = TypeVar("S", bound=Section)


def checked(section: type[S], label: str, options: Mapping[str, Any]) -> S:
    """Validate options as a section. ConfigError for an unknown option, or a value out of range."""
    check_options(section, label, options)
    try:
        return section.model_validate(dict(options))
    except ValidationError as error:
        problem = explain(error, section, dict(options), {})[0]
        raise ConfigError(
            f"option {problem.field} of reward {label!r} {problem.message}", remedy=problem.remedy
        ) from None
