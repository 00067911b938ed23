"""A critic with its own model, which predicts the value of the state before each response token."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from burnish.config.schema_data import ModelConfig
from burnish.config.schema_optimization import TOKENS_PER_MICROBATCH
from burnish.errors import ModelError
from burnish.forward.attention import packs_rows
from burnish.forward.batch import Batch
from burnish.forward.kernel_layers import uses_layer_kernels
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.probe import use_layer_kernels, use_packed_rows
from burnish.forward.recomputing import recomputing
from burnish.models.cut import Cut, CutModel
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.resting import own_memory
from burnish.models.reward_model import load_reward_model
from burnish.models.roles import Denominators, TrainingState, Update, ValueObjective
from burnish.models.tokenizers import vocabulary_difference
from burnish.models.value_head import CriticOptimizer, ValueHead, ValueScorer, hidden_size, trunk_of
from burnish.models.value_steps import ValueSteps
from burnish.models.weights import load_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SeparateCritic:
    """`roles.Critic` with its own backbone (`trunk`). All of its weights train, even if the policy uses LoRA."""

    shares_trunk = False

    def __init__(
        self,
        trunk: PreTrainedModel,
        head: ValueHead,
        settings: OptimizerSettings,
        *,
        tokens_per_microbatch: int = TOKENS_PER_MICROBATCH,
        lanes: Lanes = ONE_LANE,
        gradient_checkpointing: bool = False,
        plain: bool = False,
    ) -> None:
        """Uses the backbone as it is. `copy_of` and `from_folder` make one."""
        self.trunk = trunk
        self._gradient_checkpointing = gradient_checkpointing
        self.head = head
        self._tokens_per_microbatch = tokens_per_microbatch
        self._lanes = lanes
        self._scorer = ValueScorer(trunk, head, plain=plain)
        self._shared: CutModel | None = None
        self._optimizer = CriticOptimizer(_named(trunk, head), settings, lanes)
        self._steps = ValueSteps(
            self._scorer, self._optimizer, tokens_per_microbatch=tokens_per_microbatch, train_trunk=True, lanes=lanes
        )

    @staticmethod
    def copy_of(
        loaded: LoadedModel,
        settings: OptimizerSettings,
        *,
        tokens_per_microbatch: int = TOKENS_PER_MICROBATCH,
        lanes: Lanes = ONE_LANE,
    ) -> SeparateCritic:
        """A critic that starts from a copy of the model's current backbone, with values of 0.

        Call this before the policy adds adapters to the model.
        """
        trunk = copy.deepcopy(trunk_of(loaded.model))
        head = ValueHead(hidden_size(trunk), device=trunk.device)
        return SeparateCritic(
            trunk,
            head,
            settings,
            tokens_per_microbatch=tokens_per_microbatch,
            lanes=lanes,
            gradient_checkpointing=loaded.gradient_checkpointing,
            plain=loaded.plain,
        )

    @staticmethod
    def from_folder(
        path: str,
        like: LoadedModel,
        settings: OptimizerSettings,
        *,
        field: str,
        tokens_per_microbatch: int = TOKENS_PER_MICROBATCH,
        lanes: Lanes = ONE_LANE,
    ) -> SeparateCritic:
        """A critic that starts with the weights and the head of a reward model, including its normalisation.

        It has the dtype and device of the policy `like`, whose token ids it reads. Raises ModelError if the folder
        does not hold a reward model, or holds one with another vocabulary.
        """
        config = ModelConfig(
            path=path,
            device=str(like.model.device),
            dtype="float32" if like.model.dtype is torch.float32 else "bfloat16",
            gradient_checkpointing=like.gradient_checkpointing,
        )
        start = load_reward_model(config, field=field)
        _check_vocabulary(start.loaded, like, path, field)
        trunk = trunk_of(start.loaded.model).requires_grad_(True)
        own_memory(trunk)  # the first step would copy all of a mapped file anyway
        if packs_rows(like.model):
            use_packed_rows(trunk)
        if uses_layer_kernels(like.model):
            use_layer_kernels(trunk)
        head = ValueHead(start.head.in_features, device=like.model.device)
        bias = torch.zeros_like(head.bias) if start.head.bias is None else start.head.bias
        head.take(start.head.weight, bias + start.normalization.bias)
        return SeparateCritic(
            trunk,
            head,
            settings,
            tokens_per_microbatch=tokens_per_microbatch,
            lanes=lanes,
            gradient_checkpointing=like.gradient_checkpointing,
            plain=like.plain,
        )

    def rest_optimizer(self, folder: Path) -> None:
        """See `LocalPolicy.rest_optimizer`."""
        self._optimizer.rest(folder)

    def share_weights(self, cut: Cut) -> None:
        """See `LocalPolicy.share_weights`."""
        self._optimizer.let_go()
        self._shared = shared = CutModel(self.trunk, self._lanes, cut, [self.head])
        self._lanes = shared.lanes
        self._optimizer.share(shared, _named(self.trunk, self.head))
        self._steps.share(shared)

    @property
    def version(self) -> int:
        """Optimizer steps begun so far."""
        return self._optimizer.version

    def values(self, batch: Batch) -> Tensor:
        """(B, T) values of the states before the response tokens, without gradient. 0 past the end of a response."""
        return self._scorer.score_in_microbatches(batch, self._tokens_per_microbatch, lanes=self._lanes)

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        """Add the gradient of one part of a step; see `roles.Critic`."""
        with recomputing(self.trunk, on=self._gradient_checkpointing):
            self._steps.accumulate(batch, objective, denominators)

    def settle(self, planned_step: int | None = None) -> Update:
        """Make the step from all parts; see `roles.Critic`."""
        return self._steps.settle(planned_step)

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        """One optimizer step. Denominators are of the whole batch; rows without a trained token cost nothing."""
        with recomputing(self.trunk, on=self._gradient_checkpointing):
            return self._steps.update(batch, objective, planned_step)

    def save_weights(self, folder: Path) -> None:
        """Write the backbone in the layout of `AutoModel.from_pretrained`, and the head next to it. Of a team every
        process makes this call, and the first one writes."""
        shared = self._shared
        trunk = None if shared is None else shared.collected(shared.tensors())
        head = None if shared is None else shared.collected(shared.whole_ones(self.head))
        if not self._lanes.keeps_state:
            return
        if shared is None or trunk is None:
            self.trunk.save_pretrained(folder, safe_serialization=True)
        else:
            shared.save(folder, trunk)
        self.head.save(folder, head)

    def load_weights(self, folder: Path) -> None:
        """Load what `save_weights` wrote, bit for bit. Raises CheckpointError if it does not fit."""
        copy = Tensor.copy_ if self._shared is None else self._shared.copy
        load_folder(folder, self.trunk, copy)
        self.head.load(folder, copy)
        self._optimizer.refresh()

    def training_state(self) -> TrainingState:
        """Optimizer and version, as plain values and tensors."""
        return self._optimizer.state()

    def load_training_state(self, state: TrainingState) -> None:
        """The inverse of `training_state`. Load the weights first."""
        self._optimizer.load_state(state)


def _named(trunk: PreTrainedModel, head: ValueHead) -> list[tuple[str, nn.Parameter]]:
    own = [(f"trunk.{name}", parameter) for name, parameter in trunk.named_parameters() if parameter.requires_grad]
    return [*own, *((f"head.{name}", parameter) for name, parameter in head.named_parameters())]


def _check_vocabulary(theirs: LoadedModel, ours: LoadedModel, path: str, field: str) -> None:
    """A critic reads the policy's token ids, so every id must mean the same token to both."""
    remedy = f"set {field} to a reward model that was trained from the policy's own model, or to `policy`"
    name = ours.tokenizer.name_or_path
    difference = vocabulary_difference(theirs.tokenizer, ours.tokenizer)
    if difference is not None:
        raise ModelError(
            f"{field} {path!r} has another tokenizer ({len(theirs.tokenizer):,} tokens) than the policy {name!r} "
            f"({len(ours.tokenizer):,} tokens), but would have to read the policy's token ids: {difference}",
            remedy=remedy,
        )
    here, there = (m.model.get_input_embeddings().weight.shape[0] for m in (ours, theirs))
    if there < here:
        raise ModelError(
            f"{field} {path!r} has {there:,} embeddings, but the policy {name!r} has {here:,} and can sample any id",
            remedy=remedy,
        )
