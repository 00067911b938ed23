"""One whole step of the trainer against an oracle that shares no code with it.

The oracle takes what was sampled and scored, and the weights before the step. From full logits in float64 it works
out, one response at a time and with plain loops, what the algorithm says: advantages, loss, gradient, Adam, the weights
after two epochs of two minibatches, and every number that is logged. Only the order of rows is taken from the trainer.
"""

import copy
import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import BuildRl
from torch import Tensor

from burnish.config.schema import RlConfig
from burnish.forward.batch import Batch
from burnish.observability.recorder import Notes
from burnish.trainers.rl.batching import epoch_rows
from burnish.trainers.rl.collection import Collected
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.parts import open_rl_run
from burnish.types import FinishReason, Metric, Prompt, RewardStatus, Rollout, RolloutGroup

pytestmark = pytest.mark.slow

TEMPERATURE, MAX_TOKENS, RATE, EPS, BETAS, MAX_NORM = 0.8, 6, 2e-2, 1e-3, (0.9, 0.99), 0.5
LABELS = ("exact", "length")
WEIGHTS = {"exact": 1.0, "length": 0.5}


# ------------------------------------------------------------------------------------------------ the trainer's side


class HashScorer:
    """Rewards that follow from the sample's name alone: a few values, now and then a failure."""

    def begin(self, items: Sequence[tuple[Prompt, Rollout]]) -> None: ...

    def score(self, items: Sequence[tuple[Prompt, Rollout]]) -> list[Rollout]:
        return [self._scored(rollout) for _, rollout in items]

    def _scored(self, rollout: Rollout) -> Rollout:
        digest = hashlib.sha256(f"{rollout.prompt_id}/{rollout.sample_index}".encode()).digest()
        if digest[0] % 16 == 0:
            return dataclasses.replace(rollout, status=RewardStatus.ERROR)
        parts = {"exact": float(digest[1] % 3), "length": (digest[2] % 5) / 4}
        total = sum(WEIGHTS[name] * value for name, value in parts.items())
        return dataclasses.replace(rollout, reward=total, reward_parts=parts, status=RewardStatus.OK)

    def take_metrics(self) -> dict[str, Metric]:
        return {}

    def close(self) -> None: ...


class Spy:
    """Stands in for the journal and keeps what the step hands it."""

    def __init__(self) -> None:
        self.collected: Collected | None = None
        self.batch: Batch | None = None
        self.notes: Notes = {}
        self.display = self

    def phase(self, name: str) -> None: ...

    def record(self, step: int, groups: Sequence[RolloutGroup], notes: Notes) -> None:
        self.notes = notes


@contextmanager
def opened(config: RlConfig) -> Iterator[tuple[RlRun, Spy]]:
    """A real run whose policy has already moved away from its reference."""
    with open_rl_run(config, Console(quiet=True)) as run:
        noise = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in run.policy.model.parameters():  # type: ignore[attr-defined]
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=noise))
        spy, prepare = Spy(), RlRun.prepare

        def prepare_seen(run: RlRun, collected: Collected, *arguments: Any) -> Batch | None:
            spy.collected, spy.batch = collected, prepare(run, collected, *arguments)
            return spy.batch

        run.supply.collector = dataclasses.replace(run.supply.collector, scorer=HashScorer())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RlRun, "prepare", prepare_seen)
            yield dataclasses.replace(run, journal=spy), spy  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- the oracle


@dataclass
class Row:
    """One scored response, and what the oracle finds out about it."""

    prompt: list[int]
    response: list[int]
    sampled_with: list[float]
    group: int
    score: float
    parts: list[float]
    greedy: float | None
    trained: bool
    old: list[float] = field(default_factory=list)
    ref: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)

    @property
    def kl(self) -> float:
        return sum(a - b for a, b in zip(self.old, self.ref, strict=True))


