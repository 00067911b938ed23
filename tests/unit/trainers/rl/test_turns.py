"""Conversations in training: what the policy did not sample is context, and nothing else."""

import dataclasses
import math
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from gradients import gradient_of
from plain_samples import group_of, plain_rollout
from torch import Tensor

from burnish.algorithms.advantages import resolve_estimator
from burnish.algorithms.mismatch import correction_weights
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.config.schema import AlgorithmConfig
from burnish.forward.attention import packs_rows
from burnish.forward.batch import Batch
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Denominators, count_denominators
from burnish.trainers.rl.batching import build_batch, build_rewards, turn_states, with_states
from burnish.trainers.rl.credit import assign_advantages
from burnish.trainers.rl.objective import PolicyObjective
from burnish.trainers.telemetry.groups import describe_domains, describe_groups, describe_staleness
from burnish.types import Author, FinishReason, Message, Rollout, Turn

PAD = 0
Span = tuple[Author, int]
"""Author and number of tokens."""


def conversation(index: int, *spans: Span, group: int = 0, said: Sequence[str] = (), **fields: Any) -> Rollout:
    """A response of these turns, with tokens from 4 on. `said`: what tools and environments said, in order."""
    turns, start, texts = [], 0, iter(said)
    for author, count in spans:
        messages = () if author == "policy" or not said else (Message("tool", next(texts)),)
        turns.append(Turn(author, start, start + count, messages))
        start += count
    own = {
        "prompt_tokens": (5, 6, 7),
        "response_tokens": tuple(4 + (3 * index + 5 * t) % 11 for t in range(start)),
        "rollout_logprobs": tuple(-0.5 if author == "policy" else 0.0 for author, count in spans for _ in range(count)),
        "turns": tuple(turns),
    }
    return plain_rollout(start, group=group, index=index, **own | fields)


def four_conversations() -> list[Rollout]:
    """Three of one group and one of another, which is a single turn."""
    return [
        conversation(0, ("policy", 2), ("tool", 3), ("policy", 1)),
        conversation(1, ("policy", 3)),
        conversation(2, ("policy", 1), ("tool", 1), ("environment", 1), ("policy", 2), ("tool", 2), ("policy", 1)),
        conversation(0, ("policy", 4), group=1),
    ]


def batch_of(rollouts: Sequence[Rollout], **fields: bool) -> Batch:
    return build_batch(rollouts, pad_token_id=PAD, **{"mask_truncated": False, **fields})


def test_tokens_know_their_turn() -> None:
    batch = batch_of(four_conversations())
    assert batch.turn_index.tolist() == [
        [0, 0, -1, -1, -1, 1, -1, -1],
        [0, 0, 0, -1, -1, -1, -1, -1],
        [0, -1, -1, 1, 1, -1, -1, 2],
        [0, 0, 0, 0, -1, -1, -1, -1],
    ]
    assert torch.equal(batch.loss_mask, batch.turn_index >= 0)
    plain = dataclasses.replace(four_conversations()[1], turns=())
    assert batch_of([plain]).turn_index is None
    mixed = batch_of([plain, four_conversations()[0]])
    assert mixed.turn_index[0].tolist() == [0, 0, 0, -1, -1, -1]


def test_turns_travel_with_their_rows() -> None:
    batch = batch_of(four_conversations())
    picked = batch.select([1, 0])
    assert picked.turn_index.tolist() == [[0, 0, 0, -1, -1, -1], [0, 0, -1, -1, -1, 1]]
    assert pickle.loads(pickle.dumps(batch)).host.trained_turns.tolist() == [2, 1, 3, 1]
    assert batch.to("meta").turn_index.device.type == "meta"  # type: ignore[union-attr]
    for one in (batch, picked, batch.to("meta").select([0]), batch.replace(advantages=torch.zeros(4, 8))):
        again = dataclasses.replace(one)  # without what the host knew
        if one.device.type != "meta":
            assert count_denominators(again) == count_denominators(one)


def test_turns_are_counted_for_the_whole_step() -> None:
    batch = batch_of(four_conversations())
    assert count_denominators(batch) == Denominators(3 + 3 + 4 + 4, 4, 2 + 1 + 3 + 1)
    assert sum(count_denominators(batch.select([row])).num_turns for row in range(4)) == 7
    cut = [dataclasses.replace(r, finish_reason=FinishReason.LENGTH) for r in four_conversations()[:1]]
    masked = batch_of([*cut, *four_conversations()[1:]], mask_truncated=True)
    assert count_denominators(masked) == Denominators(11, 3, 5)
    assert masked.turn_index[0].tolist() == [0, 0, -1, -1, -1, 1, -1, -1]
    single = batch_of([dataclasses.replace(r, turns=()) for r in four_conversations()])
    assert count_denominators(single).num_turns == 4


