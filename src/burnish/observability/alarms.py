"""Detectors of runs that go on without learning, from the metric rows alone.

Each alarm fires once a run, with its cause and the field to change. The same rows give the same alarms, so the report
replays them from metrics.jsonl, and a resumed run continues from `state`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

Row = Mapping[str, float]
START_READINGS = 3
"""Number of first readings whose mean is the metric's start."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A warning: `message` gives the observation and its usual meaning, `knob` the setting to change."""

    name: str
    message: str
    knob: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """Fires when `trips` holds in `patience` rows in a row. A row without the metric neither counts nor resets.

    `trips(value, start, row)`: `start` is the mean of the metric's first readings, None until there are enough.
    """

    name: str
    metric: str
    trips: Callable[[float, float | None, Row], bool] = lambda value, start, row: value > 0
    message: str
    """May have `{value}`, `{start}` and `{row[NAME]}`, which is 0 for a metric that the row does not have."""
    knob: str
    """May have `{limits}`: the fields that cut off responses in the row."""
    patience: int = 1
    also: str = ""
    """A second metric: the higher of the two is the reading."""
    needs: str = ""
    """A metric that has to be above 0 as well."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Fires when a metric of a family is below its first readings, by at least `FALL` of them, in `patience` rows
    in a row in which another metric is above its own."""

    name: str
    falls: str
    """Name with `{word}`: each metric of the family has its own alarm, named by its word."""
    rises: str
    message: str
    """May have `{word}`, `{value}` and `{start}`, the mean of the first readings."""
    knob: str
    patience: int = 5


FALL = 0.1
SMALLEST_FALL = 0.02
"""Smallest fall that counts, for metrics that begin near 0."""

SMALL_KL_PER_RESPONSE = 10.0
"""Nats. Making an answer certain that the reference gave once in 20,000 costs as much, and is still learning."""
SMALL_KL_PER_TOKEN = 0.05
"""Nats. Lower bound for the start of a run, because a policy that begins as its reference begins at 0."""


def _runs_away(per_token: float, start: float | None, row: Row) -> bool:
    """Compare with the target of an adaptive KL if there is one. Else judge the size both per response and per token:
    while they learn, short responses move far per token, long ones far per response."""
    per_response = row["kl/reference"]
    if "kl/target" in row:
        return per_response > 3 * row["kl/target"]
    if per_response <= SMALL_KL_PER_RESPONSE:
        return False
    return per_token > 1.0 or (start is not None and per_token > 10 * max(start, SMALL_KL_PER_TOKEN))


_OUT_OF_TURNS, _CUT_TURN = "conversation/out_of_turns_fraction", "conversation/cut_turn_fraction"
_TEACHER = {"kl/teacher", "policy/teacher_divergence"}
"""With one of them a teacher judges the responses, and equal scores do not mean that nothing is learned."""

