"""Critics, which predict the value of the state before each response token."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from burnish.config.schema_data import ModelConfig
from burnish.config.schema_optimization import TOKENS_PER_MICROBATCH
from burnish.errors import ModelError
from burnish.forward.attention import packs_rows
from burnish.forward.batch import Batch
from burnish.forward.compiled_layers import uses_compiled_layers
from burnish.forward.kernel_layers import uses_layer_kernels
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.probe import use_compiled_layers, use_layer_kernels, use_packed_rows
from burnish.forward.recomputing import recomputing
from burnish.models.cut import Cut, CutModel
from burnish.models.learner import LearnerByParts
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.resting import Resting, own_memory, resting_place
from burnish.models.reward_model import load_reward_model
from burnish.models.role_optimizer import Owner, RoleOptimizer
from burnish.models.roles import Denominators, ObjectiveValue, Update, ValueObjective
from burnish.models.tokenizers import vocabulary_difference
from burnish.models.value_head import ValueHead, ValueScorer, hidden_size, trunk_of
from burnish.models.weights import load_folder
from burnish.types import PreTrainedModel

CRITIC = Owner(
    "critic",
    "critic",
    "lower critic.learning_rate, check rewards for outliers, or use float32",
    diverged="the critic's {what} is {number} at its optimizer step {step}; its weights have not been changed",
    loss="loss over {tokens} tokens",
)


class HeadCritic(LearnerByParts[ValueObjective]):
    """Base class of critics: a value head on a backbone, with its own optimizer, whose `version` also counts the steps
    made in the policy's updates."""

    shares_trunk: bool
    _scorer: ValueScorer
    _shared: CutModel | None = None

    @property
    def head(self) -> ValueHead:
        return self._scorer.head

    def share(self, shared: CutModel) -> None:
        """Continue with slices: backbone and head have been cut together, and each process of a team has a part."""
        self._shared = shared
        self._lanes = shared.lanes
        self._scorer.run_in(shared.root)
        self._optimizers[0].share(shared, self._named_parameters())

    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.head.named_parameters())

    def values(self, batch: Batch) -> Tensor:
        """(B, T) values of the states before the response tokens, without gradient. 0 past the end of a response."""
        with self._awake():
            return self._scorer.score_in_microbatches(batch, self._tokens_per_microbatch, lanes=self._lanes)

    def _forward(
        self, part: Batch, objective: ValueObjective, denominators: Denominators
    ) -> tuple[Sequence[Tensor], ObjectiveValue]:
        part = part.to(self._scorer.device)
        values_BT = self._scorer.score(part, only_trained=True, train_trunk=not self.shares_trunk)
        return [values_BT], objective(values_BT, part.to(values_BT.device), denominators)

    def save_weights(self, folder: Path) -> None:
        """Write the head, in the first process of a team. The policy writes a backbone that it shares."""
        shared = self._shared
        own = self.head.named_parameters()
        state = None if shared is None else shared.collected((name, shared.whole(part)) for name, part in own)
        if self._lanes.keeps_state:
            self.head.save(folder, state)

    def load_weights(self, folder: Path) -> None:
        """Load what `save_weights` wrote, bit for bit. Raises CheckpointError if it does not fit."""
        self.head.load(folder, Tensor.copy_ if self._shared is None else self._shared.copy)
        self._optimizers[0].weights.refresh()


class SharedCritic(HeadCritic):
    """`roles.Critic` as a value head on the policy's backbone. `LocalPolicy.add_value_head` makes it.

    The policy's own updates train head and backbone in one backward pass (the objective adds the value loss). The head
    has its own optimizer, learning rate and gradient clipping, because it starts at 0 and needs larger steps than the
    backbone tolerates. `update` trains only the head.
    """

    shares_trunk = True

    @staticmethod
    def on(
        loaded: LoadedModel, settings: OptimizerSettings, *, tokens_per_microbatch: int, lanes: Lanes
    ) -> SharedCritic:
        """A critic with a new head on the model's backbone, with values of 0."""
        trunk = trunk_of(loaded.model)
        head = ValueHead(hidden_size(trunk), device=trunk.device)
        optimizer = RoleOptimizer(CRITIC, list(head.named_parameters()), settings, lanes)
        scorer = ValueScorer(trunk, head, plain=loaded.plain)
        return SharedCritic(scorer, [optimizer], tokens_per_microbatch=tokens_per_microbatch, lanes=lanes)


class SeparateCritic(HeadCritic):
    """`roles.Critic` with its own backbone (`trunk`). All of its weights train, even if the policy uses LoRA."""

    shares_trunk = False

    def __init__(
        self,
        trunk: PreTrainedModel,
        head: ValueHead,
        settings: OptimizerSettings,
        like: LoadedModel,
        *,
        tokens_per_microbatch: int,
        lanes: Lanes,
    ) -> None:
        """Use the backbone as it is, with the same kind of passes as the policy `like`. `copy_of` and `from_folder`
        make one."""
        optimizer = RoleOptimizer(CRITIC, _named(trunk, head), settings, lanes)
        scorer = ValueScorer(trunk, head, plain=like.plain)
        super().__init__(scorer, [optimizer], tokens_per_microbatch=tokens_per_microbatch, lanes=lanes)
        self.trunk = trunk
        self._gradient_checkpointing = like.gradient_checkpointing

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
        return SeparateCritic(trunk, head, settings, loaded, tokens_per_microbatch=tokens_per_microbatch, lanes=lanes)

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
        if uses_compiled_layers(like.model):
            use_compiled_layers(trunk, [])
        head = ValueHead(start.head.in_features, device=like.model.device)
        bias = torch.zeros_like(head.bias) if start.head.bias is None else start.head.bias
        head.take(start.head.weight, bias + start.normalization.bias)
        return SeparateCritic(trunk, head, settings, like, tokens_per_microbatch=tokens_per_microbatch, lanes=lanes)

    def rest(self, folder: Path) -> None:
        """Offload the backbone from now on, except during values and updates (`burnish.models.resting`). Gradients are
        not offloaded: they exist only from the first part of an update to its step."""
        self._awake = Resting("critic", resting_place(self.trunk.device, folder), self.trunk.parameters).awake

    def share_weights(self, cut: Cut) -> None:
        """See `LocalPolicy.share_weights`."""
        self._optimizers[0].let_go()
        self.share(CutModel(self.trunk, self._lanes, cut, [self.head]))

    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return _named(self.trunk, self.head)

    @contextmanager
    def _passes(self) -> Iterator[None]:
        with self._awake(), recomputing(self.trunk, on=self._gradient_checkpointing):
            yield

    def settle(self, planned_step: int | None = None) -> Update:
        """See `LearnerByParts.settle`."""
        with self._awake():
            return super().settle(planned_step)

    def save_weights(self, folder: Path) -> None:
        """Write the backbone in the layout of `AutoModel.from_pretrained`, and the head next to it. Of a team every
        process makes this call, and the first one writes."""
        with self._awake():
            if self._shared is not None:
                state = self._shared.collected(self._shared.tensors())
                if self._lanes.keeps_state:
                    self._shared.save(folder, state)
            elif self._lanes.keeps_state:
                self.trunk.save_pretrained(folder, safe_serialization=True)
            super().save_weights(folder)

    def load_weights(self, folder: Path) -> None:
        """See `HeadCritic.load_weights`."""
        with self._awake():
            load_folder(folder, self.trunk, Tensor.copy_ if self._shared is None else self._shared.copy)
            super().load_weights(folder)


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