def test_states_are_what_the_environment_showed_last() -> None:
    rows = [
        conversation(0, ("policy", 1), ("tool", 2), ("policy", 1), ("tool", 2), ("policy", 1), said=["cold", "warm"]),
        conversation(1, ("policy", 1), ("tool", 3), ("policy", 1), said=["warm"]),
        conversation(2, ("policy", 1), ("tool", 2), ("policy", 1), said=["cold"]),
        conversation(0, ("policy", 1), ("tool", 2), ("policy", 1), group=1, said=["cold"]),
    ]
    observations, histories = turn_states(rows)
    # the prompt, cold, warm; the prompt and cold of another group are others
    assert observations == [[0, 1, 2], [0, 2], [0, 1], [3, 4]]
    assert histories == [[0, 1, 2], [0, 3], [0, 4], [5, 6]]  # other tokens, although row 2 heard the same as row 0
    twins = [rows[0], dataclasses.replace(rows[0], sample_index=9)]
    assert turn_states(twins) == ([[0, 1, 2]] * 2, [[0, 1, 2]] * 2)
    with_author = [conversation(0, ("policy", 1), (author, 2), ("policy", 1)) for author in ("tool", "environment")]
    assert turn_states(with_author)[0] == [[0, 1], [0, 2]]  # without messages, by their tokens
    assert turn_states([dataclasses.replace(rows[1], turns=())]) == ([[0]], [[0]])


# Credit


def credit(rollouts: Sequence[Rollout], algorithm: AlgorithmConfig, batch: Batch | None = None, kl_coef: float = 0.0):  # type: ignore[no-untyped-def]
    estimator = resolve_estimator(algorithm.estimator)
    rewards = build_rewards([(group_of(r), r) for r in rollouts])
    if "observation_ids_BT" in estimator.inputs:
        rewards = with_states(rewards, rollouts)
    batch = batch_of(rollouts) if batch is None else batch
    return assign_advantages(batch, rewards, algorithm=algorithm, estimator=estimator, kl_coef=kl_coef)[0]


def paid(rollout: Rollout, *rewards: float) -> Rollout:
    """With a reward for each turn, on its last token."""
    dense = [0.0] * len(rollout.response_tokens)
    for turn, reward in zip(rollout.policy_turns(), rewards, strict=True):
        dense[turn.stop - 1] = reward
    return dataclasses.replace(rollout, reward=sum(rewards), token_rewards=tuple(dense))


def test_turn_grpo_of_turn_rewards() -> None:
    """gamma 1/2. Returns: 1 + 2/2 = 2 and 2; 4; 0 + (2 + 4/2)/2 = 2, 4, 4."""
    rows = four_conversations()[:3]
    rows = [paid(rows[0], 1.0, 2.0), paid(rows[1], 4.0), paid(rows[2], 0.0, 2.0, 4.0)]
    options = {"normalise": False}
    batch = credit(rows, AlgorithmConfig(estimator="turn_grpo", gamma=0.5, estimator_options=options))
    first = 2 - 8 / 3
    expected = torch.zeros(3, 8)
    expected[0, :2], expected[0, 5] = first, -1.0
    expected[1, :3] = 4 - 8 / 3
    expected[2, 0], expected[2, 3:5] = first, 1.0  # nothing is compared with its last turn
    torch.testing.assert_close(batch.advantages, expected)
    assert batch.returns.tolist()[2] == [2, 0, 0, 4, 4, 0, 0, 4]


def test_a_score_of_the_whole_is_at_the_end_of_the_last_turn() -> None:
    rows = [dataclasses.replace(r, reward=float(i)) for i, r in enumerate(four_conversations()[:3])]
    batch = credit(rows, AlgorithmConfig(estimator="turn_grpo", estimator_options={"normalise": False}))
    assert batch.token_rewards.nonzero().tolist() == [[1, 2], [2, 7]]
    assert batch.advantages[0].tolist() == [-1, -1, 0, 0, 0, -1, 0, 0]  # 0 - mean(0, 1, 2), 0 - mean(0, 2)
    gone = credit(rows, AlgorithmConfig(estimator="dr_grpo"))
    assert gone.advantages[0].tolist() == [-1, -1, 0, 0, 0, -1, 0, 0]