def fresh_logprobs(model: Any, row: Row) -> tuple[Tensor, Tensor]:
    """(log-probability of each response token, entropy there) from the full logits of the row alone, float64."""
    tokens = torch.tensor([row.prompt + row.response])
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(row.prompt) - 1 : -1] / TEMPERATURE
    everything = logits - logits.exp().sum(-1, keepdim=True).log()
    taken = everything[torch.arange(len(row.response)), torch.tensor(row.response)]
    return taken, -(everything.exp() * everything).sum(-1)


def rows_of(config: RlConfig, sampled: Sequence[RolloutGroup]) -> list[Row]:
    """The responses that are learned from, with their penalties, in the order of the groups."""
    algorithm, rows = config.algorithm, []
    for group in sampled:
        rewards = [r.reward for r in group.rollouts if r.reward is not None]
        if algorithm.dynamic_sampling and all(reward == rewards[0] for reward in rewards):
            continue
        if algorithm.estimator == "remax" and (group.greedy is None or group.greedy.reward is None):
            continue
        for rollout in group.rollouts:
            if rollout.reward is not None:
                rows.append(row_of(config, group, rollout))
    return rows


def row_of(config: RlConfig, group: RolloutGroup, rollout: Rollout) -> Row:
    greedy = group.greedy
    cut = rollout.finish_reason is FinishReason.LENGTH
    return Row(
        prompt=list(rollout.prompt_tokens),
        response=list(rollout.response_tokens),
        sampled_with=list(rollout.rollout_logprobs),
        group=rollout.group_id,
        score=clipped_score(config, rollout),
        parts=[rollout.reward_parts[label] for label in LABELS],
        greedy=None if greedy is None or greedy.reward is None else clipped_score(config, greedy),
        trained=not (config.algorithm.mask_truncated and cut),
    )


def clipped_score(config: RlConfig, rollout: Rollout) -> float:
    algorithm, score = config.algorithm, rollout.reward or 0.0
    if algorithm.overlong_buffer is not None:
        buffer = max(1, round(algorithm.overlong_buffer * MAX_TOKENS))
        score -= min(max((len(rollout.response_tokens) - (MAX_TOKENS - buffer)) / buffer, 0.0), 1.0)
    return score if algorithm.reward_clip is None else min(max(score, -algorithm.reward_clip), algorithm.reward_clip)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def spread_of(values: Sequence[float], ddof: int) -> float:
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / max(len(values) - ddof, 1))


def assign(config: RlConfig, rows: list[Row]) -> None:
    """Advantages on every token, by the formula of the estimator."""
    algorithm = config.algorithm
    if algorithm.estimator in ("reinforce_plus_plus", "remax"):
        returns_to_go(rows, algorithm.kl_coef)
        (less_greedy if algorithm.estimator == "remax" else whitened)(rows)
        return
    scores = whole_scores(config, rows)
    for row, value in zip(rows, sequence_advantages(algorithm.estimator, rows, scores), strict=True):
        row.advantages = [value] * len(row.response)


def whole_scores(config: RlConfig, rows: list[Row]) -> list[float]:
    """One score a response: the KL taken off, and whitened where asked for, the mean kept."""
    algorithm = config.algorithm
    coef = algorithm.kl_coef if algorithm.kl_in == "reward" else 0.0
    scores = [row.score - (coef * row.kl if coef else 0.0) for row in rows]
    if not algorithm.whiten_rewards:
        return scores
    centre, scale = mean(scores), spread_of(scores, 0)
    return [(score - centre) / scale + centre for score in scores]


def shape(config: RlConfig, rows: list[Row]) -> None:
    """Advantage whitening, then clip, over the trained tokens of the step."""
    algorithm = config.algorithm
    tokens = [value for row in rows if row.trained for value in row.advantages]
    centre, scale = (mean(tokens), spread_of(tokens, 0)) if algorithm.whiten_advantages else (0.0, 1.0)
    limit = algorithm.advantage_clip or math.inf
    for row in rows:
        row.advantages = [min(max((value - centre) / scale, -limit), limit) for value in row.advantages]


