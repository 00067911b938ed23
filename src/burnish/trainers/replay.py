"""Replays of recorded steps, without sampling: other rewards score the same responses, or an estimator credits them.

Everything between the responses and the update is done as in the run: rewards, filters, penalties, normalisation,
advantages. Results of models (log-probabilities, values) are taken from the recording.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import torch
from rich.console import Console

from burnish.algorithms.advantages import Estimator
from burnish.config.domains import domain_settings, used_domains
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError, DataError
from burnish.forward.batch import Batch
from burnish.models.tokenizers import load_tokenizer
from burnish.observability.history import read_rows
from burnish.observability.recorder import (
    RecordedLine,
    RolloutNote,
    prompt_fields,
    read_rollouts,
    recorded_rollout,
    step_of,
)
from burnish.observability.sinks import METRICS_FILE
from burnish.outside.reading import reading
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.trainers.chaining import pinned
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.batching import build_batch, padded, scored
from burnish.trainers.rl.collection import penalised
from burnish.trainers.rl.credit import credit_rows
from burnish.trainers.rl.credit.by_domain import DomainCredit, Row
from burnish.trainers.rl.domains import Domains, build_domains
from burnish.trainers.rl.lessons import Lesson, teacher_weights
from burnish.trainers.rl.setup.feeds import load_prompt_set
from burnish.trainers.rl.setup.parts import open_scorer
from burnish.trainers.rl.setup.preflight import check_estimator
from burnish.trainers.rl.setup.teachers import read_lessons
from burnish.trainers.run_folder import recorded_paths
from burnish.trainers.telemetry.rollout_notes import notes_of
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout, RolloutGroup, RowKey

_DATA = "replay with the data that the run was trained on"
_NOT_RECORDED = "left out when it was recorded, so the models' numbers that its credit needs are unknown"


@dataclass(frozen=True, slots=True)
class ReplayedResponse:
    """Outcome of a response. reward: its score, before penalties for length. advantage: mean over its trained tokens,
    None if it is not trained on; `why` then gives the reason."""

    reward: float | None
    parts: Mapping[str, float]
    status: str
    advantage: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded response, as the step had it and as it is now."""

    step: int
    prompt_id: str
    domain: str
    group_id: int
    sample_index: int
    response: str
    before: ReplayedResponse
    after: ReplayedResponse
    branch: int = 0


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A recorded step: its groups, and what was noted of each response."""

    step: int
    groups: tuple[RolloutGroup, ...]
    lines: Mapping[RowKey, RecordedLine]


@dataclass(frozen=True, slots=True)
class CreditedStep:
    """A recorded step as the update would see it: its groups with their scores, why each is left out (empty if it is
    not), and the rows of the rest as a batch with advantages; None if there are none."""

    groups: tuple[RolloutGroup, ...]
    why_left_out: Mapping[int, str]
    rollouts: tuple[Rollout, ...] = ()
    batch: Batch | None = None


@dataclass(frozen=True, slots=True)
class Replayer:
    """Replays the steps of one run. notes: for the user."""

    config: RlConfig
    estimator: Estimator
    domains: Domains
    scorer: ProcessRewardScorer
    prompts: Mapping[tuple[str, str], Prompt]
    kl_coefs: Mapping[int, float]
    keeps_scores: bool
    lessons: Mapping[str, Lesson]
    notes: list[str] = field(default_factory=list)

    def replay(self, file: Path) -> list[Replayed]:
        """The responses of a recorded training step, in the order of the file.

        DataError if the file is damaged or its prompts differ from the data; ConfigError if the algorithm needs
        something that was not recorded; whatever a reward raises.
        """
        recorded = self.read(file)
        step = self.credited(recorded)
        notes = () if step.batch is None else notes_of(step.batch)
        credit = {r.key: note for r, note in zip(step.rollouts, notes, strict=True)}
        found = []
        for group in step.groups:
            for rollout in group.rollouts:
                key = rollout.key
                after = _after(rollout, credit.get(key), step.why_left_out[group.group_id])
                found.append(_replayed(recorded.step, group.prompt, recorded.lines[key], rollout, after))
        return found

    def credited(self, recorded: ReplayedStep) -> CreditedStep:
        """Score, filter and credit the groups of a recorded step. Raises like `replay`."""
        groups = recorded.groups if self.keeps_scores else self._scored(recorded.groups)
        why = {group.group_id: self.domains.why_left_out(group, recorded.step) for group in groups}
        kept, lacking = self._creditable([group for group in groups if not why[group.group_id]], recorded.lines)
        why |= {group.group_id: _NOT_RECORDED for group in lacking}
        if self.config.algorithm.overlong_buffer is not None:
            kept = [penalised(group, self.config.algorithm.overlong_buffer, self.domains) for group in kept]
        rows = scored(kept)
        batch = self._batch(rows, recorded) if rows else None
        return CreditedStep(tuple(groups), why, tuple(rollout for _, rollout in rows), batch)

    def read(self, file: Path) -> ReplayedStep:
        """The groups of a recorded step, with the prompts of the run's data."""
        with reading(f"{file}: reading recorded rollouts", DataError, remedy="name a step whose file is whole"):
            lines = read_rollouts(file)
            rollouts = [recorded_rollout(line) for line in lines]
        groups = []
        both = list(zip(lines, rollouts, strict=True))
        for group_id, of_group in groupby(both, key=lambda pair: pair[1].group_id):
            members = list(of_group)
            own = tuple(rollout for line, rollout in members if not line["greedy"])
            greedy = next((rollout for line, rollout in members if line["greedy"]), None)
            groups.append(RolloutGroup(self._prompt(members[0][0], file), group_id, own, greedy))
        noted = {r.key: line for line, r in both if not line["greedy"]}
        return ReplayedStep(step_of(file), tuple(groups), noted)

    def _prompt(self, line: RecordedLine, file: Path) -> Prompt:
        prompt = self.prompts.get((line["domain"], line["prompt_id"]))
        if prompt is None:
            raise DataError(f"{file}: the training data has no prompt {line['prompt_id']!r}", remedy=_DATA)
        known = json.loads(json.dumps(prompt_fields(prompt), default=str))  # as it was recorded
        if known != {name: line[name] for name in known}:
            raise DataError(f"{file}: prompt {line['prompt_id']!r} is another one in the training data", remedy=_DATA)
        return prompt

    def _scored(self, groups: Sequence[RolloutGroup]) -> tuple[RolloutGroup, ...]:
        """The groups with scores of the rewards of the run file, and no others."""
        fresh = [
            (group.prompt, _unscored(rollout))
            for group in groups
            for rollout in (*group.rollouts, group.greedy)
            if rollout is not None and rollout.finish_reason is not FinishReason.FAILED  # which stay as they are
        ]
        scores = {r.key: r for r in self.scorer.score(fresh)}
        return tuple(
            replace(
                group,
                rollouts=tuple(scores.get(r.key, r) for r in group.rollouts),
                greedy=group.greedy and scores.get(group.greedy.key, group.greedy),
            )
            for group in groups
        )

    @property
    def _needed(self) -> tuple[str, ...]:
        """Recorded per-token columns that the credit needs, since only the run's models could compute them."""
        estimator, in_reward = self.estimator, self.config.algorithm.kl_in == "reward"
        needed = {
            "token_values": estimator.needs_values,
            "teacher_logprobs": "teacher_logprobs_BT" in estimator.inputs,
            "old_logprobs": in_reward or "old_logprobs_BT" in estimator.inputs,
            "ref_logprobs": in_reward or "ref_logprobs_BT" in estimator.inputs,
        }
        return tuple(name for name, is_needed in needed.items() if is_needed)

    def _creditable(
        self, groups: Sequence[RolloutGroup], lines: Mapping[RowKey, RecordedLine]
    ) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
        """The groups of which everything is known, and the others. Of groups that were left out nothing is recorded."""
        known: list[RolloutGroup] = []
        unknown: list[RolloutGroup] = []
        for group in groups:
            rows = [lines[r.key] for r in group.rollouts if r.reward is not None]
            (known if all(name in row for row in rows for name in self._needed) else unknown).append(group)
        if groups and not known:
            raise ConfigError(
                f"algorithm.estimator {self.estimator.name!r} with kl_in {self.config.algorithm.kl_in!r} needs "
                f"{' and '.join(self._needed)}, which this step did not record",
                remedy="replay with an algorithm that needs no models besides the run's own, or kl_in=none",
            )
        return known, unknown

    def _batch(self, rows: Sequence[Row], recorded: ReplayedStep) -> Batch:
        """The rows with their recorded columns, and the credit that the update would assign."""
        rollouts = [rollout for _, rollout in rows]
        # No result depends on padding.
        batch = build_batch(rollouts, pad_token_id=0, mask_truncated=self.config.algorithm.mask_truncated)
        lines = [recorded.lines[r.key] for r in rollouts]
        for name in ("token_values", "old_logprobs", "ref_logprobs", "teacher_logprobs"):
            if all(name in line for line in lines):
                rows_of = [[float(value) for value in line[name]] for line in lines]
                column = "values" if name == "token_values" else name
                batch = batch.replace(**{column: padded(rows_of, 0.0, torch.float32)})
        if self.lessons:
            batch = batch.replace(teacher_weights=teacher_weights(rows, self.lessons))
        batch, _ = credit_rows(
            batch,
            rows,
            config=self.config,
            estimator=self.estimator,
            kl_coef=self.kl_coefs.get(recorded.step, self.config.algorithm.kl_coef),
            domain_credit=DomainCredit(self.domains) if self.config.domains else None,
        )
        return batch