def test_gigpo_reads_states_from_conversations() -> None:
    rows = [
        paid(conversation(0, ("policy", 1), ("tool", 2), ("policy", 1), said=["warm"]), 0.0, 6.0),
        paid(conversation(1, ("policy", 2), ("tool", 3), ("policy", 1), said=["warm"]), 0.0, 2.0),
        paid(conversation(2, ("policy", 2), ("tool", 3), ("policy", 1), said=["cold"]), 0.0, 1.0),
    ]
    algorithm = AlgorithmConfig(estimator="gigpo", gamma=0.5, estimator_options={"normalise": False, "omega": 0.5})
    batch = credit(rows, algorithm)
    # rows: 6, 2, 1, mean 3; first turns: 3, 1, .5, mean 1.5; after warm: 6 and 2; after cold: nothing else
    assert batch.advantages[:, 0].tolist() == [3 + 0.5 * 1.5, -1 + 0.5 * -0.5, -2 + 0.5 * -1.0]
    seconds = [row.policy_turns()[1].start for row in rows]
    assert batch.advantages[torch.arange(3), seconds].tolist() == [3 + 0.5 * 2, -1 + 0.5 * -2, -2.0]


@pytest.mark.parametrize("name", ["turn_grpo", "gigpo"])
def test_responses_without_turns_are_one_turn_each(name: str) -> None:
    rows = [dataclasses.replace(r, turns=(), reward=float(i**2)) for i, r in enumerate(four_conversations()[:3])]
    options = {"omega": 0.0} if name == "gigpo" else {}
    found = credit(rows, AlgorithmConfig(estimator=name, gamma=0.9, estimator_options=options))
    torch.testing.assert_close(found.advantages, credit(rows, AlgorithmConfig(estimator="grpo")).advantages)
    assert found.turn_index is None


@pytest.mark.parametrize("name", ["turn_grpo", "gigpo"])
def test_a_conversation_that_is_left_out_still_counts_in_its_group(name: str) -> None:
    rows = [dataclasses.replace(r, reward=float(i)) for i, r in enumerate(four_conversations()[:2])]
    rows[1] = dataclasses.replace(rows[1], finish_reason=FinishReason.LENGTH)
    algorithm = AlgorithmConfig(estimator=name, estimator_options={"normalise": False})
    found = credit(rows, algorithm, batch_of(rows, mask_truncated=True))
    expected = credit(rows, algorithm).advantages
    assert torch.equal(found.advantages[0], expected[0])
    assert expected[0, 0] < 0
    assert not found.advantages[1].any()


@pytest.mark.parametrize("name", ["dr_grpo", "turn_grpo", "gigpo", "reinforce_plus_plus"])
def test_a_kl_in_the_reward_is_not_charged_for_what_a_tool_said(name: str) -> None:
    rows = [dataclasses.replace(r, reward=0.0) for r in four_conversations()[:2]]
    rows[1] = dataclasses.replace(rows[1], finish_reason=FinishReason.LENGTH)
    algorithm = AlgorithmConfig(estimator=name, kl_in="reward", kl_coef=1.0, kl_estimator="k1")
    found = []
    for fill in (0.0, -9.0):
        batch = batch_of(rows, mask_truncated=True)
        old = torch.where(batch.turn_index >= 0, -1.0, fill)
        batch = batch.replace(old_logprobs=old, ref_logprobs=torch.full_like(old, -1.1))
        found.append(credit(rows, algorithm, batch, kl_coef=1.0))
    assert torch.equal(found[0].advantages, found[1].advantages)
    charged = found[0].token_rewards[0]
    torch.testing.assert_close(charged, torch.tensor([-0.1, -0.1, 0.0, 0.0, 0.0, -0.1]))


def test_gae_discounts_by_turn_where_the_run_file_says_so() -> None:
    rows = [paid(four_conversations()[0], 0.0, 1.0)]
    batch = batch_of(rows).replace(values=torch.zeros(1, 6))
    for discount, first in (("turn", 0.5), ("token", 0.25)):
        algorithm = AlgorithmConfig(estimator="gae", gamma=0.5, lam=1.0, discount=discount)
        assert credit(rows, algorithm, batch).returns.tolist() == [[first, 0.5, 0, 0, 0, 1]]


# Gradients


def objective(loss: str, aggregation: str) -> PolicyObjective:
    row = POLICY_LOSSES[loss]
    return PolicyObjective(row.function, {}, aggregation, 8, takes=row.more_inputs)


