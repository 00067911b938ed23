"""Host-side data: plain frozen values passed between the packages. No torch here; everything is JSON-able.

`Prompt` -> `RolloutRequest` -> `Rollout` (scored: `with_reward`) -> `RolloutGroup` -> `burnish.forward.batch.Batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, TypeAlias

if TYPE_CHECKING:
    from transformers import PreTrainedModel as PreTrainedModel
    from transformers import PreTrainedTokenizerBase

    Tokenizer: TypeAlias = PreTrainedTokenizerBase
else:  # names for annotations: importing the package takes a second
    PreTrainedModel = Tokenizer = Any

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""Plain data, as in JSON and YAML."""
UseKernels = Literal["auto", "required", "off"]
"""C kernels: use them where they can be built, refuse to run without them, or never use them."""
Quantization = Literal["int8", "nf4"]
"""Formats of frozen weights in 8 or 4 bits."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, in the form that chat templates expect.

    `tool_calls` are `{"type": "function", "function": {"name", "arguments"}}`, where `arguments` is a mapping.
    `reasoning_content` is the assistant's thinking before its answer. `extra` holds all other fields of the turn
    (`name`, `tool_call_id`, ...) and is passed to the template unchanged. `trained`: a row of data says that the turn
    is trained on, or not; templates and records do not see it.
    """

    role: str
    content: str
    tool_calls: tuple[Mapping[str, Json], ...] = field(default=(), hash=False)
    reasoning_content: str | None = None
    extra: Mapping[str, Json] = field(default_factory=dict, hash=False)
    trained: bool | None = None

    def called(self) -> list[str]:
        """Names of the functions that this turn calls."""
        functions = [call["function"] for call in self.tool_calls]
        return [str(function["name"]) for function in functions if isinstance(function, dict)]

    def to_dict(self) -> dict[str, Json]:
        """The turn as a dictionary, for templates, records and rewards. Absent fields are left out."""
        turn: dict[str, Json] = {"role": self.role, "content": self.content}
        if self.reasoning_content is not None:
            turn["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            turn["tool_calls"] = [dict(call) for call in self.tool_calls]
        return turn | dict(self.extra)

    @staticmethod
    def from_dict(turn: Mapping[str, Any]) -> Message:
        """Restore a message from `to_dict`."""
        known = {"role", "content", "reasoning_content", "tool_calls"}
        return Message(
            turn["role"],
            turn["content"],
            tool_calls=tuple(turn.get("tool_calls", ())),
            reasoning_content=turn.get("reasoning_content"),
            extra={name: value for name, value in turn.items() if name not in known},
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question to the policy. Exactly one of `text` and `messages` is set.

    `id` is unique in its data set and stable across runs (source name and row number), so it can key sampling noise
    and recorded rollouts. Two rows with equal text are two prompts. `answer` is the reference of a verifiable
    reward. `columns` holds all columns of the row, which rewards receive by name. `tools` are JSON schemas of
    the functions that the chat template offers to the model.
    """

    id: str
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    answer: Json = None
    domain: str = "default"
    columns: Mapping[str, Json] = field(default_factory=dict)
    tools: tuple[Mapping[str, Json], ...] = ()

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.id!r} needs exactly one of text and messages")


class FinishReason(StrEnum):
    """Reason why a response ended."""

    STOP = "stop"  # a stop token or stop string was sampled; it is part of the response
    LENGTH = "length"  # cut at max_response_tokens (or at the end of the context)
    TURNS = "turns"  # the conversation reached its limit of turns
    FAILED = "failed"  # the environment of the conversation failed


class RewardStatus(StrEnum):
    """Result of scoring a response. Only `OK` carries a score."""

    PENDING = "pending"  # not scored yet
    OK = "ok"
    TIMEOUT = "timeout"
    ERROR = "error"
    MISSING = "missing"  # the reward cannot judge this row (it returned None)


@dataclass(frozen=True, slots=True)
class Score:
    """Result that a reward function may return instead of a bare float.

    `parts` are named components, for logging only: they are not added to `value`. `token_rewards`, if given, holds one
    number per response token (a dense reward), 0 for tokens that the policy did not sample, and `value` must be their
    sum.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    token_rewards: tuple[float, ...] | None = None


Author = Literal["policy", "tool", "environment"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of a response by one author: the tokens from `start` up to `stop`.

    messages: one message of the policy, or the answers to its calls. The policy's last turn may also have the last
    message of an environment, which the policy did not read. reward: of this turn alone, if its environment gives one.
    """

    author: Author
    start: int
    stop: int
    messages: tuple[Message, ...] = ()
    reward: float | None = None

    def to_dict(self) -> dict[str, Json]:
        """Convert to a dictionary for records. Absent fields are left out."""
        turn: dict[str, Json] = {"author": self.author, "start": self.start, "stop": self.stop}
        turn["messages"] = [message.to_dict() for message in self.messages]
        return turn if self.reward is None else {**turn, "reward": self.reward}

    @staticmethod
    def from_dict(row: Mapping[str, Any]) -> Turn:
        """Restore a turn from `to_dict`."""
        return Turn(**{**row, "messages": tuple(Message.from_dict(message) for message in row["messages"])})


Versions: TypeAlias = "tuple[tuple[int, int], ...]"
"""Weights that sampled a response: (position of the first token, version), in the order of the positions."""


Seconds: TypeAlias = "tuple[float | None, ...]"
"""Wall-clock seconds of each message of a turn, None where nobody measured them; a single number may be of all."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of a response that was stopped before its end, to be continued."""

    response_tokens: tuple[int, ...] = ()
    rollout_logprobs: tuple[float, ...] = ()
    versions: Versions = ()


NOTHING_BEGUN = Begun()
_GREEDY = -1
"""Sample index of a greedy response: in keys, in the seed of its environment and in records. Others ask `is_greedy`."""


@dataclass(frozen=True, slots=True)
class TokenPart:
    """A part of a prompt that is tokens."""

    tokens: tuple[int, ...]


PromptPart: TypeAlias = TokenPart
"""A part of a prompt, with the `tokens` that it takes up in the policy's context. One kind exists."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One prompt to be continued `len(sample_indices)` times. Its `parts` follow each other.

    `sample_indices` number the samples of this prompt in this step. Seed, step, `name`, sample index and token position
    determine the sampling noise, so a sample that is drawn again needs a new index. `begun` is what there is of each
    sample; it is empty if there is nothing of any. Only engines that can stop are given such requests
    (`burnish.rollouts.engine.StoppableEngine`). `turn`: which one of a conversation is asked for, from 1. `branch`: of
    which of an agent's histories, from 0.
    """

    prompt_id: str
    group_id: int
    parts: tuple[PromptPart, ...]
    sample_indices: tuple[int, ...]
    begun: tuple[Begun, ...] = ()
    turn: int = 1
    branch: int = 0

    @staticmethod
    def of(
        prompt_id: str, group_id: int, prompt_tokens: tuple[int, ...], sample_indices: tuple[int, ...]
    ) -> RolloutRequest:
        """Make a request whose prompt is tokens and nothing else."""
        return RolloutRequest(prompt_id, group_id, (TokenPart(prompt_tokens),), sample_indices)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """Tokens of all parts. The tokens of a single part are not copied: all samples share them."""
        found = [part.tokens for part in self.parts]
        return found[0] if len(found) == 1 else tuple(chain.from_iterable(found))

    @property
    def name(self) -> str:
        """The prompt, and which branch and turn after the first ones: for noise, which differs from turn to turn, and
        messages."""
        branch = f", branch {self.branch + 1}" if self.branch else ""
        return f"{self.prompt_id}{branch}" + (f", turn {self.turn}" if self.turn > 1 else "")

    def greedy(self) -> RolloutRequest:
        """Ask for the greedy response to the same prompt instead of its samples."""
        return replace(self, sample_indices=(_GREEDY,))

    def samples(self) -> list[tuple[int, Begun]]:
        """Each sample index with the beginning of its response."""
        begun = self.begun or (NOTHING_BEGUN,) * len(self.sample_indices)
        return list(zip(self.sample_indices, begun, strict=True))


Sample = tuple[int, int]
"""Group and index of a sample."""
RowKey = tuple[int, int, int]
"""Group, sample and branch: one row of a step."""
_RECORDED_STRIDE = 1_000_000
"""In records of earlier versions, row b of sample i has the sample index i + b * this."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response, with the sampler's own token ids and log-probabilities (text is never re-tokenised).

    A response in `turns` also holds what tools and environments said in between: tokens that nobody sampled and whose
    log-probability is 0. Its first and last turns are the policy's, and `response` is the text of the last one.
    `environment_reward` is what the environment paid for the whole conversation; None if it pays nothing.
    A sample that is several rows has them in `branch`es: 0 is the one in which a conversation ends, or an agent began.
    `ends_in` is set if the conversation goes on in another row, because its history was written anew: the sample index
    of the row in which it ends. A reward scores that row, and the score counts for all of them. `history` is what was
    said in earlier rows, which this one's prompt contains.
    `turn_seconds` says for each of the `turns` how long it took, to sample or to answer it; it is empty where nobody
    measured that. Times differ from run to run, so no two rollouts differ by them.
    `policy_version` counts the weights that sampled it. If these changed within the response (`partial`), it is the
    first version, and `versions` has all of them; otherwise `versions` is empty.
    """

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
    versions: Versions = ()
    turns: tuple[Turn, ...] = ()
    environment_reward: float | None = None
    ends_in: int | None = None
    history: tuple[Message, ...] = ()
    branch: int = 0
    turn_seconds: tuple[Seconds, ...] = field(default=(), compare=False)

    @property
    def is_greedy(self) -> bool:
        """True for the greedy response to a prompt, which is none of its samples."""
        return self.sample_index == _GREEDY

    @property
    def sample(self) -> Sample:
        """Key of the sample that this row belongs to, the same for all its rows."""
        return self.group_id, self.sample_index

    @property
    def key(self) -> RowKey:
        """Key of this row, unique within its step."""
        return self.group_id, self.sample_index, self.branch

    def policy_turns(self) -> list[Turn]:
        """The policy's turns that have tokens, in order. A response without `turns` is one."""
        turns = self.turns or (Turn("policy", 0, len(self.response_tokens)),)
        return [turn for turn in turns if turn.author == "policy" and turn.stop > turn.start]

    @property
    def last_start(self) -> int:
        """Position at which the last turn starts, whose tokens are the text `response`."""
        return self.turns[-1].start if self.turns else 0

    @property
    def last_sampled(self) -> int:
        """Position of the last token that the policy sampled; -1 if there is none."""
        return max((turn.stop - 1 for turn in self.policy_turns()), default=-1)

    def sampled_mask(self) -> tuple[bool, ...]:
        """Mask of the response's tokens that the policy sampled."""
        if not self.turns:
            return (True,) * len(self.response_tokens)
        # Turn by turn, for speed: a step asks several times for each of its rows, which may have thousands of tokens.
        mask: list[bool] = []
        for turn in self.turns:
            mask += [turn.author == "policy"] * (turn.stop - turn.start)
        return tuple(mask)

    def num_sampled(self) -> int:
        """Number of the response's tokens that the policy sampled."""
        return sum(turn.stop - turn.start for turn in self.policy_turns())

    def tokens_by_version(self) -> dict[int, int]:
        """Number of tokens sampled by each version of the weights."""
        starts = self.versions or ((0, self.policy_version),)
        ends = [*(first for first, _ in starts[1:]), len(self.response_tokens)]
        spans = zip(starts, ends, strict=True)
        if not self.turns:
            return {version: end - first for (first, version), end in spans}
        sampled = self.sampled_mask()
        return {version: sum(sampled[first:end]) for (first, version), end in spans}

    def to_dict(self) -> dict[str, Json]:
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
            **({"versions": [list(start) for start in self.versions]} if self.versions else {}),
            **({"turns": [turn.to_dict() for turn in self.turns]} if self.turns else {}),
            **({"turn_seconds": [list(seconds) for seconds in self.turn_seconds]} if self.turn_seconds else {}),
            **({} if self.environment_reward is None else {"environment_reward": self.environment_reward}),
            **({} if self.ends_in is None else {"ends_in": self.ends_in}),
            **({"history": [message.to_dict() for message in self.history]} if self.history else {}),
            "branch": self.branch,
        }

    @staticmethod
    def from_dict(row: Mapping[str, Any]) -> Rollout:
        """Restore a rollout from `to_dict`. Raises KeyError, TypeError or ValueError for another dictionary."""
        dense = row["token_rewards"]
        index, branch = row["sample_index"], row.get("branch")
        if branch is None:
            branch, index = (0, index) if index == _GREEDY else divmod(index, _RECORDED_STRIDE)
        lists = {name: tuple(row[name]) for name in ("prompt_tokens", "response_tokens", "rollout_logprobs")}
        typed = {
            **lists,
            "sample_index": index,
            "branch": branch,
            "finish_reason": FinishReason(row["finish_reason"]),
            "status": RewardStatus(row["status"]),
            "token_rewards": None if dense is None else tuple(dense),
            "versions": tuple((first, version) for first, version in row.get("versions", ())),
            "turns": tuple(Turn.from_dict(turn) for turn in row.get("turns", ())),
            "history": tuple(Message.from_dict(message) for message in row.get("history", ())),
            "turn_seconds": tuple(tuple(seconds) for seconds in row.get("turn_seconds", ())),
        }
        return Rollout(**{**row, **typed})


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The responses to one prompt in one step, plus the greedy response if the estimator needs it."""

    prompt: Prompt
    group_id: int
    rollouts: tuple[Rollout, ...]
    greedy: Rollout | None = None

    def samples(self) -> list[Rollout]:
        """Each response once: the last row of a conversation, and of an agent's branches one for each reward."""
        found: dict[tuple[Sample, float | None], Rollout] = {}
        for rollout in self.rollouts:
            if rollout.ends_in is None:
                found.setdefault((rollout.sample, rollout.reward), rollout)
        return list(found.values())


class Reduction(StrEnum):
    """Rules for merging readings of a metric."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Metric:
    """A reading that knows how it merges with others of its name, so that no mean of means is ever taken.

    For MEAN `value` is the *sum* and `weight` the count behind it; for the others `weight` is the number of readings.
    Both may be 0-d tensors. Merging only notes the other reading in `later`: reading a tensor's number waits for
    its device, so nothing is added up before `result`, which a step calls once, when it is logged.
    """

    reduction: Reduction
    value: SupportsFloat
    weight: SupportsFloat = 1.0
    later: tuple[Metric, ...] = ()

    def merge(self, other: Metric) -> Metric:
        """Append the other reading to this one. ValueError for one that merges by another rule."""
        if self.reduction is not other.reduction:
            raise ValueError(f"cannot merge a {self.reduction} metric with a {other.reduction} metric")
        return Metric(self.reduction, self.value, self.weight, (*self.later, other))

    def result(self) -> float | None:
        """The number to log, or None when nothing was measured. Waits for the device of tensors."""
        value, weight = self.added_up()
        if float(weight) == 0.0:
            return None
        return float(value) / float(weight) if self.reduction is Reduction.MEAN else float(value)

    def added_up(self) -> tuple[Any, Any]:
        """Value and weight of all readings, added in order and in their own arithmetic (as tensors for tensors).
        Readings that measured nothing are left out."""
        value: Any = self.value
        weight: Any = self.weight
        for reading in self.later:
            more, count = reading.added_up()
            if float(count) == 0.0:
                continue
            if float(weight) == 0.0:
                value, weight = more, count
                continue
            weight = weight + count
            match self.reduction:
                case Reduction.MEAN | Reduction.SUM:
                    value = value + more
                case Reduction.MAX:
                    value = max(value, more)
                case Reduction.MIN:
                    value = min(value, more)
                case Reduction.LAST:
                    value = more
        return value, weight
