"""Host-side data: plain frozen values passed between the packages. No torch here; everything is JSON-able.

`Prompt` -> `RolloutRequest` -> `Rollout` (scored: `with_reward`) -> `RolloutGroup` -> `burnish.forward.batch.Batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

UseKernels = Literal["auto", "required", "off"]
"""C kernels: use them where they can be built, refuse to run without them, or never use them."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, in the form that chat templates expect.

    `tool_calls` are `{"type": "function", "function": {"name", "arguments"}}`, where `arguments` is a mapping.
    `reasoning_content` is the assistant's thinking before its answer. `extra` holds all other fields of the turn
    (`name`, `tool_call_id`, ...) and is passed to the template unchanged.
    """

    role: str
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    reasoning_content: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The turn as a dictionary, for templates, records and rewards. Absent fields are left out."""
        turn: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning_content is not None:
            turn["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            turn["tool_calls"] = [dict(call) for call in self.tool_calls]
        return turn | dict(self.extra)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the policy is asked. Exactly one of `text` and `messages` is set.

    `id` is unique in its data set and stable across runs (source name and row number), so it can key sampling noise
    and recorded rollouts. Two rows with equal text are two prompts. `answer` is what a verifiable reward compares the
    response with. `columns` holds all columns of the row, which rewards receive by name. `tools` are JSON schemas of
    the functions that the chat template offers to the model.
    """

    id: str
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    answer: Any = None
    domain: str = "default"
    columns: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.id!r} needs exactly one of text and messages")


class FinishReason(StrEnum):
    """Why a response ended."""

    STOP = "stop"  # a stop token or stop string was sampled; it is part of the response
    LENGTH = "length"  # cut at max_response_tokens (or at the end of the context)


class RewardStatus(StrEnum):
    """How the scoring of a response ended. Only `OK` carries a score."""

    PENDING = "pending"  # not scored yet
    OK = "ok"
    TIMEOUT = "timeout"
    ERROR = "error"
    MISSING = "missing"  # the reward cannot judge this row (it returned None)


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward function may return instead of a bare float.

    `parts` are named components, for logging only: they are not added to `value`. `token_rewards`, if given, holds one
    number per response token (a dense reward), and `value` must be their sum.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    token_rewards: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One prompt to be continued `len(sample_indices)` times.

    `sample_indices` number the samples of this prompt in this step. Seed, step, `prompt_id`, sample index and token
    position determine the sampling noise, so a sample that is drawn again needs a new index.
    """

    prompt_id: str
    group_id: int
    prompt_tokens: tuple[int, ...]
    sample_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response, with the sampler's own token ids and log-probabilities (text is never re-tokenised)."""

    prompt_id: str
    group_id: int
    sample_index: int
    prompt_tokens: tuple[int, ...]
    response_tokens: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int
    response: str = ""
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    token_rewards: tuple[float, ...] | None = None
    status: RewardStatus = RewardStatus.PENDING
    status_detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary: one line of `rollouts/step-*.jsonl`."""
        # Field by field, because `dataclasses.asdict` copies every token list, and a step has thousands of rollouts.
        return {
            "prompt_id": self.prompt_id,
            "group_id": self.group_id,
            "sample_index": self.sample_index,
            "prompt_tokens": list(self.prompt_tokens),
            "response_tokens": list(self.response_tokens),
            "rollout_logprobs": list(self.rollout_logprobs),
            "finish_reason": self.finish_reason.value,
            "policy_version": self.policy_version,
            "response": self.response,
            "reward": self.reward,
            "reward_parts": dict(self.reward_parts),
            "token_rewards": None if self.token_rewards is None else list(self.token_rewards),
            "status": self.status.value,
            "status_detail": self.status_detail,
        }


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """All responses to one prompt in one step, plus the greedy response if the estimator needs it."""

    prompt: Prompt
    group_id: int
    rollouts: tuple[Rollout, ...]
    greedy: Rollout | None = None


@dataclass(frozen=True, slots=True)
class Preference:
    """Candidate responses to one prompt, with the index of the best. A chosen/rejected pair has `best` = 0."""

    prompt: Prompt
    responses: tuple[str, ...]
    best: int
    margin: float | None = None


class Reduction(StrEnum):
    """How two readings of a metric are merged."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Metric:
    """A reading that knows how it merges with others of its name, so that no mean of means is ever taken.

    For MEAN `value` is the *sum* and `weight` the count behind it; for the others `weight` is the number of readings.
    `value` and `weight` may be 0-d tensors: they are turned into floats only when the step is logged.
    """

    reduction: Reduction
    value: Any
    weight: Any = 1.0

    def merge(self, other: Metric) -> Metric:
        if self.reduction is not other.reduction:
            raise ValueError(f"cannot merge a {self.reduction} metric with a {other.reduction} metric")
        if float(other.weight) == 0.0:
            return self
        if float(self.weight) == 0.0:
            return other
        weight = self.weight + other.weight
        match self.reduction:
            case Reduction.MEAN | Reduction.SUM:
                value = self.value + other.value
            case Reduction.MAX:
                value = max(self.value, other.value)
            case Reduction.MIN:
                value = min(self.value, other.value)
            case Reduction.LAST:
                value = other.value
        return Metric(self.reduction, value, weight)

    def result(self) -> float | None:
        """The number to log, or None when nothing was measured."""
        if float(self.weight) == 0.0:
            return None
        if self.reduction is Reduction.MEAN:
            return float(self.value) / float(self.weight)
        return float(self.value)
