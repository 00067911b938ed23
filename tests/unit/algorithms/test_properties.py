"""The rules that hold for every function: masked slots, cuts, padding, permutations, gradients, singletons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from burnish.algorithms import kl, mismatch, shaping
from burnish.algorithms.advantages import ESTIMATORS, discounted_returns
from burnish.algorithms.aggregation import AGGREGATIONS, aggregate, count_sequences, count_tokens
from burnish.algorithms.comparison_losses import best_of, bradley_terry
from burnish.algorithms.kl import KL_ESTIMATORS
from burnish.algorithms.masking import count_turns, masked_mean, masked_var, whiten
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.algorithms.ratios import entropy_from_logits
from burnish.algorithms.token_losses import clipped_value
from burnish.types import Metric


def examples(count: int) -> settings:
    """Always the same examples: a failure is the work of a change, not of chance."""
    return settings(max_examples=count, deadline=None, derandomize=True)


EXAMPLES = examples(10)
NAN = float("nan")
SEEDS = st.integers(0, 2**32 - 1)
LOSS_NAMES = sorted(POLICY_LOSSES)
ESTIMATOR_NAMES = sorted(ESTIMATORS)
CORRECTIONS = [
    *itertools.product(mismatch.LEVELS, mismatch.MODES),
    *(("sequence", mode) for mode in mismatch.SEQUENCE_MODES),
]
SELECTION = {"kl_cov": {"fraction": 0.3}, "clip_cov": {"fraction": 0.3, "covariance_low": 0.0}}


@dataclass(frozen=True)
class Step:
    """Everything that any function of the room is handed, for one step of B sequences and T tokens."""

    mask_BT: Tensor
    logprobs_BT: Tensor
    old_logprobs_BT: Tensor
    ref_logprobs_BT: Tensor
    advantages_BT: Tensor
    token_rewards_BT: Tensor
    values_BT: Tensor
    scores_B: Tensor
    greedy_scores_B: Tensor
    parts_BC: Tensor
    weights_C: Tensor
    group_ids_B: Tensor
    turn_index_BT: Tensor
    observation_ids_BT: Tensor
    history_ids_BT: Tensor

    @property
    def lengths_B(self) -> Tensor:
        return self.mask_BT.sum(dim=1)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {**vars(self), "lengths_B": self.lengths_B, "teacher_logprobs_BT": self.logprobs_BT}

    def change(self, of_BT: Callable[[Tensor], Tensor], of_B: Callable[[Tensor], Tensor] = lambda t: t) -> Step:
        """Each `[B, T]` tensor through one function, each `[B, ...]` tensor through another."""
        changed = {k: (of_BT(v) if k.endswith("_BT") else of_B(v)) for k, v in vars(self).items() if k != "weights_C"}
        return replace(self, **changed)

    def rows(self, index: Tensor) -> Step:
        return self.change(lambda t: t[index], lambda t: t[index])

    def poisoned(self) -> Step:
        """NaN in every masked slot of every float tensor."""
        floats = {k: v for k, v in vars(self).items() if k.endswith("_BT") and v.is_floating_point()}
        return replace(self, **{k: torch.where(self.mask_BT, v, torch.full_like(v, NAN)) for k, v in floats.items()})


def make_step(seed: int, *, num_groups: int = 3, T: int = 6, dtype: torch.dtype = torch.float64) -> Step:
    """Groups of 2 to 4 rows with scattered ids, gaps inside responses, and rows without any trained token."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    sizes = torch.randint(2, 5, (num_groups,), generator=g)
    ids = torch.randperm(1000, generator=g)[:num_groups] - 500
    group_ids = ids.repeat_interleave(sizes)[torch.randperm(int(sizes.sum()), generator=g)]
    B = group_ids.numel()
    lengths = torch.randint(0, T + 1, (B, 1), generator=g)
    lengths[0] = T
    mask = (torch.arange(T) < lengths) & (torch.rand(B, T, generator=g) < 0.8)
    mask[0, 0] = True
    # A turn ends where a token is masked, and sometimes without one.
    begins = mask & (~mask.roll(1, dims=1) | (torch.rand(B, T, generator=g) < 0.2))
    begins[:, 0] = mask[:, 0]
    turns = torch.where(mask, begins.cumsum(dim=1) - 1, -1)
    logprobs = -normal(B, T).abs() - 0.1
    return Step(
        mask_BT=mask,
        logprobs_BT=logprobs,
        old_logprobs_BT=logprobs + 0.3 * normal(B, T),
        ref_logprobs_BT=logprobs + 0.5 * normal(B, T),
        advantages_BT=normal(B, T),
        token_rewards_BT=normal(B, T),
        values_BT=normal(B, T),
        scores_B=normal(B),
        greedy_scores_B=normal(B),
        parts_BC=normal(B, 2),
        weights_C=torch.tensor([1.0, 0.5], dtype=dtype),
        group_ids_B=group_ids,
        turn_index_BT=turns,
        observation_ids_BT=torch.where(mask, turns % 2, -1),
        history_ids_BT=torch.where(mask, turns % 3, -1),
    )