DETECTORS: tuple[Detector, ...] = (
    Detector(
        name="reward constant",
        metric="reward/std",
        trips=lambda std, start, row: (
            not _TEACHER & row.keys() and std <= 1e-6 * max(1.0, abs(row.get("reward/mean", 0.0)))
        ),
        message="every response of three steps in a row scored {row[reward/mean]:.6g}: there is nothing to learn from",
        knob="look at the recorded rollouts and `burnish check`; easier prompts, a reward with partial credit, "
        "rollout.group_size or rollout.temperature up",
        patience=3,
    ),
    Detector(
        name="all truncated",
        metric="rollout/truncated_fraction",
        trips=lambda fraction, start, row: fraction > 0 and fraction + row.get(_OUT_OF_TURNS, 0.0) >= 0.999,
        message="every response of two steps in a row was cut at a limit: none has an end to be judged by",
        knob="{limits} up, or rollout.stop / rollout.stop_token_ids when the end has another sign",
        patience=2,
    ),
    Detector(
        name="constant groups",
        metric="groups/constant_fraction",
        trips=lambda fraction, start, row: fraction > 0.9 and not _TEACHER & row.keys(),
        message="in {value:.0%} of the groups all responses scored the same (reward/mean "
        "{row[reward/mean]:.4g}): such groups carry no gradient; the prompts are too easy or too hard",
        knob="prompts of a different difficulty, rollout.group_size up, or algorithm.dynamic_sampling: true",
        patience=3,
    ),
    Detector(
        name="sampler and trainer disagree",
        metric="policy/first_ratio_deviation",
        trips=lambda deviation, start, row: deviation > 1e-3,
        message="on the first minibatch, before any update, the probability ratio was off 1 by {value:.3g}: "
        "the log-probabilities before and during the update come from different computations",
        knob="model.dtype: float32; then look for dropout, or another temperature or padding in one of the two passes",
    ),
    Detector(
        name="engine samples another policy",
        metric="rollout/logprob_diff_mean",
        # Far beyond the error of number formats (bfloat16: some hundredths); a strict top-p or min-p may come near it.
        trips=lambda distance, start, row: distance > 0.5,
        message="the sampler's log-probabilities are {value:.3g} nats from the trainer's on average: it computes with "
        "other weights or another model, or its filters leave out most of the mass",
        knob="rollout.engine: local, to see whether it goes away; rollout.top_k, top_p and min_p; another vLLM version",
    ),
    Detector(
        name="entropy collapse",
        metric="policy/entropy",
        trips=lambda entropy, start, row: start is not None and entropy < 0.05 * start,
        message="the entropy fell from {start:.3g} to {value:.3g} nats: the policy has stopped trying other responses "
        "(harmless only where the reward is already as good as it gets)",
        knob="optimization.learning_rate down, algorithm.entropy_coef or algorithm.clip_high up, "
        "or a KL to the reference (algorithm.kl_in)",
        patience=3,
    ),
    Detector(
        name="KL runaway",
        metric="kl/reference_per_token",
        trips=_runs_away,
        message="the policy is {value:.3g} nats per token and {row[kl/reference]:.3g} per response away from the "
        "reference: it may have left sensible text behind to please the reward",
        knob="algorithm.kl_coef up, or algorithm.kl_target for an adaptive one; optimization.learning_rate down",
        patience=2,
    ),
    Detector(
        name="KL clamped",
        metric="kl/clamped_fraction",
        message="{value:.2g} of the tokens are more than 20 nats from the reference: there k3 no longer changes and "
        "has no gradient, so the KL does not pull back the tokens that have drifted furthest",
        knob="algorithm.kl_estimator: k2 (in the loss also k3+); algorithm.kl_coef up; optimization.learning_rate down",
        patience=2,
    ),
    Detector(
        name="ratio clamped",
        metric="policy/ratio_clamped_fraction",
        message="{value:.2g} of the tokens moved more than 20 nats within the updates of one step: their ratio is held "
        "at the limit, without a gradient",
        knob="optimization.learning_rate, optimization.epochs or optimization.max_grad_norm down, "
        "or algorithm.max_epoch_kl",
    ),
    Detector(
        name="reward failures",
        metric="reward/failed_fraction",
        message="{value:.1%} of the responses could not be scored; the run stops past scoring.max_failure_fraction",
        knob="status and status_detail in the recorded rollouts say why; timeout_seconds of the reward, "
        "scoring.on_failure",
    ),
    Detector(
        name="engine restarted",
        metric="rollout/engine_restarts",
        also="eval/rollout/engine_restarts",
        message="the process that samples died or did not answer, and was started again with the same weights: the "
        "step is whole, but took longer",
        knob="vllm.log in the run's folder says how it ended; killed by SIGKILL is mostly too little memory: "
        "rollout.max_batch_rows or rollout.vllm.options.gpu_memory_utilization down",
    ),
    Detector(
        name="environments fail",
        metric="environment/failed_fraction",
        trips=lambda fraction, start, row: fraction > 0.1,
        message="{value:.0%} of the environments failed, and more than 10% in three steps in a row: their responses "
        "have no score, and what is left may be the easy part; the run stops past scoring.max_failure_fraction",
        knob="status_detail in the recorded rollouts says why; conversation.call_timeout_seconds and "
        "open_timeout_seconds for slow ones, conversation.max_open where memory or a server is short",
        patience=3,
    ),
    Detector(
        name="calls that cannot be made",
        metric="tool/malformed_fraction",
        trips=lambda fraction, start, row: fraction + row.get("tool/invalid_fraction", 0.0) > 0.5,
        message="for ten steps in a row most calls could not be made; now {value:.0%} cannot be read, and "
        "{row[tool/invalid_fraction]:.0%} name no such tool or have wrong arguments",
        knob="conversation.parser, if the policy writes calls in a different form; some supervised examples of calls "
        "first (`burnish sft`); shorter schemas",
        patience=10,
    ),
    Detector(
        name="tools restarted",
        metric="conversation/restarts",
        also="eval/conversation/restarts",
        message="the process that starts tools and environments had ended and was started again: the conversations of "
        "that moment are lost",
        knob="what tools and environments print says how it ended; killed by SIGKILL is mostly too little memory: "
        "conversation.max_open down",
    ),
    Detector(
        name="critic worse than a constant",
        metric="critic/explained_variance",
        # While the critic warms up, the policy makes no optimizer step, so its row lacks that metric.
        trips=lambda explained, start, row: explained < 0 and "policy/optimizer_steps" in row,
        message="the critic's explained variance was below 0 for ten steps in a row and is {value:.3g}: the "
        "advantages are noisier than they would be with the mean return in its place",
        knob="critic.warmup_steps up, so that it learns before the policy moves on; for a head on a shared trunk also "
        "critic.learning_rate or critic.coef up; where values swing from step to step, critic.learning_rate down",
        patience=10,
    ),
    Detector(
        name="critic far from the returns",
        metric="critic/value_mean",
        trips=lambda value, start, row: (
            abs(value - row.get("critic/return_mean", value))
            > max(row.get("critic/return_std", 0.0), 0.2 * abs(row.get("critic/return_mean", 0.0)))
        ),
        message="for ten steps in a row the mean value was further from the mean return than the returns spread, "
        "now {value:.3g} against {row[critic/return_mean]:.3g}: the critic moves too slowly",
        knob="critic.learning_rate up (a value moves by about learning rate x hidden size an optimizer step), "
        "critic.warmup_steps up, critic.clip up or null; algorithm.lam: 1, with which a constant error has no effect",
        patience=10,
    ),
    Detector(
        name="length explains the preference",
        metric="eval/length_correlation",
        trips=lambda correlation, start, row: (
            abs(correlation) > 0.7
            and row.get("eval/length_rule_accuracy", 0.0) > 0.5
            and row.get("eval/length_rule_accuracy", 0.0) >= row.get("eval/accuracy", 1.0) - 0.02
        ),
        message="the score goes with the length of the response (correlation {value:.2f}), and counting tokens "
        "alone is right in {row[eval/length_rule_accuracy]:.1%} of the held-out comparisons, the "
        "model in {row[eval/accuracy]:.1%}: the model has learned length",
        knob="more comparisons of responses of similar length; `burnish prefer`: length_normalised: true or "
        "losses: simpo; a reward model: a length reward beside it (rewards: [{name: model:PATH}, {name: length}])",
    ),
    Detector(
        name="preferred responses fall",
        metric="preference/chosen_logprob",
        trips=lambda logprob, start, row: (
            start is not None and logprob < start - max(5.0, 0.2 * abs(start)) and row.get("preference/margin", 0.0) > 0
        ),
        message="the log-probability of the better responses fell from {start:.4g} to {value:.4g} nats while the "
        "margin grew: probability leaves both responses for texts outside the data",
        knob="losses: nca_pair or apo_zero, or {name: sft, weight: 0.1} beside this one; beta up, or "
        "optimization.learning_rate or optimization.epochs down",
        patience=5,
    ),
    Detector(
        name="margins explode",
        metric="preference/margin",
        trips=lambda margin, start, row: margin > 20 and row.get("train/accuracy", 0.0) > 0.95,
        message="the mean margin of three steps in a row is above 20, now {value:.3g}: nearly all comparisons are "
        "learned by heart and carry no gradient, and the policy goes on leaving its reference",
        knob="optimization.epochs or optimization.learning_rate down, losses: ipo, or label_smoothing: 0.1",
        patience=3,
    ),
    Detector(
        name="worse than chance",
        metric="eval/accuracy_high",
        trips=lambda high, start, row: high < 0.5 and "eval/margin" in row,
        message="the held-out accuracy is below one half, with its whole interval (up to {value:.1%}): what is learned "
        "is the opposite of what the held-out rows prefer",
        knob="check whether chosen and rejected are the wrong way round in one of the files (`burnish check`)",
    ),
    Detector(
        name="gradient zero",
        metric="policy/grad_norm",
        trips=lambda norm, start, row: norm == 0.0,
        message="the gradient was exactly zero two steps in a row: the weights do not move",
        knob="rewards that differ inside a group, rollout.group_size up, algorithm.mask_truncated off",
        patience=2,
    ),
)