def sequence_advantages(estimator: str, rows: list[Row], scores: list[float]) -> list[float]:
    groups = [[s for other, s in zip(rows, scores, strict=True) if other.group == row.group] for row in rows]
    if estimator == "gdpo":
        return gdpo(rows)
    pairs = list(zip(scores, groups, strict=True))
    if estimator == "grpo":
        return [standardised(score, group) for score, group in pairs]
    if estimator == "dr_grpo":
        return [score - mean(group) for score, group in pairs]
    assert estimator == "rloo"
    return [score - (sum(group) - score) / (len(group) - 1) if len(group) > 1 else 0.0 for score, group in pairs]


def standardised(score: float, group: list[float]) -> float:
    constant = all(other == group[0] for other in group)
    return 0.0 if constant else (score - mean(group)) / (spread_of(group, 1) + 1e-6)


def gdpo(rows: list[Row]) -> list[float]:
    summed = [0.0] * len(rows)
    for part, label in enumerate(LABELS):
        for index, row in enumerate(rows):
            group = [other.parts[part] for other in rows if other.group == row.group]
            summed[index] += WEIGHTS[label] * standardised(row.parts[part], group)
    scale = math.sqrt(mean([x * x for x in summed]))
    return [x / scale for x in summed]


def returns_to_go(rows: list[Row], kl_coef: float) -> None:
    for row in rows:
        rewards = [-kl_coef * (a - b) for a, b in zip(row.old, row.ref, strict=True)]
        rewards[-1] += row.score
        row.advantages = [sum(rewards[t:]) for t in range(len(rewards))]


def less_greedy(rows: list[Row]) -> None:
    for row in rows:
        row.advantages = [value - float(row.greedy or 0.0) for value in row.advantages]


def whitened(rows: list[Row]) -> None:
    tokens = [value for row in rows if row.trained for value in row.advantages]
    centre, scale = mean(tokens), spread_of(tokens, 0)
    for row in rows:
        row.advantages = [(value - centre) / scale for value in row.advantages]


@dataclass
class Totals:
    """Readings of all optimizer steps."""

    loss: list[float] = field(default_factory=list)
    kl_loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    clipped: list[bool] = field(default_factory=list)
    approx_kl: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)


def token_losses(config: RlConfig, row: Row, logprobs: Tensor, totals: Totals) -> list[Tensor]:
    """Policy loss of each token of one response, by the formula of the loss."""
    algorithm = config.algorithm
    differences = [logprobs[t] - row.old[t] for t in range(len(row.response))]
    ratios = [d.exp() for d in differences]
    if algorithm.loss == "gspo":
        ratios = [(sum(differences[1:], differences[0]) / len(differences)).exp()] * len(differences)
    losses = []
    for t, (ratio, advantage) in enumerate(zip(ratios, row.advantages, strict=True)):
        r, low, high = float(ratio.detach()), 1 - (algorithm.clip_low or 0.0), 1 + (algorithm.clip_high or 0.0)
        totals.ratios.append(r)
        d = float(differences[t].detach())
        totals.approx_kl.append(math.exp(d) - d - 1)
        if algorithm.loss in ("ppo_clip", "gspo"):
            inside = min(max(r, low), high)
            is_clipped = (advantage > 0 and r > high) or (advantage < 0 and r < low)
            losses.append(torch.tensor(-advantage * inside) if is_clipped else -advantage * ratio)
            totals.clipped.append(is_clipped)
        elif algorithm.loss == "cispo":
            losses.append(-min(r, 5.0) * advantage * logprobs[t])
            totals.clipped.append(r > 5.0)
        else:
            assert algorithm.loss == "reinforce"
            losses.append(-advantage * logprobs[t])
            totals.clipped.append(False)
    return [loss * weight for loss, weight in zip(losses, mismatch_weights(config, row), strict=True)]


