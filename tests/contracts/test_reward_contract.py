"""What every reward keeps, built-in or user code, in whatever form: order, statuses, and the same scores however the
responses were ordered, chunked or spread over workers."""

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stub_judge import shown

from burnish.config.schema import RewardConfig, ScoringConfig
from burnish.rewards import BUILT_INS, ProcessRewardScorer
from burnish.rewards.protocol import RewardScorer
from burnish.types import FinishReason, Metric, Prompt, RewardStatus, Rollout

FORMS = """
import asyncio

def function(response, answer):
    return value(response, answer)

async def asynchronous(response, answer):
    await asyncio.sleep(0.001 * (len(response) % 3))
    return value(response, answer)

def batched(responses, answers):
    return [value(response, answer) for response, answer in zip(responses, answers)]

async def asynchronous_batched(responses, answers):
    await asyncio.sleep(0)
    return tuple(value(response, answer) for response, answer in zip(responses, answers))

class Stateful:
    def __init__(self, offset=0.0):
        self.offset, self.calls = offset, 0
    def __call__(self, response, answer):
        self.calls += 1
        return value(response, answer)

class AsynchronousStateful(Stateful):
    async def __call__(self, response, answer):
        await asyncio.sleep(0)
        return value(response, answer)

def value(response, answer):
    return len(response) + (response == answer)
"""
FORM_NAMES = ["function", "asynchronous", "batched", "asynchronous_batched", "Stateful", "AsynchronousStateful"]

OPTIONS: dict[str, dict[str, Any]] = {
    "command": {"argv": [sys.executable, "-Sc", "import sys; sys.exit('7' not in sys.stdin.read())"], "seconds": 50.0},
    "regex": {"pattern": r"\d"},
    "length": {"target": 20},
    "overlong": {"max_tokens": 30, "buffer_tokens": 20},
}

PACKAGES = {"json_schema": "jsonschema", "reasoning_gym": "reasoning_gym"}
"""Built-ins that need a package of an extra."""

COLUMNS: dict[str, Any] = {
    "level": 1,
    "test_list": ["assert f(1) == 1"],  # the tests of a program
    "choices": ["6", "7", "8"],
    "json_schema": {"type": "number"},
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"num_words": 4, "relation": "less than"}],
    "metadata": {},
    "reasoning_gym": {"task": "chain_sum", "parameters": {}},
}

RESPONSES = [
    "",
    "7",
    "The answer is 7.",
    "#### 8",
    "so \\boxed{\\frac{14}{2}}",
    "<think>three and four</think><answer>7</answer>",
    "word word word word word word",
    "She was so happy. They loved it!",
    "He was sad and cried.",
    "ünïcode ☃ \u0000 \n\n end",
    "Here it is:\n```python\ndef f(x):\n    return x\n```",
    "x" * 500,
]


def _items() -> list[tuple[Prompt, Rollout]]:
    items = []
    for index, response in enumerate(RESPONSES * 3):
        tokens = tuple(range(len(response) % 40))
        prompt = Prompt(id=f"row-{index}", text="3+4?", answer="7", domain=f"domain-{index % 2}", columns=COLUMNS)
        noise = (0.0,) * len(tokens)
        rollout = Rollout(
            prompt.id, index, 0, (1, 2), tokens, noise, FinishReason.STOP, 0, response, environment_reward=index % 3 / 2
        )
        items.append((prompt, rollout))
    return items


@pytest.fixture
def config_of(tmp_path: Path, stub_judge: Callable[..., Any]) -> Callable[[str], RewardConfig]:
    """The configuration of a built-in, or of one of the forms. The judge gives a point for every letter, up to 10."""

    def rule(messages: Any) -> str:
        return f'{{"score": {min(10, len(shown(messages)["response"]))}}}'

    def make(name: str) -> RewardConfig:
        if name in PACKAGES:
            pytest.importorskip(PACKAGES[name])
        options = OPTIONS.get(name, {})
        if name == "judge":
            options = {"url": stub_judge(rule).url, "model": "stub", "scale": [0, 10]}
        path = tmp_path / "forms.py"
        path.write_text(FORMS)
        return RewardConfig(name=f"{path}:{name}" if name in FORM_NAMES else name, options=options, timeout_seconds=60)

    return make


@pytest.fixture(params=[*BUILT_INS, *FORM_NAMES])
def reward(request: pytest.FixtureRequest, config_of: Callable[[str], RewardConfig]) -> RewardConfig:
    return config_of(request.param)


@pytest.fixture
def scorer(reward: RewardConfig) -> Iterator[ProcessRewardScorer]:
    with ProcessRewardScorer([reward], ScoringConfig(workers=1), columns=list(COLUMNS)) as made:
        yield made


@pytest.mark.slow_cases("code", "command", "json_schema", "judge", "math")
def test_contract(reward: RewardConfig, scorer: ProcessRewardScorer) -> None:
    protocol: RewardScorer = scorer
    items = _items()
    scored = protocol.score(items)

    # the same rollouts in the same order, every one scored, nothing else about them changed
    assert [r.prompt_id for r in scored] == [prompt.id for prompt, _ in items]
    assert all(r.status is RewardStatus.OK and r.reward is not None for r in scored)
    assert all(r.response == rollout.response for r, (_, rollout) in zip(scored, items, strict=True))
    (label,) = scorer.labels
    assert all(dict(r.reward_parts)[label] == r.reward for r in scored)

    # the same input gives the same score: again, in another order, and cut into single calls
    scores = [r.reward for r in scored]
    shuffled = list(range(len(items)))
    random.Random(1).shuffle(shuffled)
    again = protocol.score([items[index] for index in shuffled])
    assert [r.reward for r in again] == [scores[index] for index in shuffled]
    assert [protocol.score([item])[0].reward for item in items[: len(RESPONSES)]] == scores[: len(RESPONSES)]
    assert len(set(scores)) > 1, "these responses must not all score alike, or the comparisons above show nothing"

    metrics = protocol.take_metrics()
    assert all(isinstance(metric, Metric) for metric in metrics.values())
    assert metrics["reward/failed_fraction"].result() == 0.0
    protocol.close()
    protocol.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regex", *FORM_NAMES])
def test_two_workers_give_the_scores_of_one(name: str, config_of: Callable[[str], RewardConfig]) -> None:
    scores = []
    for workers in (1, 2):
        with ProcessRewardScorer([config_of(name)], ScoringConfig(workers=workers)) as scorer:
            scores.append([(r.reward, r.status, dict(r.reward_parts)) for r in scorer.score(_items())])
    assert scores[0] == scores[1]


def test_built_ins_keep_to_their_table(config_of: Callable[[str], RewardConfig]) -> None:
    """No score lies above the top score."""
    for name, row in BUILT_INS.items():
        with ProcessRewardScorer([config_of(name)], ScoringConfig(workers=1)) as scorer:
            highest = max(r.reward or 0.0 for r in scorer.score(_items()))
            assert row.top_score is None or highest <= row.top_score, name