def by_hand(model: Any, rollouts: Sequence[Rollout], advantages: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The gradient of -sum w A logprob over the tokens that the policy sampled, row by row without padding."""
    model.zero_grad()
    for row, rollout in enumerate(rollouts):
        tokens = torch.tensor([[*rollout.prompt_tokens, *rollout.response_tokens]])
        logprobs = model(tokens).logits.float().log_softmax(dim=-1)[0]
        prompt = len(rollout.prompt_tokens)
        for turn in rollout.policy_turns():
            for position in range(turn.start, turn.stop):
                own = logprobs[prompt + position - 1, rollout.response_tokens[position]]
                (-weights[row, position] * advantages[row, position] * own).backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.slow_cases("*-token_mean-ppo_clip", "*-turn_mean_token_mean-turn_gspo")
@pytest.mark.parametrize("loss", ["ppo_clip", "turn_gspo"])
@pytest.mark.parametrize("aggregation", ["token_mean", "turn_mean_token_mean"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_the_gradient_is_that_of_the_sampled_tokens_alone(load, packed, family, aggregation, loss, monkeypatch) -> None:
    """In one pass, and cut into micro-batches."""
    rollouts = four_conversations()
    batch = batch_of(rollouts)
    advantages = torch.linspace(-1, 1, batch.loss_mask.numel()).view(batch.loss_mask.shape)
    if loss == "turn_gspo":  # ratios are 1, so a turn's tokens share only its advantage
        advantages = batch.turn_index.float() + torch.arange(4.0)[:, None] - 1.5  # type: ignore[union-attr]
    batch = batch.replace(advantages=advantages)
    denominators = count_denominators(batch)
    weights = torch.full(batch.loss_mask.shape, 1 / denominators.num_tokens)
    if aggregation == "turn_mean_token_mean":
        assert denominators.num_turns == 7
        for row, rollout in enumerate(rollouts):
            for turn in rollout.policy_turns():
                weights[row, turn.start : turn.stop] = 1 / 7 / (turn.stop - turn.start)
    expected = by_hand(load(family, plain=True).model, rollouts, advantages, weights)
    for budget in (10_000, 12):
        loaded = load(family, plain=not packed, kernels="off")
        monkeypatch.setattr("burnish.forward.packing.PAYS", math.inf)
        assert packs_rows(loaded.model) is packed
        policy = LocalPolicy(loaded, OptimizerSettings(1e-2, 10), tokens_per_microbatch=budget)
        found, _ = gradient_of(policy, batch, objective(loss, aggregation))
        assert found.keys() <= expected.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], atol=2e-6, rtol=1e-4)


def test_log_probabilities_of_what_a_tool_said_change_nothing(load: Callable[..., Any]) -> None:
    """Not the gradient, and none of the metrics: with 0 there, as rollouts have it, or with anything else."""
    batch = batch_of(four_conversations())
    correction = partial(correction_weights, level="turn", mode="truncate", low=0.5, high=2.0)
    plain = objective("turn_gspo", "turn_mean_token_mean")
    of = dataclasses.replace(plain, kl_coef=0.1, entropy_coef=0.01, correction=correction)
    found = []
    for fill in (0.0, -7.0, math.nan):
        numbers = torch.linspace(-2.0, -0.1, batch.loss_mask.numel()).view(batch.loss_mask.shape)
        filled = torch.where(batch.loss_mask, numbers, fill)
        names = ("old_logprobs", "ref_logprobs", "rollout_logprobs", "advantages")
        spoilt = batch.replace(**dict.fromkeys(names, filled))
        policy = LocalPolicy(load("llama", kernels="off"), OptimizerSettings(1e-2, 10), tokens_per_microbatch=12)
        found.append(gradient_of(policy, spoilt, of))
    (first, row), *others = found
    assert row["rollout/logprob_diff_mean"] == 0.0
    for gradient, metrics in others:
        assert metrics == row
        assert all(torch.equal(gradient[name], first[name]) for name in first)


# Metrics


def test_turns_cut_at_their_own_limit_are_told_from_responses_that_are() -> None:
    cut = {"finish_reason": FinishReason.LENGTH}
    rows = [
        dataclasses.replace(conversation(0, ("policy", 2), ("tool", 3), ("policy", 4)), **cut),  # the turn
        dataclasses.replace(conversation(1, ("policy", 4), ("tool", 4), ("policy", 3)), **cut),  # the response
        dataclasses.replace(conversation(2, ("policy", 4), ("tool", 4)), **cut),  # by what a tool said
        conversation(3, ("policy", 4)),
    ]
    group = group_of(*rows)
    assert describe_groups([group], turn_limit=4)["conversation/cut_turn_fraction"].result() == 1 / 4
    assert "conversation/cut_turn_fraction" not in describe_groups([group])


def test_lengths_and_staleness_count_what_was_sampled() -> None:
    rows = four_conversations()[:3]
    group = group_of(*rows, domain="d")
    metrics = {name: metric.result() for name, metric in describe_groups([group]).items()}
    assert metrics["rollout/response_tokens_sum"] == 3 + 3 + 4
    assert metrics["rollout/response_tokens_max"] == 4
    domain = describe_domains([group], [group], {"d": 1}, {0: ()})["domain/d/response_tokens_mean"]
    assert domain.result() == pytest.approx(10 / 3)
    aged = dataclasses.replace(rows[0], versions=((0, 0), (5, 1)))  # its second turn is of newer weights
    assert aged.tokens_by_version() == {0: 2, 1: 1}
    staleness = describe_staleness([group_of(aged)], {0: 0, 1: 1}, step=2)["rollout/staleness"]
    assert staleness.result() == pytest.approx(2 / 3)