@contextmanager
def open_replay(config: RlConfig, console: Console, *, keep_scores: bool = False) -> Iterator[Replayer]:
    """Load what a replay of this run needs: data, tokenizer, and the rewards with their workers, which end with this
    context. Neither policy nor engine. keep_scores: the recorded scores are credited as they are.

    Raises BurnishError for everything that a user can fix.
    """
    estimator = resolve_algorithm(config.algorithm).estimator
    check_estimator(config, estimator)
    config, _ = pinned(config)
    with open_scorer(config, console, recorded_paths(Path(config.output)), models_elsewhere=keep_scores) as scorer:
        settings, tokenizer = domain_settings(config), load_tokenizer(config.model)
        used = used_domains(config, settings, "train")
        sets = {one.key: load_prompt_set(config, one, tokenizer, None, "train") for one in used}
        if not keep_scores:
            scorer.attach_policy(tokenizer)
            scorer.check_prompts([prompt for prompts in sets.values() for prompt in prompts.prompts])
        yield Replayer(
            config=config,
            estimator=estimator,
            domains=build_domains(config, settings, sets, scorer, Progress(), begins=False),
            scorer=scorer,
            prompts={(p.domain, p.id): p for prompts in sets.values() for p in prompts.prompts},
            kl_coefs=_kl_coefs(config),
            keeps_scores=keep_scores,
            lessons=read_lessons(config, tokenizer),
            notes=list(_notes(config)),
        )


