"""Options of the rewards that run in the training process, checked as the sections of a run file are."""

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
    """The options as the section that they are. ConfigError for one that it does not have, or that is out of range."""
    check_options(section, label, options)
    try:
        return section.model_validate(dict(options))
    except ValidationError as error:
        problem = explain(error, section, dict(options), {})[0]
        raise ConfigError(
            f"option {problem.field} of reward {label!r} {problem.message}", remedy=problem.remedy
        ) from None
