"""The options of the 2019 style, from the run file to what a real step samples, scores and logs."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildRl, rollouts_of

from burnish.config.domains import ALL
from burnish.trainers.rl.setup.parts import open_rl_run

QUIET = Console(quiet=True)
COUNT = "def count(response_tokens: list) -> float:\n    return float(len(response_tokens))\n"


@pytest.fixture
def lengths(tmp_path: Path) -> dict[str, Any]:
    """A reward that is the number of tokens it is shown."""
    (tmp_path / "count.py").write_text(COUNT)
    return {"name": f"{tmp_path / 'count.py'}:count", "label": "shown"}


def test_prompts_are_queries_cut_from_documents(tiny_run: BuildRl, tmp_path: Path) -> None:
    (tmp_path / "documents.txt").write_text("1+2=3+4=5\n\n77\n\n8+9=\n")
    config = tiny_run(
        data={"train": str(tmp_path / "documents.txt"), "query": {"start_text": "+", "end_text": "="}},
        rewards="repetition",
    )
    with open_rl_run(config, QUIET) as run:
        feeds = run.supply.collector.domains.feeds
        texts = {feeds.at(ALL, place).encoded.prompt.text for place in (0, 1)}
    assert texts == {"2=3+4=", "9="}


@pytest.mark.slow
def test_a_step_of_fixed_length_scored_up_to_a_token(tiny_run: BuildRl, lengths: dict[str, Any]) -> None:
    """Responses of exactly four tokens; rewards see them up to the first 7 at or after position 1, and -1 replaces the
    score of those without one."""
    config = tiny_run(
        rollout={"prompts_per_step": 16, "group_size": 4, "max_response_tokens": 4, "ignore_eos": True},
        scoring={"workers": 1, "truncate_token": "7", "truncate_after": 1, "incomplete_score": -1.0},
        rewards=[lengths],
    )
    with open_rl_run(config, QUIET) as run:
        row = run.train_step()
    lines = rollouts_of(config.output)
    assert {len(line["response_tokens"]) for line in lines} == {4}
    for line in lines:
        places = [place for place in range(1, 4) if line["token_texts"][place] == "7"]
        assert line["reward"] == (places[0] + 1 if places else -1.0)
        assert line["reward_parts"]["shown"] == (places[0] + 1 if places else 4)
    incomplete = [line["reward"] == -1.0 for line in lines]
    assert 0 < sum(incomplete) < len(incomplete)
    assert row["reward/incomplete_fraction"] == pytest.approx(sum(incomplete) / len(incomplete))
    assert row["rollout/response_tokens_mean"] == 4
    assert "rollout/truncated_fraction" not in row  # nothing was cut: no alarm about it


@pytest.mark.slow
def test_the_eos_trick(tiny_run: BuildRl, lengths: dict[str, Any]) -> None:
    config = tiny_run(scoring={"workers": 1, "incomplete_score": -1.0}, rewards=[lengths])
    with open_rl_run(config, QUIET) as run:
        row = run.train_step()
    lines = rollouts_of(config.output)
    for line in lines:
        assert line["reward"] == (-1.0 if line["finish_reason"] == "length" else len(line["response_tokens"]))
    assert row["reward/incomplete_fraction"] == row["rollout/truncated_fraction"]