def loss_inputs(step: Step) -> tuple[Tensor, ...]:
    return step.logprobs_BT, step.old_logprobs_BT, step.advantages_BT, step.mask_BT


def selected(name: str, step: Step) -> Tensor | None:
    return POLICY_LOSSES[name].select(*loss_inputs(step), SELECTION.get(name, {}))


def run_loss(name: str, step: Step, **options: object):
    turns = {"turn_index_BT": step.turn_index_BT} if "turn_index_BT" in POLICY_LOSSES[name].more_inputs else {}
    return POLICY_LOSSES[name].function(*loss_inputs(step), **{**SELECTION.get(name, {}), **turns, **options})


def loss_and_gradient(name: str, step: Step, mode: str = "token_mean", counts: Step | None = None, **options: object):
    """Aggregated loss, its gradient to the logprobs, and the metrics; denominators of `counts` when given."""
    counted = step if counts is None else counts
    logprobs = step.logprobs_BT.clone().requires_grad_()
    result = run_loss(name, replace(step, logprobs_BT=logprobs), **options)
    numbers = {
        "num_tokens": count_tokens(counted.mask_BT),
        "num_sequences": count_sequences(counted.mask_BT),
        "num_turns": count_turns(counted.turn_index_BT, counted.mask_BT),
    }
    total = aggregate(result.per_token_BT, step.mask_BT, mode, length=7, turn_index_BT=step.turn_index_BT, **numbers)
    (gradient,) = torch.autograd.grad(total, logprobs)
    return total.detach(), gradient, result.metrics


def results(metrics: dict[str, Metric]) -> dict[str, float]:
    return {name: value for name, metric in metrics.items() if (value := metric.result()) is not None}


def estimate(name: str, step: Step) -> Any:
    """What an estimator returns, with a discount or a weight of the rewards where it has one, for rewards that it
    takes."""
    step = replace(step, scores_B=step.scores_B.abs()) if name == "maxrl" else step
    options = {option: 0.9 for option in ("gamma", "reward_coef") if option in ESTIMATORS[name].options}
    return ESTIMATORS[name](step.tensors, options)


def advantages_of(name: str, step: Step) -> Tensor:
    """Advantages of an estimator, one tensor for both kinds (`[B, T]` with the returns beside, or `[B]`)."""
    result = estimate(name, step)
    return torch.cat(result, dim=1) if ESTIMATORS[name].token_level else result


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


# Masked slots


@pytest.mark.parametrize("name", LOSS_NAMES)
@EXAMPLES
@given(seed=SEEDS)
def test_nan_in_masked_slots_moves_no_loss(name, seed):
    step = make_step(seed)
    clean, poisoned = loss_and_gradient(name, step), loss_and_gradient(name, step.poisoned())
    assert torch.equal(clean[0], poisoned[0])
    assert torch.equal(clean[1], poisoned[1])
    assert results(clean[2]) == results(poisoned[2])
    assert poisoned[1][~step.mask_BT].abs().sum() == 0
    assert run_loss(name, step.poisoned()).per_token_BT[~step.mask_BT].abs().sum() == 0


