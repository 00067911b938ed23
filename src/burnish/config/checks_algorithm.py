"""Combinations of fields of `algorithm` and `critic` that cannot work; part of `burnish.config.checks_rl`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from burnish.config import names
from burnish.config.checks import is_function_name
from burnish.config.domains import domain_settings, responses_per_step
from burnish.config.presets import PRESETS
from burnish.config.problems import Problem
from burnish.config.schema_rl import AlgorithmConfig, CriticConfig, RlFields
from burnish.errors import suggestion


def check_algorithm(config: RlFields) -> Iterator[Problem]:
    """Check estimator, loss, KL and critic."""
    algorithm = config.algorithm
    yield from _names(algorithm)
    yield from _options(algorithm)
    yield from _clips(algorithm)
    yield from _unused(config)
    yield from _units(algorithm)
    yield from _skipping(config)
    yield from _kl(algorithm)
    yield from _critic(config)
    yield from _pairs(config)


def check_adaptive_kl(config: RlFields) -> Iterator[Problem]:
    """Refuse a KL coefficient that one step could take below 0: it changes by up to a fifth of the step's share of the
    horizon."""
    algorithm = config.algorithm
    responses = 0 if algorithm.kl_target is None else responses_per_step(config)
    if responses >= 5 * algorithm.kl_horizon:
        message = f"is {algorithm.kl_horizon}, but a step has {responses} responses: it could make kl_coef negative"
        yield Problem("algorithm.kl_horizon", message, f"set it above {responses // 5}; 10000 is usual")


def _names(algorithm: AlgorithmConfig) -> Iterator[Problem]:
    for field, value, known in (
        ("preset", algorithm.preset, tuple(PRESETS)),
        ("estimator", algorithm.estimator, names.ESTIMATOR_NAMES),
        ("loss", algorithm.loss, names.LOSS_NAMES),
    ):
        outside = field != "preset" and is_function_name(value)
        if value not in known and not outside:
            remedy = names.suggested(value, known)
            if field != "preset":
                remedy += ", or package.module:function, or path/to/file.py:function"
            yield Problem(f"algorithm.{field}", f"{value!r} is not known", remedy)


def _options(algorithm: AlgorithmConfig) -> Iterator[Problem]:
    """Check that options of estimator and loss are numbers, or words that the loss knows. Names are checked when the
    function is looked up."""
    for field, options in (("estimator", algorithm.estimator_options), ("loss", algorithm.loss_options)):
        words = names.LOSS_WORDS.get(algorithm.loss, {}) if field == "loss" else {}
        own = field == "estimator" and algorithm.estimator in names.ESTIMATOR_NAMES
        for name, value in options.items():
            if name in words:
                if value not in words[name]:
                    remedy = suggestion(str(value), words[name])
                    yield Problem(f"algorithm.loss_options.{name}", f"{value!r:.60} is not known", remedy)
            elif value is not None and not (isinstance(value, (bool, int, float)) and math.isfinite(value)):
                message = f"is {value!r:.60}, not a finite number"
                yield Problem(f"algorithm.{field}_options.{name}", message, "give a number, true, false or null")
            elif own and value and name in _HIGHEST and not 0 <= value <= _HIGHEST[name]:
                remedy = f"give a number from 0 to {_HIGHEST[name]:g}"
                yield Problem(f"algorithm.{field}_options.{name}", f"is {value:g}", remedy)


_HIGHEST = {"gamma": 1, "lam": 1, "eps": math.inf, "beta": math.inf, "omega": math.inf}
"""Highest values of options of built-in estimators that must not be negative either."""


def _clips(algorithm: AlgorithmConfig) -> Iterator[Problem]:
    loss = algorithm.loss
    if loss not in names.LOSS_NAMES:
        return
    own = PRESETS[loss].values if loss in PRESETS else {}  # a loss whose paper does not clip at 0.2
    for field, takers in (("clip_low", names.CLIP_LOW_LOSSES), ("clip_high", names.CLIP_HIGH_LOSSES)):
        value, path = _of(algorithm, field), f"algorithm.{field}"
        if loss not in takers:
            if value is not None and _is_changed(algorithm, field):
                message = f"is {value:g}, but the loss {loss!r} does not take it"
                yield Problem(path, message, f"remove it (or set it to null), or use one of: {', '.join(takers)}")
        elif value is None:
            yield Problem(path, f"is null, but the loss {loss!r} clips", "set it to a number, for example 0.2")
        elif path in own and field not in algorithm.model_fields_set:
            message = f"is left at its default {value:g}, which does not suit the loss {loss!r}"
            yield Problem(path, message, f"set it (the preset {loss!r} uses {own[path]:g})")
        elif algorithm.loss_options.get("divergence") == "kl" and field not in algorithm.model_fields_set:
            message = f"is left at its default {value:g}, which bounds probabilities, but the divergence is kl"
            yield Problem(path, message, "set it to the largest KL in nats (0.05 is usual)")


def _unused(config: RlFields) -> Iterator[Problem]:
    """Refuse numbers that are set but never used."""
    algorithm, estimator = config.algorithm, config.algorithm.estimator
    refills = any(domain.refills for domain in domain_settings(config))
    known, lacks = estimator in names.ESTIMATOR_NAMES, f"the estimator {estimator!r} has no"
    drops = algorithm.mismatch_correction == "sequence_off_policy"
    if drops and algorithm.mismatch_delta is None:
        message = "is not set, but algorithm.mismatch_correction is sequence_off_policy"
        yield Problem("algorithm.mismatch_delta", message, "set it to the largest mean in nats, for example 0.1")
    for field, is_used, remedy in (
        ("gamma", not known or estimator in names.GAMMA_ESTIMATORS, f"{lacks} discount"),
        ("discount", not known or estimator in names.DISCOUNT_ESTIMATORS, f"{lacks} choice of discount"),
        ("lam", not known or estimator in names.LAM_ESTIMATORS, f"{lacks} lambda"),
        ("kl_estimator", algorithm.kl_in != "none", "it belongs to a KL: set kl_in and kl_coef too"),
        ("kl_horizon", algorithm.kl_target is not None, "it belongs to adaptive KL: set kl_target too"),
        ("whiten_over", algorithm.whitens, "it belongs to whiten_rewards and whiten_advantages"),
        ("max_refills", refills, "it belongs to dynamic_sampling: true, and to the difficulty of domains"),
        ("mismatch_low", algorithm.weights_mismatch, "it belongs to mismatch_correction"),
        ("mismatch_high", algorithm.weights_mismatch, "it belongs to mismatch_correction"),
        ("mismatch_delta", drops, "it belongs to mismatch_correction: sequence_off_policy"),
    ):
        if not is_used and _is_changed(algorithm, field):
            message = f"is {_of(algorithm, field)}, but it is not used"
            yield Problem(f"algorithm.{field}", message, f"{remedy}; or remove {field}")


def _skipping(config: RlFields) -> Iterator[Problem]:
    """Refuse `skip_zero_advantages` with settings that give a response a gradient even if its advantages are 0."""
    algorithm = config.algorithm
    if not algorithm.skip_zero_advantages:
        return
    for field, has_gradient in (
        ("algorithm.kl_in", algorithm.kl_in == "loss" and algorithm.kl_coef > 0),
        ("algorithm.entropy_coef", algorithm.entropy_coef > 0),
        ("critic.kind", algorithm.estimator in names.CRITIC_ESTIMATORS and config.critic.kind == "shared"),
        ("model.router_aux_coef", config.model.router_aux_coef > 0),
    ):
        if has_gradient:
            message = f"is true, but with this {field} responses with zero advantage also have a gradient"
            yield Problem("algorithm.skip_zero_advantages", message, f"set it to false, or change {field}")


def _units(algorithm: AlgorithmConfig) -> Iterator[Problem]:
    """Refuse whitened rewards for estimators that expect other units, and what makes rewards negative for one that
    divides by them."""
    if algorithm.whiten_rewards and algorithm.estimator in names.GREEDY_ESTIMATORS:
        message = f"is true, but {algorithm.estimator} subtracts the greedy response's score, which is not whitened"
        yield Problem("algorithm.whiten_rewards", message, "set it to false (whiten_advantages may be true)")
    if algorithm.whiten_rewards and algorithm.estimator in ("reinforce_plus_plus", *names.TURN_ESTIMATORS):
        message = "is true, but every whitened token would add to the return, so longer responses would score higher"
        yield Problem("algorithm.whiten_rewards", message, "set it to false (the estimator scales its returns itself)")

    for field, is_set in (
        ("whiten_rewards", algorithm.whiten_rewards),
        ("kl_in", algorithm.kl_in == "reward"),
        ("overlong_buffer", algorithm.overlong_buffer is not None),
    ):
        if is_set and algorithm.estimator == "maxrl":
            message = f"is {_of(algorithm, field)}, which can make rewards negative, but maxrl divides by their mean"
            yield Problem(f"algorithm.{field}", message, "leave it out, or use another estimator (dr_grpo)")


def _kl(algorithm: AlgorithmConfig) -> Iterator[Problem]:
    kl_in, coef = algorithm.kl_in, algorithm.kl_coef
    if kl_in == "none" and coef > 0:
        message = f"is {coef:g}, but algorithm.kl_in is none"
        yield Problem("algorithm.kl_coef", message, "set algorithm.kl_in to reward or loss, or kl_coef to 0")
    if kl_in != "none" and coef == 0:
        message = f"is 0, but algorithm.kl_in is {kl_in}"
        yield Problem("algorithm.kl_coef", message, "set kl_coef, or set algorithm.kl_in to none (loads no reference)")
    if algorithm.kl_target is not None and kl_in == "none":
        message = f"is {algorithm.kl_target:g} and adapts kl_coef, but algorithm.kl_in is none"
        yield Problem("algorithm.kl_target", message, "set algorithm.kl_in to reward or loss, or remove kl_target")
    if kl_in == "reward" and algorithm.kl_function.endswith("+"):
        message = f"is {algorithm.kl_estimator}; its + only changes the gradient, and a KL in the reward has none"
        remedy = f"use {algorithm.kl_function.rstrip('+')}, or algorithm.kl_in: loss"
        yield Problem("algorithm.kl_estimator", message, remedy)
    if algorithm.kl_times_ratio and kl_in != "loss":
        message = f"is true, but algorithm.kl_in is {kl_in}: only a KL in the loss is weighted"
        yield Problem("algorithm.kl_times_ratio", message, "set it to false, or algorithm.kl_in: loss")
    if algorithm.mismatch_low >= algorithm.mismatch_high:
        message = f"is {algorithm.mismatch_low:g}, not below algorithm.mismatch_high {algorithm.mismatch_high:g}"
        yield Problem("algorithm.mismatch_low", message, "weights are kept between the two: set low < high")
    elif algorithm.weights_mismatch:
        apart = {"mismatch_low": algorithm.mismatch_low > 1, "mismatch_high": algorithm.mismatch_high < 1}
        for field in (field for field in apart if apart[field]):
            message = f"is {_of(algorithm, field):g}, but a weight of 1 (no mismatch) must be within the bounds"
            yield Problem(f"algorithm.{field}", message, "set mismatch_low <= 1 and mismatch_high >= 1")


def _critic(config: RlFields) -> Iterator[Problem]:
    critic, estimator = config.critic, config.algorithm.estimator
    if not config.algorithm.may_use_critic:
        for field in (f for f in type(critic).model_fields if _is_changed(critic, f)):
            message = f"is {_of(critic, field)}, but it is not used: the estimator {estimator!r} has no critic"
            yield Problem(f"critic.{field}", message, f"set algorithm.estimator: gae, or remove critic.{field}")
        return
    if critic.kind == "shared" and critic.init != "policy":
        message = f"is {critic.init!r}, but a shared critic is a head on the policy's own backbone"
        yield Problem("critic.init", message, "set critic.kind: separate, or critic.init: policy")
    if critic.kind == "separate" and config.model.quantization is not None:
        message = "is separate, but such a critic trains all weights, and model.quantization freezes them"
        yield Problem("critic.kind", message, "set it to shared, or remove model.quantization")
    if critic.init != "policy" and critic.head_init_std != 0:
        message = f"is {critic.head_init_std:g}, but critic.init {critic.init!r} has its own head"
        yield Problem("critic.head_init_std", message, "set it to 0, or critic.init: policy")
    models = [reward for reward in config.all_rewards if reward.is_model]
    if critic.init == "reward_model" and len(models) != 1 and config.all_rewards:
        message = f"is reward_model, but {len(models)} of the rewards are reward models (model:PATH), not exactly one"
        remedy = "use one model:PATH reward, name the critic's own folder, or set init: policy"
        yield Problem("critic.init", message, remedy)
    if critic.warmup_steps >= config.steps:
        message = f"is {critic.warmup_steps}, but the run has {config.steps} steps: the policy would never be trained"
        yield Problem("critic.warmup_steps", message, f"set it below steps ({config.steps})")


def _pairs(config: RlFields) -> Iterator[Problem]:
    """Refuse several updates of a step for `online_dpo`, whose gradient is that of the policy that sampled, and
    responses left out of the loss, which would leave half of a pair."""
    if config.algorithm.estimator != "online_dpo":
        return
    for field, value in (("epochs", config.optimization.epochs), ("minibatches", config.optimization.minibatches)):
        if value > 1:
            message = f"is {value}, but the estimator 'online_dpo' is the gradient of DPO only with one update per step"
            yield Problem(f"optimization.{field}", message, "set it to 1")
    if config.max_staleness:
        message = f"is {config.max_staleness}, but 'online_dpo' is the gradient of DPO only at the weights that sampled"
        yield Problem("max_staleness", message, "set it to 0")
    if config.algorithm.mask_truncated:
        message = "is true, which could leave out half of a pair of the estimator 'online_dpo'"
        yield Problem("algorithm.mask_truncated", message, "set it to false")


def _of(section: AlgorithmConfig | CriticConfig, field: str) -> object:
    return section.__dict__[field]


def _is_changed(section: AlgorithmConfig | CriticConfig, field: str) -> bool:
    """Set and different from the default. Being set is not enough: a run's own config.yaml sets every field."""
    return field in section.model_fields_set and _of(section, field) != type(section).model_fields[field].default