FAMILIES: tuple[Detector, ...] = (
    Detector(
        name="reward {word} silent",
        metric="reward/not_mine_fraction/{word}",
        trips=lambda fraction, start, row: fraction >= 1,
        message="the reward {word} scored no response of ten steps in a row: it returned None each time, "
        "as for rows that are not for it",
        knob="`burnish check` on such rows: the columns that the reward reads may have other names in the data, or "
        "hold null; a reward that is for few rows may be silent for a while",
        patience=10,
    ),
    Detector(
        name="domain {word} starved",
        metric="domain/{word}/prompts",
        needs="domain/{word}/missing",
        trips=lambda prompts, start, row: prompts == 0,
        message="in five steps in a row that had places for the domain {word} no prompt of it was trained on: "
        "its groups carry no signal, or none of its prompts has the requested difficulty",
        knob="domains.{word}: prompts of a different difficulty, wider bounds in difficulty.keep, a larger group_size, "
        "a reward with partial credit; algorithm.max_refills up",
        patience=5,
    ),
    Detector(
        name="domain {word} constant",
        metric="domain/{word}/constant_fraction",
        trips=lambda fraction, start, row: fraction >= 0.999 and not _TEACHER & row.keys(),
        message="in every group of the domain {word} all responses scored the same for five steps in a row: "
        "nothing is learned from it",
        knob="domains.{word}: prompts of a different difficulty, a reward with partial credit, a larger group_size",
        patience=5,
    ),
)
"""Families of detectors, with one alarm for each text in the place of `{word}`."""
PARTINGS: tuple[Parting, ...] = (
    Parting(
        name="domain falls",
        falls="reward/domain/{word}",
        rises="reward/mean",
        message="the mean reward rises while in the domain {word} it fell from {start:.3g} to {value:.3g}",
        knob="a larger domains.NAME.share or loss_weight for it, or normalize: running if its rewards are smaller",
    ),
    Parting(
        name="reward gamed",
        falls="reward/audit/{word}",
        rises="reward/mean",
        message="the trained reward rises while the audit {word} fell from {start:.3g} to {value:.3g}: "
        "the policy may have found how to be paid without doing what is asked",
        knob="read the best-paid responses in the report; a stricter reward, or a KL to the reference",
    ),
)