@pytest.mark.parametrize("name", [name for name in ESTIMATOR_NAMES if ESTIMATORS[name].token_level])
@EXAMPLES
@given(seed=SEEDS)
def test_nan_in_masked_slots_moves_no_estimator(name, seed):
    step = make_step(seed)
    assert torch.equal(advantages_of(name, step), advantages_of(name, step.poisoned()))
    dirty = step.poisoned()
    rewards = dirty.token_rewards_BT.requires_grad_()
    (gradient,) = torch.autograd.grad(advantages_of(name, dirty).square().sum(), rewards)
    assert gradient.isfinite().all()
    assert gradient[~step.mask_BT].abs().sum() == 0


ELEMENTWISE: dict[str, Callable[[Tensor, Step], Tensor]] = {
    **{
        f"aggregate {mode}": (lambda x, s, m=mode: aggregate(x, s.mask_BT, m, length=3, turn_index_BT=s.turn_index_BT))
        for mode in AGGREGATIONS
    },
    **{
        f"kl {name}": (lambda x, s, f=row.function: f(x, s.ref_logprobs_BT, mask=s.mask_BT))
        for name, row in KL_ESTIMATORS.items()
    },
    "kl_loss": lambda x, s: kl.kl_loss(x, s.ref_logprobs_BT, s.mask_BT, old_logprobs_BT=s.old_logprobs_BT),
    "clipped_value": lambda x, s: clipped_value(x, s.values_BT, s.token_rewards_BT, clip=0.2, mask_BT=s.mask_BT),
    "masked_mean": lambda x, s: masked_mean(x, s.mask_BT),
    "masked_var": lambda x, s: masked_var(x, s.mask_BT),
    "whiten": lambda x, s: whiten(x, s.mask_BT, shift_mean=False),
    "discounted_returns": lambda x, s: discounted_returns(x, s.mask_BT, gamma=0.9),
    "token_rewards": lambda x, s: shaping.token_rewards(s.scores_B, s.mask_BT, kl_BT=x, kl_coef=0.1),
    "sequence_scores": lambda x, s: shaping.sequence_scores(x, s.mask_BT),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@EXAMPLES
@given(seed=SEEDS)
def test_nan_in_masked_slots_moves_no_value_and_no_gradient(name, seed):
    step = make_step(seed)
    outputs, gradients = [], []
    for variant in (step, step.poisoned()):
        x = variant.logprobs_BT.clone().requires_grad_()
        output = ELEMENTWISE[name](x, variant)
        outputs.append(output.detach())
        gradients.append(torch.autograd.grad(output.square().sum(), x)[0])
    assert torch.equal(*outputs)
    assert torch.equal(*gradients)
    assert gradients[1][~step.mask_BT].abs().sum() == 0


@EXAMPLES
@given(seed=SEEDS, kind=st.sampled_from(CORRECTIONS))
def test_mismatch_weights_ignore_masked_slots_and_stay_in_bounds(seed, kind):
    step, (level, mode) = make_step(seed), kind
    measured = []
    for s in (step, step.poisoned()):
        tensors = s.old_logprobs_BT, s.ref_logprobs_BT, s.mask_BT
        weights = mismatch.correction_weights(*tensors, level=level, mode=mode, turn_index_BT=s.turn_index_BT)
        assert ((weights >= 0) & (weights <= (2.0 if mode != "mask_mean" else math.inf))).all()
        measured.append((weights.tolist(), results(mismatch.mismatch_metrics(*tensors))))
    assert measured[0] == measured[1]


# Cuts into micro-batches


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSS_NAMES)
@examples(5)
@given(seed=SEEDS, pieces=st.sampled_from([2, 3, 7]))
def test_micro_batches_add_up_to_the_step(name, mode, seed, pieces):
    step = make_step(seed)
    chosen = selected(name, step)
    whole = loss_and_gradient(name, step, mode, **({} if chosen is None else {"selection_BT": chosen}))
    total, gradient, merged = torch.zeros((), dtype=torch.float64), torch.zeros_like(whole[1]), {}
    for index in torch.arange(step.scores_B.numel()).chunk(pieces):
        options = {} if chosen is None else {"selection_BT": chosen[index]}
        part, part_gradient, metrics = loss_and_gradient(name, step.rows(index), mode, counts=step, **options)
        total, gradient[index] = total + part, part_gradient
        merged = {key: merged[key].merge(metric) if key in merged else metric for key, metric in metrics.items()}
    same(total, whole[0])
    same(gradient, whole[1])
    assert results(merged) == pytest.approx(results(whole[2]), rel=1e-9, abs=1e-12)


