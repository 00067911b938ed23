"""What an agent in a run file goes together with."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from burnish.config.schema import RlConfig

MINIMAL: dict[str, Any] = {
    "model": {"path": "model"},
    "data": {"train": "rows.jsonl"},
    "rewards": "environment",
    "algorithm": {"preset": "grpo"},
    "steps": 1,
    "output": "runs/x",
}


def config(conversation: dict[str, Any], **more: Any) -> RlConfig:
    return RlConfig.model_validate({**MINIMAL, "conversation": conversation, **more})


def test_an_agent_pays_as_an_environment_does() -> None:
    assert config({"agent": "agent.py:run", "agent_options": {"turns": 2}}).conversation is not None


@pytest.mark.parametrize(
    ("conversation", "more", "wrong"),
    [
        ({"agent": "a.py:run", "tools": "calculator"}, {}, "conversation.tools: is set, and so is conversation.agent"),
        ({"agent": "a.py:run", "environment": "b.py:Game"}, {}, "conversation.environment: is set, and so is"),
        ({"tools": "calculator", "agent_options": {"x": 1}}, {"rewards": "exact"}, "conversation.agent is not"),
        ({"environment": "agent:a.py:run"}, {}, "names an agent"),
        ({}, {"rewards": "exact"}, "has no tools, no environment and no agent"),
        ({"tools": "calculator"}, {}, "no environment or agent pays"),
        ({"agent": "a.py:run"}, {"partial": True, "max_staleness": 1}, "partial"),
        ({"agent": "a.py:run", "agent_settings": "follow"}, {}, "agent_settings"),
    ],
)
def test_what_an_agent_does_not_go_together_with(
    conversation: dict[str, Any], more: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ValidationError, match=wrong):
        config(conversation, **more)
