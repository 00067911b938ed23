"""The trained model, in this process: scores, optimizer steps, weights and state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from burnish.config.schema_data import LoraConfig
from burnish.config.schema_optimization import TOKENS_PER_MICROBATCH
from burnish.errors import CheckpointError, DivergenceError, RolloutError
from burnish.forward.batch import Batch, TokenScores
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.logprobs import LogitsBuffer
from burnish.forward.recomputing import recomputing
from burnish.forward.scoring import ResponseScorer
from burnish.models.accumulation import Accumulation, count_denominators, trained_rows
from burnish.models.critic import SharedCritic
from burnish.models.cut import Cut, CutModel, ShardedScorer, go_back
from burnish.models.loading import LoadedModel
from burnish.models.lora import Adapter
from burnish.models.optimizers import OptimizerSettings
from burnish.models.reference import AdapterOffReference, FrozenReference
from burnish.models.roles import Denominators, Objective, Reference, TrainingState, Update
from burnish.models.sharded_optimizer import optimizer_for
from burnish.models.value_head import CriticOptimizer, ValueHead, ValueScorer, hidden_size, trunk_of
from burnish.models.weights import Weights, load_folder, named_tensors
from burnish.types import Metric, Reduction

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LocalPolicy:
    """`roles.Policy` on a model in this process.

    `temperature` divides the logits in every pass, as in sampling. With `lora` only adapters train. With
    `loaded.router_aux_coef`, each micro-batch adds its router load-balancing loss to the objective's loss, weighted by
    its share of the trained tokens.
    """

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
    ) -> None:
        self.loaded = loaded
        self.settings = settings
        self._tokens_per_microbatch = tokens_per_microbatch
        self._lanes = lanes
        self._scorer = ResponseScorer(
            loaded.model, temperature=temperature, plain=loaded.plain, router_loss=loaded.router_aux_coef > 0
        )
        self._adapter = None if lora is None else Adapter(loaded.model, lora, seed=seed)
        parameters = self.trainable_parameters()
        self._optimizer = optimizer_for(parameters, settings, lanes)
        # Everything that a backward pass reaches: the trained weights, and later those of a value head on them.
        self._summed = [parameter for _, parameter in parameters]
        self._value_head: ValueHead | None = None
        self._head_optimizer: CriticOptimizer | None = None
        self._head_critic: SharedCritic | None = None
        self._accumulation: Accumulation | None = None
        self._version = 0
        self._cut: CutModel | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The live module, including adapters. The local engine samples from it."""
        return self.loaded.model

    @property
    def version(self) -> int:
        return self._version

    def trainable_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that the optimizer updates. Tied weights appear once."""
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def reference(self) -> Reference:
        """The frozen starting point: the base with the adapter off, or a copy of the current weights.

        Call this before `load_weights` loads a checkpoint.
        """
        if self._adapter is not None:
            return AdapterOffReference(self._adapter, self.logprobs)
        return FrozenReference.copy_of(
            self.loaded,
            temperature=self._scorer.temperature,
            tokens_per_microbatch=self._tokens_per_microbatch,
            lanes=self._lanes,
        )

    def add_value_head(self, settings: OptimizerSettings) -> SharedCritic:
        """Add a value head with its own optimizer to the backbone, and return the resulting critic.

        From now on objectives see its values next to the scores, and one backward pass of `update` trains both. The
        head's optimizer steps right after the policy's. Raises ValueError if there is a value head already.
        """
        if self._value_head is not None:
            raise ValueError("the policy already has a value head")
        trunk = trunk_of(self.model)
        self._value_head = head = ValueHead(hidden_size(trunk), device=trunk.device)
        self._head_optimizer = CriticOptimizer(list(head.named_parameters()), settings, self._lanes)
        self._summed += head.parameters()
        scorer = ValueScorer(trunk, head, plain=self.loaded.plain)
        self._head_critic = SharedCritic(
            scorer, self._head_optimizer, tokens_per_microbatch=self._tokens_per_microbatch, lanes=self._lanes
        )
        return self._head_critic

    def rest_optimizer(self, folder: Path) -> None:
        """From now on moments and masters rest between optimizer steps: in pinned host memory, or, for a model on the
        CPU, in a file in `folder`. OffloadError if there is no room."""
        self._optimizer.rest("policy's optimizer", folder)

    def share_weights(self, cut: Cut) -> None:
        """Keep a slice of every weight only, and of those of a value head. For a team, before the first step, after
        `reference`."""
        del self._optimizer, self._summed  # or the whole weights would stay
        heads = [] if self._head_critic is None else [self._head_critic.head]
        self._cut = CutModel(self.model, self._lanes, cut, heads)
        self._scorer = ShardedScorer(self._scorer, self._cut.root)
        self._lanes = self._cut.lanes
        parameters = self.trainable_parameters()
        self._optimizer = self._cut.optimizer(parameters, self.settings)
        self._summed = [parameter for _, parameter in parameters]
        if self._head_critic is not None:
            self._head_critic.share(self._cut)
            self._summed += self._head_critic.head.parameters()

    def publish(self) -> Weights:
        """This version's weights, for engines. Engines in this process share the live module, others read copies."""
        return Weights(self._version, partial(self._tensors, self._version), self.model)

    def _tensors(self, version: int) -> Iterator[tuple[str, Tensor]]:
        if version != self._version:
            raise RolloutError(
                f"version {version} of the policy's weights was asked for, but the policy is now at version "
                f"{self._version}",
                remedy="after every update, call sync() with the weights that publish() returns",
            )
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

    def update(
        self,
        batch: Batch,
        objective: Objective,
        *,
        denominators: Denominators | None = None,
        planned_step: int | None = None,
    ) -> Update:
        """One optimizer step. Adds policy/grad_norm (before clipping) and policy/learning_rate to the metrics.

        Denominators are counted over the whole batch first. Rows without a trained token cost no forward pass, and
        scores are 0 at positions that are not trained on. A batch without any trained token moves no weight, but counts
        as a step in `version` (metric policy/empty_updates). Raises DivergenceError if loss or gradient is not finite,
        with the gradients cleared and the weights untouched.

        denominators: those of the minibatch that `batch` is part of, if its other rows have no gradient. If no row is
        left at all, the step has a gradient of 0, which still moves weights by momentum and decay.
        planned_step: sets the learning rate of the policy, and of a value head on its backbone.
        """
        self._accumulation = None
        self.accumulate(batch, objective, denominators or count_denominators(batch))
        return self.settle(planned_step)

    def accumulate(self, batch: Batch, objective: Objective, denominators: Denominators) -> None:
        """Add the gradient of one part of the step; see `roles.Policy`."""
        if self._accumulation is None:
            self._drop()  # gradients that other code left behind do not belong to this step
            self._accumulation = Accumulation(denominators)
        accumulation = self._accumulation
        if accumulation.denominators != denominators:
            raise ValueError(f"a part with {denominators} cannot be added to a step with {accumulation.denominators}")
        try:
            rows = trained_rows(batch)
            budget = self._lanes.budget(rows.num_tokens, self._tokens_per_microbatch)
            parts = [part for _, part in self._scorer.split(rows, budget)]
            costs = [part.num_tokens for part in parts]
            with (
                recomputing(self.model, on=self.loaded.gradient_checkpointing),
                self._lanes.adding(parts, costs, self._summed, accumulation.values) as own_parts,
            ):
                for part in own_parts:
                    # Batches are in host memory, so that only one micro-batch at a time takes memory of the device.
                    part = part.to(self.model.device)
                    # The head runs at trained positions only: its logits are the largest tensor of the pass.
                    scores = self._scorer.score(
                        part, only_trained=True, entropy=objective.needs_entropy, value_head=self._value_head
                    )
                    value = objective(scores, part, denominators)
                    loss = value.loss
                    if scores.router_loss is not None:
                        # Weighted by shares of the trained tokens, the micro-batches' losses add up to their mean.
                        share = part.loss_mask.sum() / denominators.num_tokens
                        loss = loss + self.loaded.router_aux_coef * share * scores.router_loss
                        aux = Metric(Reduction.MEAN, share * scores.router_loss.detach(), share)
                        value = replace(value, metrics={**value.metrics, "policy/router_aux_loss": aux})
                    if self._cut is not None:
                        go_back(_outputs(scores), loss)
                    elif loss.requires_grad:
                        loss.backward()
                    accumulation.values.append(replace(value, loss=loss.detach()))
                for part in self._lanes.fillers(parts, costs):
                    go_back(_outputs(self._scorer.score(part, only_trained=True, value_head=self._value_head)))
        except BaseException:
            self._drop()  # an incomplete gradient must not become a step
            raise
        finally:
            self._scorer.logits_buffer = LogitsBuffer()  # sampling has a use for the memory of this one

    def settle(self, planned_step: int | None = None) -> Update:
        """Check that losses and gradients are finite, then step with them; see `roles.Policy`."""
        accumulation = self._accumulation
        if accumulation is None:
            raise ValueError("settle() was called without a step begun by accumulate()")
        if accumulation.denominators.num_tokens == 0:
            self._drop()
            self._version += 1
            skipped = {} if self._head_optimizer is None else self._head_optimizer.skip()
            return Update({"policy/empty_updates": Metric(Reduction.SUM, 1.0)} | skipped)
        if accumulation.is_empty:  # trained tokens were counted, but none of their rows has a gradient
            self._optimizer.zero()
        # Everything is checked before anything moves: a diverged head must leave the policy untouched as well.
        try:
            self._check_finite("loss", accumulation.odd_loss())
            grad_norm = self._optimizer.grad_norm()
            norm = float(grad_norm)
            self._check_finite("gradient norm", norm)
            head_norm = None if self._head_optimizer is None else self._head_optimizer.checked_norm()
        except DivergenceError:
            self._drop()
            raise
        self._version += 1  # before the weights change, so that the old version never names changed weights
        rate = self._optimizer.step(self.settings.own_step(planned_step, self._version - 1), grad_norm)
        metrics = accumulation.metrics | {
            "policy/grad_norm": Metric(Reduction.MEAN, norm),
            "policy/learning_rate": Metric(Reduction.LAST, rate),
        }
        if self._head_optimizer is not None and head_norm is not None:
            metrics |= self._head_optimizer.step(head_norm, planned_step)
        self._accumulation = None
        return Update(metrics, accumulation.signals)

    def _drop(self) -> None:
        """Discard the parts of an unfinished step, and their gradients."""
        self._accumulation = None
        self._optimizer.clear()
        if self._head_optimizer is not None:
            self._head_optimizer.clear()

    def _check_finite(self, what: str, number: float | None) -> None:
        if number is None or math.isfinite(number):
            return
        raise DivergenceError(
            f"{what} is {number} at optimizer step {self._version}; the weights have not been changed",
            remedy="lower optimization.learning_rate, check rewards and advantages for outliers, or use float32",
        )

    def save_weights(self, folder: Path) -> None:
        """Write model (adapter merged in), tokenizer and config, and with LoRA the adapter in `folder/adapter`.

        Of a team with `share_weights` every process makes this call, and the first one writes. Its host's memory then
        holds the whole model.
        """
        cut = self._cut
        shared = None if cut is None else cut.collected(cut.tensors())
        adapter = None if cut is None else cut.adapter_state(self._adapter)
        if not self._lanes.keeps_state:
            return
        if cut is None or shared is None:
            state = None if self._adapter is None else self._adapter.merged_state()
            self.model.save_pretrained(folder, state_dict=state, safe_serialization=True)
        else:
            cut.save(folder, shared)
        self.loaded.tokenizer.save_pretrained(folder)
        if self._adapter is not None:
            self._adapter.save(folder / "adapter", adapter)

    def load_weights(self, folder: Path) -> None:
        """Load the weights that `save_weights` wrote, bit for bit. Raises CheckpointError if they do not fit."""
        copy = Tensor.copy_ if self._cut is None else self._cut.copy
        if self._adapter is not None:
            if not (folder / "adapter").is_dir():
                raise CheckpointError(
                    f"checkpoint {folder} has no adapter", remedy="resume with the LoRA settings it was made with"
                )
            self._adapter.load(folder / "adapter", copy)
        else:
            load_folder(folder, self.model, copy)
        self._optimizer.refresh()

    def training_state(self) -> TrainingState:
        """Version and optimizer state (nested dictionaries of tensors by parameter name). The learning rate has no
        state: it is a pure function of the planned step (or the version). Of a team every process makes this call, and
        the first one gets the optimizer state. The next update changes its tensors."""
        return {"version": self._version, "optimizer": self._optimizer.state()}

    def load_training_state(self, state: TrainingState) -> None:
        """The inverse of `training_state`. Load the weights first."""
        self._optimizer.load_state(state["optimizer"])
        self._version = int(state["version"])


def _outputs(scores: TokenScores) -> list[Tensor]:
    """Scores that all weights have a part in."""
    return [scores.logprobs_BT] if scores.values_BT is None else [scores.logprobs_BT, scores.values_BT]