# Padding width


def pad(step: Step, width: int) -> Step:
    fills = {torch.bool: 0, torch.int64: -1}
    return step.change(lambda t: torch.nn.functional.pad(t, (0, width), value=fills.get(t.dtype, NAN)))


@pytest.mark.parametrize("name", LOSS_NAMES)
@EXAMPLES
@given(seed=SEEDS, width=st.integers(1, 5))
def test_padding_width_changes_no_loss(name, seed, width):
    step = make_step(seed)
    for mode in AGGREGATIONS:
        narrow, wide = loss_and_gradient(name, step, mode), loss_and_gradient(name, pad(step, width), mode)
        same(wide[0], narrow[0])
        same(wide[1][:, : step.mask_BT.shape[1]], narrow[1])
        assert wide[1][:, step.mask_BT.shape[1] :].abs().sum() == 0
        assert results(wide[2]) == pytest.approx(results(narrow[2]))


@pytest.mark.parametrize("name", [name for name in ESTIMATOR_NAMES if ESTIMATORS[name].token_level])
@EXAMPLES
@given(seed=SEEDS, width=st.integers(1, 5))
def test_padding_width_changes_no_estimator(name, seed, width):
    step, T = make_step(seed), 6
    narrow, wide = estimate(name, step), estimate(name, pad(step, width))
    for before, after in zip(narrow, wide, strict=True):
        same(after[:, :T], before)
        assert after[:, T:].abs().sum() == 0


# Permutations


@pytest.mark.parametrize("name", ESTIMATOR_NAMES)
@EXAMPLES
@given(seed=SEEDS)
def test_order_of_rows_and_names_of_groups_change_no_estimator(name, seed):
    step = make_step(seed)
    order = torch.randperm(step.scores_B.numel(), generator=torch.Generator().manual_seed(seed))
    expected = advantages_of(name, step)
    same(advantages_of(name, step.rows(order)), expected[order])
    renamed = replace(step, group_ids_B=-3 * step.group_ids_B + 11)  # also turns the order of the groups round
    same(advantages_of(name, renamed), expected)


@pytest.mark.parametrize("name", LOSS_NAMES)
@EXAMPLES
@given(seed=SEEDS)
def test_order_of_rows_changes_no_loss(name, seed):
    step = make_step(seed)
    order = torch.randperm(step.scores_B.numel(), generator=torch.Generator().manual_seed(seed))
    for mode in AGGREGATIONS:
        before, after = loss_and_gradient(name, step, mode), loss_and_gradient(name, step.rows(order), mode)
        same(after[0], before[0])
        same(after[1], before[1][order])


# A group alone and the same group among others


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "passk", "maxrl"])
@EXAMPLES
@given(seed=SEEDS)
def test_groups_do_not_see_each_other(name, seed):
    step = make_step(seed)
    expected = advantages_of(name, step)
    for group in step.group_ids_B.unique():
        index = (step.group_ids_B == group).nonzero().flatten()
        same(advantages_of(name, step.rows(index)), expected[index])


@EXAMPLES
@given(seed=SEEDS, unit=st.floats(1e-3, 1e3))
def test_the_unit_of_rewards_changes_no_advantage_relative_to_their_mean(seed, unit):
    step = make_step(seed)
    same(advantages_of("maxrl", replace(step, scores_B=unit * step.scores_B)), advantages_of("maxrl", step))


