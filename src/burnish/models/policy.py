"""The trained model, in this process: scores, optimizer steps, weights and state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from burnish.config.schema_data import LoraConfig
from burnish.config.schema_optimization import TOKENS_PER_MICROBATCH
from burnish.errors import RolloutError
from burnish.forward.batch import Batch, TokenScores
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.recomputing import recomputing
from burnish.forward.scoring import Compare, ResponseScorer, TrunkRunner
from burnish.models.critic import SharedCritic
from burnish.models.cut import Cut, CutModel, save_model
from burnish.models.learner import LearnerByParts
from burnish.models.loading import LoadedModel
from burnish.models.lora import Adapter, saved_adapter
from burnish.models.optimizers import OptimizerSettings
from burnish.models.reference import AdapterOffReference, FrozenReference
from burnish.models.role_optimizer import Owner, RoleOptimizer
from burnish.models.roles import Denominators, Objective, ObjectiveValue, Reference
from burnish.models.weights import Weights, load_folder, named_tensors
from burnish.types import Metric, PreTrainedModel, Reduction

POLICY = Owner(
    "policy", "policy", "lower optimization.learning_rate, check rewards and advantages for outliers, or use float32"
)


class LocalPolicy(LearnerByParts[Objective]):
    """`roles.Policy` on a model in this process.

    `temperature` divides the logits in every pass, as in sampling. With `lora` only adapters train. With
    `loaded.router_aux_coef`, each micro-batch adds its router load-balancing loss to the objective's loss, weighted by
    its share of the trained tokens. `runner`: as in `ResponseScorer`.
    """

    _scorer: ResponseScorer

    def __init__(
        self,
        loaded: LoadedModel,
        settings: OptimizerSettings,
        *,
        temperature: float = 1.0,
        tokens_per_microbatch: int = TOKENS_PER_MICROBATCH,
        lora: LoraConfig | None = None,
        seed: int = 0,
        lanes: Lanes = ONE_LANE,
        publishes_adapter: bool = False,
        runner: Callable[..., TrunkRunner] = TrunkRunner,
    ) -> None:
        self.loaded = loaded
        self._publishes_adapter = publishes_adapter
        self.settings = settings
        scorer = ResponseScorer(
            loaded.model,
            temperature=temperature,
            plain=loaded.plain,
            router_loss=loaded.router_aux_coef > 0,
            vocabulary=loaded.vocabulary,
            runner=runner,
        )
        self._adapter = None if lora is None else Adapter(loaded.model, lora, seed=seed)
        optimizer = RoleOptimizer(POLICY, self.trainable_parameters(), settings, lanes)
        super().__init__(scorer, [optimizer], tokens_per_microbatch=tokens_per_microbatch, lanes=lanes)
        self._head_critic: SharedCritic | None = None
        self._compare: Compare | None = None
        self._cut: CutModel | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The live module, including adapters. The local engine samples from it."""
        return self.loaded.model

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the optimizer updates. Tied weights appear once."""
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def reference(self) -> Reference:
        """The frozen starting point: the base with the adapter off, or a copy of the current weights.

        Call this before `load_weights` loads a checkpoint.
        """
        if self._adapter is not None:
            return AdapterOffReference(self._adapter, self.logprobs)
        return FrozenReference(
            replace(self.loaded, model=deepcopy(self.model)),
            temperature=self._scorer.temperature,
            tokens_per_microbatch=self._tokens_per_microbatch,
            lanes=self._lanes,
        )

    def add_value_head(self, settings: OptimizerSettings) -> SharedCritic:
        """Add a value head with its own optimizer to the backbone, and return the resulting critic.

        From now on objectives see its values next to the scores, and one backward pass of `update` trains both. The
        head's optimizer steps right after the policy's. Raises ValueError if there is a value head already.
        """
        if self._head_critic is not None:
            raise ValueError("the policy already has a value head")
        budget, lanes = self._tokens_per_microbatch, self._lanes
        self._head_critic = SharedCritic.on(self.loaded, settings, tokens_per_microbatch=budget, lanes=lanes)
        self._optimizers += self._head_critic._optimizers
        return self._head_critic

    def compare_with(self, compare: Compare) -> None:
        """From now on objectives see the divergence from a teacher at each trained token, and no entropy or values."""
        self._compare = compare

    def share_weights(self, cut: Cut) -> None:
        """Keep only a slice of every weight, a value head's included. For a team, before the first step, after
        `reference`."""
        self._optimizers[0].let_go()
        heads = [] if self._head_critic is None else [self._head_critic.head]
        self._cut = CutModel(self.model, self._lanes, cut, heads)
        self._scorer.run_in(self._cut.root)
        self._lanes = self._cut.lanes
        self._optimizers[0].share(self._cut, self.trainable_parameters())
        if self._head_critic is not None:
            self._head_critic.share(self._cut)

    def publish(self) -> Weights:
        """Offer this version's weights to engines: those in this process share the live module, others read copies."""
        return Weights(self.version, partial(self._tensors, self.version), self.model)

    def _tensors(self, version: int) -> Iterator[tuple[str, Tensor]]:
        if version != self.version:
            raise RolloutError(
                f"version {version} of the policy's weights was asked for, but the policy is now at version "
                f"{self.version}",
                remedy="after every update, call sync() with the weights that publish() returns",
            )
        if self._publishes_adapter:
            whole = Tensor.detach if self._cut is None else self._cut.whole
            return ((name, whole(parameter)) for name, parameter in saved_adapter(self.model).items())
        return named_tensors(self.model) if self._cut is None else self._cut.tensors()

    def give_weights(self, version: int) -> None:
        """Take part while the first process of a team reads the weights of `publish`, with `share_weights`."""
        for _ in self._tensors(version):
            pass

    def logprobs(self, batch: Batch, *, entropy: bool = False, correct: bool = False) -> TokenScores:
        """Scores of every response token under the current weights, without gradient: (B, T) in the batch's order."""
        return self._scorer.score_in_microbatches(
            batch, self._tokens_per_microbatch, entropy=entropy, correct=correct, lanes=self._lanes
        )

    @contextmanager
    def _passes(self) -> Iterator[None]:
        try:
            with recomputing(self.model, on=self.loaded.gradient_checkpointing):
                yield
        finally:
            self._scorer.release()

    def _forward(
        self, part: Batch, objective: Objective, denominators: Denominators
    ) -> tuple[Sequence[Tensor], ObjectiveValue]:
        # Batches are in host memory, so that only one micro-batch at a time takes memory of the device.
        part = part.to(self.model.device)
        head = None if self._head_critic is None else self._head_critic.head
        # The model's head runs at trained tokens only: its logits are the largest tensor of the pass.
        scores = self._scorer.score(
            part, only_trained=True, entropy=objective.needs_entropy, value_head=head, compare=self._compare
        )
        value = objective(scores, part.to(scores.logprobs_BT.device), denominators)
        if scores.router_loss is not None:
            share = part.loss_mask.sum() / denominators.num_tokens
            value = with_router_loss(value, scores.router_loss, coef=self.loaded.router_aux_coef, share=share)
        return [scores.logprobs_BT] if scores.values_BT is None else [scores.logprobs_BT, scores.values_BT], value

    def save_weights(self, folder: Path) -> None:
        """Write model (adapter merged in), tokenizer and config, and with LoRA the adapter in `folder/adapter`.

        Of a team with `share_weights` every process makes this call, and the first one writes. Its host's memory then
        holds the whole model.
        """
        if self._cut is not None:
            save_model(folder, self.loaded, self._cut.collected(self._cut.tensors()), self._adapter, self._cut)
        elif self._lanes.keeps_state:
            merged = None if self._adapter is None else self._adapter.merged_state()
            save_model(folder, self.loaded, merged, self._adapter, None)

    def load_weights(self, folder: Path) -> None:
        """Load the weights that `save_weights` wrote, bit for bit. Raises CheckpointError if they do not fit."""
        copy = Tensor.copy_ if self._cut is None else self._cut.copy
        if self._adapter is not None:
            self._adapter.load(folder / "adapter", copy)
        else:
            load_folder(folder, self.model, copy)
        self._optimizers[0].weights.refresh()


def with_router_loss(value: ObjectiveValue, router_loss: Tensor, *, coef: float, share: Tensor) -> ObjectiveValue:
    """Add the router load-balancing loss of a micro-batch with this share of the trained tokens. Weighted so, the
    micro-batches' losses add up to their mean."""
    aux = Metric(Reduction.MEAN, share * router_loss.detach(), share)
    metrics = {**value.metrics, "policy/router_aux_loss": aux}
    return replace(value, loss=value.loss + coef * share * router_loss, metrics=metrics)