def mismatch_weights(config: RlConfig, row: Row) -> list[float]:
    algorithm = config.algorithm
    ratios = [math.exp(a - b) for a, b in zip(row.old, row.sampled_with, strict=True)]
    if algorithm.mismatch_correction == "none":
        return [1.0] * len(ratios)
    low, high = algorithm.mismatch_low, algorithm.mismatch_high
    if algorithm.mismatch_correction == "token_truncate":
        return [min(max(r, low), high) for r in ratios]
    assert algorithm.mismatch_correction == "sequence_mask"
    product = math.prod(ratios)
    return [product if low <= product <= high else 0.0] * len(ratios)


def aggregated(config: RlConfig, losses: list[list[Tensor]]) -> Tensor:
    """One number from the token losses of the responses of one minibatch."""
    sums = [sum(row[1:], row[0]) for row in losses]
    match config.algorithm.aggregation:
        case "token_mean":
            return sum(sums[1:], sums[0]) / sum(len(row) for row in losses)
        case "sequence_mean_token_mean":
            means = [total / len(row) for total, row in zip(sums, losses, strict=True)]
            return sum(means[1:], means[0]) / len(losses)
        case "sequence_mean_token_sum":
            return sum(sums[1:], sums[0]) / len(losses)
        case _:
            return sum(sums[1:], sums[0]) / len(losses) / MAX_TOKENS


def minibatch_loss(config: RlConfig, model: Any, rows: list[Row], kl_coef: float, totals: Totals) -> Tensor:
    policy, penalties, entropies = [], [], []
    for row in rows:
        logprobs, entropy = fresh_logprobs(model, row)
        policy.append(token_losses(config, row, logprobs, totals))
        d = [logprobs[t] - row.ref[t] for t in range(len(row.response))] if row.ref else []
        k2 = config.algorithm.kl_estimator == "k2"
        penalties.append([x * x / 2 if k2 else (-x).exp() + x - 1 for x in d])
        entropies.append(list(entropy))
        row.entropy = row.entropy or entropy.detach().tolist()  # of the first epoch
        totals.entropy += entropy.detach().tolist()
    loss = aggregated(config, policy)
    if config.algorithm.kl_in == "loss":
        penalty = aggregated(config, penalties)
        totals.kl_loss.append(float(penalty.detach()))
        loss = loss + kl_coef * penalty
    loss = loss - config.algorithm.entropy_coef * aggregated(config, entropies)
    totals.loss.append(float(loss.detach()))
    return loss