@pytest.mark.parametrize("name", [name for name in ESTIMATOR_NAMES if "group_ids_B" in ESTIMATORS[name].inputs])
@EXAMPLES
@given(seed=SEEDS, constant=st.floats(-10, 10, width=32), eps=st.sampled_from([0.0, 1e-6]))
def test_constant_groups_get_exactly_zero(name, seed, constant, eps):
    step = make_step(seed, dtype=torch.float32)
    first = step.group_ids_B == step.group_ids_B[0]
    if name == "maxrl":
        step, constant = replace(step, scores_B=step.scores_B.abs()), abs(constant)
    flat = replace(
        step,
        scores_B=step.scores_B.masked_fill(first, constant),
        parts_BC=step.parts_BC.masked_fill(first.unsqueeze(1), constant),
        # each turn of the group has the same return: the constant at the end of the row, and nothing before it
        token_rewards_BT=torch.where(
            first.unsqueeze(1), shaping.last_trained_BT(step.mask_BT) * constant, step.token_rewards_BT
        ),
    )
    advantages = ESTIMATORS[name](flat.tensors, {"eps": eps} if "eps" in ESTIMATORS[name].options else {})
    of_rows = advantages[0] if ESTIMATORS[name].token_level else advantages
    assert of_rows[first].abs().sum() == 0
    assert of_rows.isfinite().all()


# Rows without trained tokens


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_step_without_trained_tokens_is_zero_without_nan(name):
    step = make_step(1)
    empty = replace(step, mask_BT=torch.zeros_like(step.mask_BT)).poisoned()
    for mode in AGGREGATIONS:
        total, gradient, metrics = loss_and_gradient(name, empty, mode)
        assert total.item() == 0.0
        assert gradient.abs().sum().item() == 0.0
        assert results(metrics) == {}


@pytest.mark.parametrize("name", LOSS_NAMES)
@EXAMPLES
@given(seed=SEEDS)
def test_rows_without_trained_tokens_change_no_loss(name, seed):
    step = make_step(seed)
    kept = step.mask_BT.any(dim=1).nonzero().flatten()
    for mode in AGGREGATIONS:
        with_rows, without = loss_and_gradient(name, step, mode), loss_and_gradient(name, step.rows(kept), mode)
        same(with_rows[0], without[0])
        same(with_rows[1][kept], without[1])
        assert results(with_rows[2]) == pytest.approx(results(without[2]))


# Gradients against finite differences in float64

