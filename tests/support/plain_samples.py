"""Batches, responses and domains for tests of training, as plain as they can be."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from burnish.config.domains import domain_settings
from burnish.config.schema import RlConfig
from burnish.data.feeds import EncodedPrompt
from burnish.forward.batch import Batch
from burnish.rollouts.engine import Sampling
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.domains import Domains, build_domains
from burnish.types import FinishReason, Metric, Prompt, RewardStatus, Rollout, RolloutGroup, RolloutRequest


def ones_batch(loss_mask: Tensor, **fields: Tensor | None) -> Batch:
    """Prompts of one token and responses as long as the mask, all of token 1, each row a group of its own."""
    rows, width = loss_mask.shape
    plain: dict[str, Any] = {
        "prompt_tokens": torch.ones(rows, 1, dtype=torch.int64),
        "prompt_lengths": torch.ones(rows, dtype=torch.int64),
        "response_tokens": torch.ones(rows, width, dtype=torch.int64),
        "response_lengths": torch.full((rows,), width),
        "group_ids": torch.arange(rows),
    }
    return Batch(**plain | fields, loss_mask=loss_mask)


def plain_rollout(
    tokens: int = 1, reward: float | None = None, *, group: int = 0, index: int = 0, **fields: Any
) -> Rollout:
    """A response of this many tokens. Without a reward its scoring has failed."""
    status = RewardStatus.ERROR if reward is None else RewardStatus.OK
    plain = Rollout(f"p{group}", group, index, (1,), (5,) * tokens, (-1.0,) * tokens, FinishReason.STOP, 0)
    return dataclasses.replace(plain, **{"reward": reward, "status": status, **fields})


def group_of(*rollouts: Rollout, greedy: Rollout | None = None, domain: str = "default") -> RolloutGroup:
    """The rollouts as a group."""
    group_id = next(rollout.group_id for rollout in (*rollouts, greedy) if rollout)
    return RolloutGroup(Prompt(f"p{group_id}", text="x", domain=domain), group_id, rollouts, greedy)


class Engine:
    """Answers with as many tokens as the sample index says, from 1 to 10; `calls` has the limit and requests of each
    call."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Sequence[RolloutRequest]]] = []

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, *, on_finished: Any = None, **given: Any
    ) -> list[Rollout]:
        self.calls.append((sampling.max_response_tokens, requests))
        rollouts = [answer(request, index) for request in requests for index in request.sample_indices]
        if on_finished is not None:
            on_finished([])
            for rollout in reversed(rollouts):
                on_finished([rollout])
        return rollouts

    def sync(self, policy: object) -> None: ...

    def take_metrics(self) -> dict[str, Metric]:
        return {}


def answer(request: RolloutRequest, index: int) -> Rollout:
    own = {"prompt_id": request.prompt_id, "prompt_tokens": request.prompt_tokens, "status": RewardStatus.PENDING}
    return plain_rollout(max(index, 0) % 10 + 1, group=request.group_id, index=index, **own)


class Scorer:
    """Scores by this function; None fails. `begun` has what was to be scored ahead."""

    def __init__(self, reward: Callable[[Prompt, Rollout], float | None]) -> None:
        self.reward = reward
        self.begun: list[tuple[Prompt, Rollout]] = []

    def begin(self, items: Sequence[tuple[Prompt, Rollout]], *, idle_cores: bool = True) -> None:
        self.begun += items

    def score(self, items: Sequence[tuple[Prompt, Rollout]], *, checks: bool = True) -> list[Rollout]:
        return [judged(rollout, self.reward(prompt, rollout)) for prompt, rollout in items]

    def take_metrics(self) -> dict[str, Metric]:
        return {}

    def close(self) -> None: ...


def judged(rollout: Rollout, reward: float | None) -> Rollout:
    if reward is None:
        return dataclasses.replace(rollout, status=RewardStatus.ERROR)
    return dataclasses.replace(rollout, reward=reward, reward_parts={"exact": reward}, status=RewardStatus.OK)


class Feed:
    """Prompts 0, 1 ... of a data set with `size` rows, whose ids are the prefix and the number."""

    def __init__(self, size: int, prefix: str = "p", domain: str = "default") -> None:
        self.size, self.prefix, self.domain = size, prefix, domain

    def take(self, count: int, position: int) -> list[EncodedPrompt]:
        names = [f"{self.prefix}{n % self.size}" for n in range(position, position + count)]
        return [EncodedPrompt(Prompt(name, text="x", domain=self.domain), (1, 2)) for name in names]

    def __len__(self) -> int:
        return self.size


def domains_of(config: RlConfig, feeds: Mapping[str, Feed], judged: Sequence[str] = ("exact",)) -> Domains:
    """The domains of a run file, which draw from these feeds."""
    scorer: Any = SimpleNamespace(answer_labels=judged)
    domains = build_domains(config, domain_settings(config), {}, scorer, Progress(), begins=True)
    return dataclasses.replace(domains, feeds=dataclasses.replace(domains.feeds, by_name=feeds))
