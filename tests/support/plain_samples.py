"""Batches, responses and domains for tests of training, as plain as they can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from burnish.config.domains import domain_settings
from burnish.config.schema import RlConfig
from burnish.data.feeds import EncodedPrompt
from burnish.forward.batch import Batch
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.domains import Domains, build_domains
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout, RolloutGroup


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


def group_of(*rollouts: Rollout, greedy: Rollout | None = None) -> RolloutGroup:
    """The rollouts as a group."""
    group_id = rollouts[0].group_id
    return RolloutGroup(Prompt(f"p{group_id}", text="x"), group_id, rollouts, greedy)


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