SHARED = ("gspo", "turn_gspo")  # the token form: tested with one advantage per sequence or turn
OWN_GRADIENT = ("cispo", "dppo", "tis", "topr")  # a weight without gradient: compared with its frozen form below


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", [name for name in LOSS_NAMES if name not in (*OWN_GRADIENT, *SHARED)])
@examples(3)
@given(seed=SEEDS)
def test_loss_gradients_are_those_of_finite_differences(name, mode, seed):
    step = make_step(seed, num_groups=2, T=4)
    chosen = selected(name, step)
    options = {} if chosen is None else {"selection_BT": chosen}

    def total(logprobs_BT: Tensor) -> Tensor:
        loss_BT = run_loss(name, replace(step, logprobs_BT=logprobs_BT), **options).per_token_BT
        return aggregate(loss_BT, step.mask_BT, mode, length=5, turn_index_BT=step.turn_index_BT)

    assert torch.autograd.gradcheck(total, step.logprobs_BT.clone().requires_grad_(), eps=1e-7, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "advantages_of_spans", "mode"),
    [
        ("gspo", lambda s: shaping.spread(s.scores_B, s.mask_BT), "sequence_mean_token_mean"),
        ("turn_gspo", lambda s: s.turn_index_BT.double().sin() + s.scores_B.unsqueeze(1), "turn_mean_token_mean"),
    ],
)
@EXAMPLES
@given(seed=SEEDS)
def test_shared_ratios_have_their_gradient_with_one_advantage_a_span(name, advantages_of_spans, mode, seed):
    step = make_step(seed, num_groups=2, T=4)
    step = replace(step, advantages_BT=advantages_of_spans(step))

    def total(logprobs_BT: Tensor) -> Tensor:
        result = run_loss(name, replace(step, logprobs_BT=logprobs_BT), clip_low=0.1, clip_high=0.1)
        return aggregate(result.per_token_BT, step.mask_BT, mode, turn_index_BT=step.turn_index_BT)

    assert torch.autograd.gradcheck(total, step.logprobs_BT.clone().requires_grad_(), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("name", OWN_GRADIENT)
@EXAMPLES
@given(seed=SEEDS)
def test_weighted_losses_have_the_gradient_of_their_frozen_weight(name, seed):
    step = make_step(seed)
    ratio = (step.logprobs_BT - step.old_logprobs_BT).exp()
    weight = ratio.clamp(0, {"cispo": 5.0, "dppo": 20.0}.get(name, 1.0))
    if name == "dppo":
        moved = step.logprobs_BT.exp() - step.old_logprobs_BT.exp()
        weight = torch.where(moved * step.advantages_BT.sign() > 0.2, torch.zeros_like(weight), weight)
    if name == "topr":
        weight = torch.where(step.advantages_BT < 0, weight, torch.ones_like(weight))
    expected = torch.where(step.mask_BT, -weight * step.advantages_BT, torch.zeros_like(weight))
    _, gradient, _ = loss_and_gradient(name, step, "sequence_mean_token_sum")
    same(gradient * count_sequences(step.mask_BT), expected)


@pytest.mark.slow_cases("gae", "gigpo", "reinforce_plus_plus", "remax", "turn_grpo")
@pytest.mark.parametrize("name", ESTIMATOR_NAMES)
@examples(5)
@given(seed=SEEDS)
def test_estimator_gradients_are_those_of_finite_differences(name, seed):
    step = make_step(seed, num_groups=2, T=4)
    field = "token_rewards_BT" if ESTIMATORS[name].token_level else "scores_B"
    field = "parts_BC" if "parts_BC" in ESTIMATORS[name].inputs else field

    def advantages(x: Tensor) -> Tensor:
        return advantages_of(name, replace(step, **{field: x}))

    x = step.tensors[field].clone().requires_grad_()
    # a looser bound: std_G of two nearly equal scores bends sharply
    assert torch.autograd.gradcheck(advantages, x, eps=1e-7, atol=1e-4, rtol=1e-2)


SMOOTH: dict[str, Callable[[Tensor, Step], Tensor]] = {
    **{
        f"kl {n}": (lambda x, s, f=KL_ESTIMATORS[n].function: f(x, s.ref_logprobs_BT))
        for n in ("k1", "k2", "k3", "abs")
    },
    "kl_loss": ELEMENTWISE["kl_loss"],
    "clipped_value": ELEMENTWISE["clipped_value"],
    "whiten": ELEMENTWISE["whiten"],
    "bradley_terry": lambda x, s: bradley_terry(x, s.values_BT, center_coef=0.1, label_smoothing=0.1),
    "best_of": lambda x, s: best_of(x, s.lengths_B.clamp(max=3)),
    "entropy": lambda x, s: entropy_from_logits(x),
}


@pytest.mark.parametrize("name", SMOOTH)
@examples(5)
@given(seed=SEEDS)
def test_other_gradients_are_those_of_finite_differences(name, seed):
    step = make_step(seed, num_groups=2, T=4)
    x = step.logprobs_BT.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: SMOOTH[name](t, step), x, eps=1e-7, atol=1e-5)


# Precision


@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_computed_as_float32(name, dtype):
    step = make_step(3, dtype=dtype)
    wide = step.change(*[lambda t: t.float() if t.is_floating_point() else t] * 2)
    half, full = run_loss(name, step).per_token_BT, run_loss(name, wide).per_token_BT
    assert half.dtype == torch.float32
    assert torch.equal(half, full)


@pytest.mark.parametrize("name", ESTIMATOR_NAMES)
def test_half_precision_scores_are_computed_as_float32(name):
    assert advantages_of(name, make_step(3, dtype=torch.bfloat16)).dtype == torch.float32
