"""The reward `model:PATH`: a trained reward model that scores a whole step in micro-batches, on a chosen device.

It runs in the training process, or in a separate one (`cluster.own_process`), not in a worker: it holds weights, cannot
hang like user code, and needs the policy's token ids. This module loads torch, so it is only imported if a run has such
a reward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from burnish.config.names import MODEL_REWARD
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_optimization import TOKENS_PER_SCORING
from burnish.config.section import PositiveInt, Section
from burnish.data.chat import encode_bare, encode_prompt
from burnish.data.template import Chat, ChatFormat
from burnish.errors import DataError, RewardError
from burnish.machine.resources import resolve_device
from burnish.models.resting import Resting, rest_frozen
from burnish.models.reward_model import PromptResponse, RewardModel, check_reward_folder, load_reward_model
from burnish.models.tokenizers import same_tokens
from burnish.outside.plugins import describe_failure
from burnish.rewards.checked_options import checked
from burnish.rewards.inputs import Item
from burnish.rewards.loading import RewardSpec
from burnish.rewards.outcome import Outcome, failure, read_result
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout, Tokenizer


class ModelRewardOptions(Section, defer_build=False):  # its signature lists the options
    """Options of a reward model in a run file."""

    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    tokens_per_microbatch: PositiveInt = TOKENS_PER_SCORING
    chat: Chat = "auto"
    template_options: dict[str, Any] = Field(default_factory=dict)


@dataclass(slots=True)
class ModelReward:
    """A loaded reward model. It scores text until `attach_policy` has found that it can score the policy's tokens."""

    spec: RewardSpec
    model: RewardModel
    tokens_per_microbatch: int
    chat: ChatFormat
    shares_tokens: bool = False
    resting: Resting | None = None
    """Holds the weights while nothing is scored; None if they stay in place."""

    def rest(self, folder: Path) -> None:
        """From now on, offload the weights while nothing is scored: to pinned host memory or, for a model on the CPU,
        to a file in `folder`. OffloadError if there is no room."""
        self.resting = rest_frozen(f"reward model of {self.spec.label!r}", self.model.loaded.model, folder)

    def attach_policy(self, tokenizer: Tokenizer) -> str:
        """Score the policy's own tokens if both tokenizers give the same ids, else the text.

        Returns a sentence for the user that says which of the two.
        """
        own = self.model.loaded.tokenizer
        self.shares_tokens = same_tokens(own, tokenizer)
        name = f"reward {self.spec.label!r}"
        if self.shares_tokens:
            return f"{name} scores the policy's own tokens on {self.model.loaded.model.device}"
        return (
            f"{name} has a different tokenizer than the policy ({len(own):,} and {len(tokenizer):,} tokens), so "
            "prompts and responses are passed to it as text and tokenised again"
        )

    def outcomes(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome per response, in order.

        A response is an ERROR if it is empty or does not fit into the reward model's context, or if its score is not
        finite. Raises RewardError in place of an error of PyTorch, which would not name the model.
        """
        read = [self._read(prompt, rollout) for prompt, rollout in items]
        pairs = [one for one in read if not isinstance(one, Outcome)]
        scores = iter(self._scores(pairs) if pairs else ())
        return [one if isinstance(one, Outcome) else read_result(next(scores), self.spec.label) for one in read]

    def _scores(self, pairs: Sequence[PromptResponse]) -> list[float]:
        try:
            with nullcontext() if self.resting is None else self.resting.awake():
                return self.model.score(pairs, self.tokens_per_microbatch)
        except RuntimeError as error:
            raise RewardError(
                f"reward {self.spec.label!r}: its reward model could not score {len(pairs)} responses: "
                f"{describe_failure(error)}",
                remedy="if memory ran out, lower its option tokens_per_microbatch, or give it another device or a "
                "process to itself (cluster.own_process: [reward_model])",
            ) from error

    def _read(self, prompt: Prompt, rollout: Rollout) -> PromptResponse | Outcome:
        """Tokens of prompt and response, or the outcome of a response that the model cannot score."""
        try:
            return self._checked(self._tokens(prompt, rollout))
        except DataError as error:
            return failure(RewardStatus.ERROR, f"reward {self.spec.label!r}: {error}")

    def _tokens(self, prompt: Prompt, rollout: Rollout) -> PromptResponse:
        if self.shares_tokens:
            return rollout.prompt_tokens, rollout.response_tokens
        tokenizer = self.model.loaded.tokenizer
        response = encode_bare(rollout.response, tokenizer)
        end = tokenizer.eos_token_id
        if rollout.finish_reason is FinishReason.STOP and end is not None and response[-1:] != (end,):
            response = (*response, end)
        return encode_prompt(prompt, tokenizer, self.chat), response

    def _checked(self, pair: PromptResponse) -> PromptResponse:
        prompt, response = pair
        limit, readout = self.model.loaded.context_length, self.model.readout
        if not response:
            raise DataError("the response is empty, so there is no token to score at")
        if readout.score_at == "last_position" and len(response) > (readout.response_length or 0):
            raise DataError(
                f"the response has {len(response)} tokens, but this reward model reads position "
                f"{readout.response_length}",
                remedy="lower rollout.max_response_tokens to it",
            )
        if len(prompt) + readout.width(response) > limit:
            raise DataError(
                f"prompt and response have {len(prompt) + len(response):,} tokens, but its context holds {limit:,}",
                remedy="lower rollout.max_prompt_tokens or rollout.max_response_tokens",
            )
        return pair


@dataclass(frozen=True, slots=True)
class RewardModels:
    """The reward models of a run by the labels of their rewards, loaded in this process."""

    models: Mapping[str, ModelReward]

    @staticmethod
    def load(specs: Iterable[RewardSpec]) -> RewardModels:
        """Load the reward models of these rewards, with the errors of `load_model_reward`."""
        return RewardModels({spec.label: load_model_reward(spec) for spec in specs})

    def attach_policy(self, tokenizer: Tokenizer) -> list[str]:
        """Call `ModelReward.attach_policy` on each model, and return its sentence."""
        return [model.attach_policy(tokenizer) for model in self.models.values()]

    def rest(self, folder: Path) -> None:
        """See `ModelReward.rest`."""
        for model in self.models.values():
            model.rest(folder)

    def outcomes(self, label: str, items: Sequence[Item]) -> list[Outcome]:
        """See `ModelReward.outcomes`."""
        return self.models[label].outcomes(items)

    def begin(self, label: str, items: Sequence[Item]) -> Callable[[], list[Outcome]]:
        """See `burnish.rewards.protocol.ScoringModels`. Nothing is scored before the outcomes are asked for, because
        scoring would compete with what this process does until then."""
        return partial(self.outcomes, label, items)


def load_model_reward(spec: RewardSpec) -> ModelReward:
    """Load the reward model that `model:PATH` names.

    Raises ModelError for a folder that is not a reward model, and ConfigError for a wrong option.
    """
    options = check_model_reward(spec)
    path = spec.name.removeprefix(MODEL_REWARD)
    model = load_reward_model(ModelConfig(path=path, device=options.device, dtype=options.dtype), field=_field(spec))
    return ModelReward(spec, model, options.tokens_per_microbatch, ChatFormat(options.chat, options.template_options))


def check_model_reward(spec: RewardSpec) -> ModelRewardOptions:
    """Check the options and the folder without loading the model, with the errors of `load_model_reward`."""
    options = checked(ModelRewardOptions, spec.label, spec.options)
    path = spec.name.removeprefix(MODEL_REWARD)
    if not path:
        raise RewardError(f"reward {spec.name!r} does not name a folder", remedy="write model:PATH")
    check_reward_folder(path, field=_field(spec))
    resolve_device(options.device, f"option device of reward {spec.label!r}")
    return options


def _field(spec: RewardSpec) -> str:
    return f"reward {spec.name!r}: the folder"