def _limits(row: Row) -> Iterator[str]:
    """Fields that have cut responses off: limits of a turn, of a whole response, of the number of turns."""
    cut, cut_turn = row.get("rollout/truncated_fraction", 0.0), row.get(_CUT_TURN, 0.0)
    if cut_turn > 0:
        yield "conversation.max_turn_tokens"
    if cut > cut_turn:
        yield "rollout.max_response_tokens (or the domain's)"
    if row.get(_OUT_OF_TURNS, 0.0) > 0:
        yield "conversation.max_turns"


@lru_cache(maxsize=1_000)  # the rows of a run have few different sets of names
def _words(metric: str, names: tuple[str, ...]) -> list[str]:
    """Texts in the place of `{word}` in the names of this form."""
    before, _, after = metric.partition("{word}")
    whole = len(before) + len(after)
    return [
        name[len(before) : len(name) - len(after)]
        for name in names
        if name.startswith(before) and name.endswith(after) and len(name) > whole
    ]


@dataclass(slots=True)
class Memory:
    """State of a detector: its readings so far."""

    streak: int = 0
    readings: int = 0
    start_sum: float = 0.0
    fired: bool = False

    def read(self, value: float) -> float | None:
        """Add a reading. Returns the mean of the first ones, once there are enough."""
        self.readings += 1
        if self.readings <= START_READINGS:
            self.start_sum += value
        return self.start_sum / START_READINGS if self.readings > START_READINGS else None


