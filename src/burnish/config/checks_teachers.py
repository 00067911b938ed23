"""Settings of teachers that cannot work in an RL run file, or have no effect; see `burnish.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config import names
from burnish.config.domains import domain_settings
from burnish.config.problems import Problem
from burnish.config.schema_rl import RlFields
from burnish.config.schema_teacher import OWN_POLICY


def check_teachers(config: RlFields) -> Iterator[Problem]:
    """Refuse what teachers cannot do, and what they leave without an effect."""
    yield from _vocabulary(config)
    yield from _named(config)
    yield from _unpaid(config)
    yield from _endpoints(config)


def _vocabulary(config: RlFields) -> Iterator[Problem]:
    """Refuse a comparison over the vocabulary (`teacher.compare`) that no single pass of the update can make, and
    settings that it leaves without an effect."""
    if not config.compares_vocabulary:
        return
    cluster, because = config.cluster, "but teacher.compare is vocabulary"
    for field, teacher in config.named_teachers.items():
        if teacher.compare == "sampled" or len(config.teacher_paths) > 1:
            yield Problem(field, f"differs from other teachers, {because}, which allows one", "use one, or sampled")
        if teacher.prompt is not None:
            message = f"is set, {because}, which reads the rows of the policy's own pass"
            yield Problem(f"{field}.prompt", message, "remove it, or set compare: sampled")
        if teacher.path == OWN_POLICY and config.model.lora is not None:
            message = f"is the policy with its adapters off, {because}, which reads both at once"
            yield Problem(f"{field}.path", message, "name a folder or a run")
    for field, named in (("own_process", cluster.own_process), ("offload", cluster.offload)):
        if "teacher" in named:
            message = f"names the teacher, {because}: every pass of the update reads its distributions"
            yield Problem(f"cluster.{field}", message, "remove teacher from it, or set compare: sampled")
    if cluster.sharding == "full" and cluster.trainers > 1:
        message = f"is full, {because}, which needs whole weights of the teacher"
        yield Problem("cluster.sharding", message, "set it to whole or optimizer")
    if config.rollout.temperature != 1:
        message = f"is {config.rollout.temperature:g}, {because}, which compares distributions at temperature 1"
        yield Problem("rollout.temperature", message, "remove it, or set compare: sampled")
    for name, domain in config.domains.items():
        weights = domain.model_dump(
            include={"loss_weight", "difficulty_weight", "length_weight"}, exclude_defaults=True
        )
        for field, value in weights.items():
            message = f"is {value}, {because}: there are no advantages to weigh"
            yield Problem(f"domains.{name}.{field}", message, "remove it, or set compare: sampled")
    for name, value in config.algorithm.model_dump(exclude_defaults=True).items():
        if name not in _WITH_VOCABULARY:
            message = f"is {value}, {because}: its loss has no advantages, ratios or further terms"
            yield Problem(f"algorithm.{name}", message, "remove it, or set compare: sampled")


_WITH_VOCABULARY = [
    "preset",
    "estimator",
    "aggregation",
    "mask_truncated",
    "top_entropy",
    "old_logprobs",
    "dynamic_sampling",
    "max_refills",
]
"""Fields of `algorithm` that have an effect if the loss is the divergence from a teacher."""


def _named(config: RlFields) -> Iterator[Problem]:
    """Refuse a teacher that nobody asks, and one that is the policy with its adapters off in a process without the
    adapters. (`check_estimator` refuses an estimator without the teacher that it asks.)"""
    estimator = config.algorithm.estimator
    asks_nobody = estimator in set(names.ESTIMATOR_NAMES) - set(names.TEACHER_ESTIMATORS)
    for field in config.named_teachers if asks_nobody else ():
        message = f"is set, but it is not used: the estimator {estimator!r} does not read a teacher's log-probabilities"
        yield Problem(field, message, "use the preset opd, or remove it")
    if not config.has_scores and config.algorithm.estimator_options.get("reward_coef"):
        field, message = "algorithm.estimator_options.reward_coef", "is set, but there are no rewards to add"
        yield Problem(field, message, "name rewards, or remove it")
    for domain in domain_settings(config):
        untaught = bool(config.named_teachers) and domain.is_trained and domain.teacher is None
        if untaught:
            yield Problem(f"domains.{domain.name}.teacher", "is not set, and there is no top-level teacher", "name one")
        if domain.teacher is not None and domain.teacher.prompt is not None and domain.conversation is not None:
            message = "is set, but the prompt of a conversation grows, so a teacher cannot read a different one"
            yield Problem(f"{domain.place('teacher')}.prompt", message, "remove it, or the conversation")
    if config.teacher is not None and config.domains and all(one.teacher for one in config.domains.values()):
        yield Problem("teacher", "is set, but every domain has its own teacher", "remove it")
    mixed = OWN_POLICY in config.teacher_paths and len(config.teacher_paths) > 1
    if mixed and config.model.lora is not None and "teacher" in config.cluster.own_process:
        message = "names the teacher, but one teacher is the policy with its adapters off (model.lora)"
        yield Problem("cluster.own_process", message, "remove teacher from it, or use no teacher `policy`")


def _unpaid(config: RlFields) -> Iterator[Problem]:
    """Refuse what only scores move where none are trained on: the groups of a teacher all carry a signal."""
    if not config.teaches_alone or config.algorithm.estimator_options.get("reward_coef"):
        return
    for domain in domain_settings(config):
        section, difficulty = f"domains.{domain.name}", domain.difficulty
        for field, is_on in (
            (domain.place("algorithm.dynamic_sampling"), domain.dynamic_sampling),
            (f"{section}.difficulty.min_spread", difficulty is not None and bool(difficulty.min_spread)),
            (f"{section}.normalize", domain.own.normalize != "none"),
            (f"{section}.reward_clip", domain.own.reward_clip is not None),
        ):
            if is_on:
                message = "is set, but only the teacher decides what is learned, and no score"
                yield Problem(field, message, "remove it, or set algorithm.estimator_options.reward_coef")


def _endpoints(config: RlFields) -> Iterator[Problem]:
    """Refuse teachers that are in two places or in none, and what an endpoint cannot do."""
    because, temperature = "but the teacher is at an endpoint", config.rollout.temperature
    for field, teacher in config.named_teachers.items():
        yield from teacher.misplaced(field)
        if teacher.url is None:
            continue
        if teacher.compare == "vocabulary":
            message = f"is vocabulary, {because}, which gives log-probabilities of single tokens"
            yield Problem(f"{field}.compare", message, "set it to sampled, or name the model's path")
        if temperature != 1:
            message = f"is {temperature:g}, {because}, which scores at temperature 1"
            yield Problem("rollout.temperature", message, "remove it, or name the model's path")