def check_same_teachers(recorded: RlConfig, config: RlConfig) -> None:
    """Raise ConfigError if a domain has a different teacher from when its responses were recorded, because only the
    recorded teacher's log-probabilities are known. Weights of teachers may differ."""
    known = {domain.key: domain.teacher for domain in domain_settings(recorded)}
    for domain in domain_settings(config):
        own, before = domain.teacher, known.get(domain.key)
        asked = [one and (one.path, one.name, one.prompt) for one in (own, before)]
        if own is not None and asked[0] != asked[1]:
            raise ConfigError(
                f"{domain.place('teacher')} is not the teacher that the run was recorded with, and no "
                "log-probabilities of another one were recorded",
                remedy=f"change {domain.place('teacher')}.weight alone, or replay without a teacher",
            )


def _kl_coefs(config: RlConfig) -> dict[int, float]:
    """The coefficient of each step, where the run adapted it."""
    if config.algorithm.kl_target is None:
        return {}
    rows = read_rows(Path(config.output) / METRICS_FILE)
    return {int(row["step"]): row["kl/coef"] for row in rows if "kl/coef" in row}


def _notes(config: RlConfig) -> Iterator[str]:
    running = [one.key for one in domain_settings(config) if one.own.normalize == "running"]
    if running:
        yield f"domains {', '.join(running)}: normalize is `running`, which starts over with each step of a replay"


def _unscored(rollout: Rollout) -> Rollout:
    """The response before any reward has seen it."""
    return replace(
        rollout, reward=None, reward_parts={}, token_rewards=None, status=RewardStatus.PENDING, status_detail=""
    )


def _after(rollout: Rollout, note: RolloutNote | None, why_left_out: str) -> ReplayedResponse:
    advantage = None if note is None else note.advantage
    why = why_left_out or (note.dropped_because if note is not None else f"reward {rollout.status.value}")
    if rollout.reward is None:
        why = f"reward {rollout.status.value}"
    return ReplayedResponse(rollout.reward, rollout.reward_parts, rollout.status.value, advantage, why)


def _replayed(step: int, prompt: Prompt, line: RecordedLine, rollout: Rollout, after: ReplayedResponse) -> Replayed:
    before = ReplayedResponse(
        line["reward"], line["reward_parts"], line["status"], line.get("advantage"), line.get("dropped_because", "")
    )
    return Replayed(step, prompt.id, prompt.domain, *rollout.sample, rollout.response, before, after, rollout.branch)