class Adam:
    """Kingma and Ba 2015 with bias correction, after clipping the norm of the whole gradient."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]
        self.count = 0

    def step(self, gradients: Sequence[Tensor]) -> float:
        self.count += 1
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients))
        scale = min(1.0, MAX_NORM / (norm + 1e-6))
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            m.mul_(BETAS[0]).add_((1 - BETAS[0]) * scale * g)
            v.mul_(BETAS[1]).add_((1 - BETAS[1]) * (scale * g) ** 2)
            unbiased = m / (1 - BETAS[0] ** self.count), v / (1 - BETAS[1] ** self.count)
            p.data.sub_(RATE * unbiased[0] / (unbiased[1].sqrt() + EPS))
        return norm


def expected_row(config: RlConfig, spy: Spy, model: Any, reference: Any, kl_coef: float) -> dict[str, float]:
    """Everything that the step should log; `model` (float64) is left with the weights after the step."""
    assert spy.collected is not None
    sampled = spy.collected.sampled
    rows, totals = rows_of(config, sampled), Totals()
    with torch.no_grad():
        for row in rows:
            row.old = fresh_logprobs(model, row)[0].tolist()
            row.ref = [] if reference is None else fresh_logprobs(reference, row)[0].tolist()
    assign(config, rows)
    shape(config, rows)
    parameters = list(model.parameters())
    adam = Adam(parameters)
    for indices in order_of(config, rows):
        part = [rows[i] for i in indices.tolist() if rows[i].trained]
        loss = minibatch_loss(config, model, part, kl_coef, totals)
        totals.grad_norm.append(adam.step(torch.autograd.grad(loss, parameters)))
    for row, note in zip(rows, [note for note in spy.notes.values() if note.old_logprobs], strict=True):
        assert list(note.token_entropy or ()) == pytest.approx(row.entropy, rel=2e-4, abs=1e-4)
    return logged(config, sampled, [row for row in rows if row.trained], totals)


def order_of(config: RlConfig, rows: Sequence[Row]) -> Iterator[torch.Tensor]:
    """Row numbers of every minibatch of every epoch."""
    for epoch in range(config.optimization.epochs):
        yield from epoch_rows(
            torch.tensor([row.group for row in rows]),
            minibatches=config.optimization.minibatches,
            shuffle=config.optimization.shuffle,
            seed=config.seed,
            step=1,
            epoch=epoch,
        )


def logged(config: RlConfig, sampled: Sequence[RolloutGroup], rows: list[Row], totals: Totals) -> dict[str, float]:
    everything = [rollout for group in sampled for rollout in group.rollouts]
    rewards = [r.reward for r in everything if r.reward is not None]
    advantages = [value for row in rows for value in row.advantages]
    gaps = [a - b for row in rows for a, b in zip(row.old, row.sampled_with, strict=True)]
    weights = [math.exp(gap) for gap in gaps]
    found = {
        "reward/mean": mean(rewards),
        "reward/std": spread_of(rewards, 0),
        "rollout/response_tokens_mean": mean([len(r.response_tokens) for r in everything]),
        "rollout/truncated_fraction": mean([float(r.finish_reason is FinishReason.LENGTH) for r in everything]),
        "rollout/logprob_diff_mean": mean([abs(gap) for gap in gaps]),
        "rollout/logprob_diff_max": max(abs(gap) for gap in gaps),
        "rollout/effective_sample_size": mean(weights) ** 2 / mean([w * w for w in weights]),
        "advantage/mean": mean(advantages),
        "advantage/std": spread_of(advantages, 0),
        "advantage/absolute_max": max(map(abs, advantages)),
        "policy/loss": mean(totals.loss),
        "policy/grad_norm": mean(totals.grad_norm),
        "policy/ratio_mean": mean(totals.ratios),
        "policy/ratio_max": max(totals.ratios),
        "policy/ratio_min": min(totals.ratios),
        "policy/clip_fraction": mean([float(c) for c in totals.clipped]),
        "policy/approx_kl": mean(totals.approx_kl),
        "policy/entropy": mean(totals.entropy),
        "policy/optimizer_steps": len(totals.loss),
        "policy/first_ratio_deviation": 0.0,
    }
    if config.algorithm.kl_in != "none":
        per_token = [math.exp(b - a) + a - b - 1 for row in rows for a, b in zip(row.old, row.ref, strict=True)]
        found |= {"kl/reference": mean([row.kl for row in rows]), "kl/reference_per_token": mean(per_token)}
    return found | ({"policy/kl_loss": mean(totals.kl_loss)} if totals.kl_loss else {})


# -------------------------------------------------------------------------------------------------------- the tests

PLAIN = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "remax", "gspo", "dapo", "cispo", "gdpo")
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {preset: (preset, {}, {}) for preset in PLAIN} | {
    "reinforce_plus_plus_masked": ("reinforce_plus_plus", {"mask_truncated": True}, {}),
    "rloo_masked": ("rloo", {"mask_truncated": True}, {}),
    "rloo_whitened_masked": ("rloo", {"whiten_rewards": True, "mask_truncated": True}, {}),
    "dr_grpo_clipped": ("dr_grpo", {"reward_clip": 1.5, "advantage_clip": 0.75, "whiten_advantages": True}, {}),
    "remax_penalised": ("remax", {"overlong_buffer": 0.5, "reward_clip": 1.5}, {}),
    "grpo_masked_adaptive": (
        "grpo",
        {"mask_truncated": True, "kl_target": 0.5, "kl_horizon": 50, "entropy_coef": 0.01, "kl_estimator": "k2"},
        {},
    ),
    "dapo_nucleus": ("dapo", {"mismatch_correction": "token_truncate"}, {"top_p": 0.9}),
    "grpo_top_k_sequence_mask": (
        "grpo",
        {"mismatch_correction": "sequence_mask", "mismatch_low": 0.3, "mismatch_high": 3.0},
        {"top_k": 9},
    ),
}
CLIPPING = {"grpo", "dr_grpo", "gspo", "dapo", "reinforce_plus_plus"}


def config_of(tiny_run: BuildRl, case: str) -> RlConfig:
    preset, algorithm, rollout = CASES[case]
    sampling = {"prompts_per_step": 4, "group_size": 4, "max_prompt_tokens": 8, "temperature": TEMPERATURE}
    return tiny_run(
        algorithm={"preset": preset, **algorithm},
        rewards=[{"name": "exact", "weight": WEIGHTS["exact"]}, {"name": "length", "weight": WEIGHTS["length"],
                 "options": {"target": 3}}],
        rollout={**sampling, "max_response_tokens": MAX_TOKENS, "stop_token_ids": [2, 3, 4], **rollout},
        optimization={
            "learning_rate": RATE, "eps": EPS, "betas": BETAS, "max_grad_norm": MAX_NORM,
            "minibatches": 2, "epochs": 2, "tokens_per_microbatch": 40,
        },
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_what_the_formulas_say(tiny_run: BuildRl, case: str) -> None:
    config = config_of(tiny_run, case)
    with opened(config) as (run, spy):
        model = run.policy.model  # type: ignore[attr-defined]
        oracle = copy.deepcopy(model).double()
        reference = None if run.reference is None else copy.deepcopy(run.reference.model).double()  # type: ignore[attr-defined]
        kl_coef = run.kl.coef
        row = run.train_step()
        expected = expected_row(config, spy, oracle, reference, kl_coef)
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=2e-4, abs=2e-5), name
        for own, right in zip(model.parameters(), oracle.parameters(), strict=True):
            torch.testing.assert_close(own.double(), right, rtol=1e-4, atol=2e-5)
        check_controller(config, run, expected, spy)
    if case in CLIPPING:
        assert 0 < row["policy/clip_fraction"] < 1, "the case does not reach the clip"


def check_controller(config: RlConfig, run: RlRun, expected: dict[str, float], spy: Spy) -> None:
    algorithm = config.algorithm
    if algorithm.kl_target is None:
        assert run.kl.coef == algorithm.kl_coef
        return
    assert spy.batch is not None
    sequences = int(spy.batch.loss_mask.any(dim=1).sum())
    error = min(max(expected["kl/reference"] / algorithm.kl_target - 1, -0.2), 0.2)
    assert run.kl.coef == pytest.approx(algorithm.kl_coef * (1 + error * sequences / algorithm.kl_horizon), rel=1e-6)
    assert run.kl.coef != algorithm.kl_coef


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.8}, {"top_k": 6}], ids=["plain", "top_p", "top_k"])
def test_one_update_reports_the_kl_of_the_policy_not_of_the_sampler(
    tiny_run: BuildRl, sampling: dict[str, Any]
) -> None:
    """A single update needs no old log-probabilities, but a cut-off sampler's are not those of the policy."""
    correction = {"mismatch_correction": "token_truncate"} if sampling else {}
    config = tiny_run(
        algorithm={"preset": "grpo", **correction},
        rollout={"prompts_per_step": 4, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": MAX_TOKENS,
                 "temperature": TEMPERATURE, **sampling},
    )  # fmt: skip
    with opened(config) as (run, spy):
        oracle = copy.deepcopy(run.policy.model).double()  # type: ignore[attr-defined]
        reference = copy.deepcopy(run.reference.model).double()  # type: ignore[union-attr]
        row = run.train_step()
        assert spy.collected is not None
        rows = rows_of(config, spy.collected.sampled)
        with torch.no_grad():
            for each in rows:
                each.old = fresh_logprobs(oracle, each)[0].tolist()
                each.ref = fresh_logprobs(reference, each)[0].tolist()
    assert row["kl/reference"] == pytest.approx(mean([each.kl for each in rows]), rel=1e-4, abs=1e-5)