@dataclass(slots=True)
class AlarmBell:
    """The detectors of a run with their memories."""

    detectors: Sequence[Detector] = DETECTORS
    families: Sequence[Detector] = FAMILIES
    partings: Sequence[Parting] = PARTINGS
    memories: dict[str, Memory] = field(default_factory=dict)

    def check(self, step: int, row: Row) -> list[Alarm]:
        """Process the row of a step and return the alarms that fire for the first time."""
        found, names = [self._look(detector, "", step, row) for detector in self.detectors], tuple(row)
        found += [self._look(one, word, step, row) for one in self.families for word in _words(one.metric, names)]
        found += [self._compare(one, word, step, row) for one in self.partings for word in _words(one.falls, names)]
        return [alarm for alarm in found if alarm is not None]

    def state(self) -> dict[str, dict[str, float]]:
        """Plain values for a checkpoint."""
        return {name: asdict(memory) for name, memory in self.memories.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.memories = {name: Memory(**memory) for name, memory in state.items()}

    def _look(self, detector: Detector, word: str, step: int, row: Row) -> Alarm | None:
        name, metric, needs, knob = (
            text.replace("{word}", word) for text in (detector.name, detector.metric, detector.needs, detector.knob)
        )
        value = max((row[one] for one in (metric, detector.also) if one in row), default=None)
        memory = self.memories.setdefault(name, Memory())
        if value is None or memory.fired:
            return None
        start = memory.read(value)
        trips = detector.trips(value, start, row) and (not needs or row.get(needs, 0.0) > 0)
        memory.streak = memory.streak + 1 if trips else 0
        if memory.streak < detector.patience:
            return None
        memory.fired = True
        message = detector.message.format(value=value, start=start, row=defaultdict(float, row), word=word)
        knob = knob.replace("{limits}", ", ".join(_limits(row)))
        return Alarm(name, message, knob, step)

    def _compare(self, parting: Parting, word: str, step: int, row: Row) -> Alarm | None:
        key = f"{parting.name}: {word}"
        lower = self.memories.setdefault(key, Memory())
        higher = self.memories.setdefault(f"{key}, {parting.rises}", Memory())
        value, other = row[parting.falls.replace("{word}", word)], row.get(parting.rises)
        if lower.fired or other is None:
            return None
        start, began = lower.read(value), higher.read(other)
        fell = start is not None and value < start - max(FALL * abs(start), SMALLEST_FALL)
        rose = began is not None and other > began
        lower.streak = lower.streak + 1 if fell and rose else 0
        if lower.streak < parting.patience or start is None:
            return None
        lower.fired = True
        return Alarm(key, parting.message.format(word=word, value=value, start=start), parting.knob, step)


def replay(rows: Sequence[Mapping[str, Any]]) -> list[Alarm]:
    """Recompute the alarms of a finished or running run from its rows."""
    bell = AlarmBell()
    return [alarm for row in rows for alarm in bell.check(int(row["step"]), row)]
