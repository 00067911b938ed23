"""Rollouts from plain texts, and reward files written on the spot."""

import dataclasses
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from burnish.config.schema import RewardConfig, ScoringConfig
from burnish.rewards import ProcessRewardScorer
from burnish.types import FinishReason, Prompt, Rollout

Item = tuple[Prompt, Rollout]


def _item(index: int, response: str, answer: Any, domain: str, columns: dict[str, Any]) -> Item:
    tokens = tuple(range(len(response)))  # a character is a token
    prompt = Prompt(id=f"row-{index}", text="What?", answer=answer, domain=domain, columns=columns)
    rollout = Rollout(
        prompt_id=prompt.id,
        group_id=index,
        sample_index=0,
        prompt_tokens=(1,),
        response_tokens=tokens,
        rollout_logprobs=(-1.0,) * len(tokens),
        finish_reason=FinishReason.STOP,
        policy_version=0,
        response=response,
    )
    return prompt, rollout


@pytest.fixture
def make_items() -> Callable[..., list[Item]]:
    def make(
        responses: Sequence[str], answer: Any = "7", domain: str = "default", columns: dict[str, Any] | None = None
    ) -> list[Item]:
        return [_item(i, response, answer, domain, columns or {}) for i, response in enumerate(responses)]

    return make


@pytest.fixture
def make_group(make_items: Any) -> Callable[..., list[Item]]:
    """Responses to one prompt, the last of them greedy where `greedy` says so."""

    def make(responses: Sequence[str], *, number: int = 0, greedy: bool = False, **fields: Any) -> list[Item]:
        indices = [*range(len(responses) - greedy), *([-1] if greedy else [])]
        return [
            (
                dataclasses.replace(prompt, id=f"row-{number}"),
                dataclasses.replace(rollout, prompt_id=f"row-{number}", group_id=number, sample_index=index),
            )
            for index, (prompt, rollout) in zip(indices, make_items(responses, **fields), strict=True)
        ]

    return make


@pytest.fixture
def reward_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(code: str) -> Path:
        path = tmp_path / "my_rewards.py"
        path.write_text(textwrap.dedent(code))
        return path

    return write


@pytest.fixture
def file(reward_file: Callable[[str], Path], request: pytest.FixtureRequest) -> Path:
    """A file with the `REWARDS` of the module."""
    return reward_file(request.module.REWARDS)


@pytest.fixture
def make_scorer() -> Iterator[Callable[..., ProcessRewardScorer]]:
    """Scorers that are closed at the end: rewards as names or dictionaries, the rest as options of scoring or, where
    there is none of the name, of the scorer itself."""
    made: list[ProcessRewardScorer] = []

    def make(*rewards: str | dict[str, Any], **given: Any) -> Any:
        given = {"workers": 1, "max_failure_fraction": 1.0, **given}
        scoring = ScoringConfig(**{name: given.pop(name) for name in ScoringConfig.model_fields if name in given})
        configs = [RewardConfig(name=r) if isinstance(r, str) else RewardConfig(**r) for r in rewards]
        made.append(ProcessRewardScorer(configs, scoring, **given))
        return made[-1]

    yield make
    for scorer in made:
        scorer.close()
