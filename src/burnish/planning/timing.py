"""How long a step takes, from the sizes of a model and the speed of a device.

Symbols: B numbers of a model that work on each token, without embedding and head (of experts only the chosen ones), V
vocabulary, H hidden size, L layers, A heads x head size, K key/value heads x head size, b bytes per weight.

| what | operations or bytes |
|---|---|
| forward pass of T tokens, S of them scored, which see C tokens in all | 2 B T + 2 V H S + 4 L A C operations |
| update | 3 forward passes; with adapters 2; with gradient checkpointing one more |
| decoding step of R rows | the greater of its forward pass and (weights + 2 L K b x tokens kept) bytes; fixed times |
| optimizer step | 28 bytes per trained parameter, by `cluster.sharding` over the trainers |
| exchange of n trainers | 8 (n - 1) / n bytes per trained parameter and optimizer step; `full`: weights as well |
| push to rollout workers | b bytes per parameter |
| offload of the optimizer | 2 x 12 bytes per trained parameter (8 in float32) and optimizer step |

Prompts are read once for all their responses, as far as these fit into a micro-batch. Sampling ends with the longest
response, which is taken to be twice the mean. Not counted: rewards, tools, checkpoints, refilled groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from burnish.config.domains import responses_per_step
from burnish.config.schema import RlConfig, RmConfig, SftConfig
from burnish.planning.machines import VLLM_STEP_SECONDS, Machine, Speed
from burnish.planning.memory import (
    ParameterBytes,
    Sharding,
    Trained,
    has_separate_critic,
    num_rollout_workers,
    num_trained,
)
from burnish.planning.model_facts import ModelFacts, RewardFacts

ADAM_BYTES = 28
"""Read and written for each parameter in an optimizer step: gradient, moments, master and weight."""
HOST_BYTES = 2e10
"""Assumed bytes a second between a card and its host's memory."""
_LONGEST = 2.0
"""Longest response of a batch, relative to the mean one."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of prompts and responses (or of examples, which have no responses), and where they are from."""

    prompt: float
    response: float
    because: str


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """A part of a step. `aside`: it passes while another process learns."""

    phase: str
    seconds: float
    because: str
    aside: bool = False


@dataclass(frozen=True, slots=True)
class RunTime:
    """The time of a run. evaluation: of all evaluations together. devices: cards (or machines without any) that are
    paid for."""

    phases: tuple[PhaseTime, ...]
    tokens_per_step: float
    steps: int | None
    evaluation: float
    devices: int
    source: str
    lengths: Lengths
    price: float | None = None

    @property
    def step_seconds(self) -> float:
        """The sum of its phases; what passes aside counts only where it takes longer than the rest."""
        aside = sum(phase.seconds for phase in self.phases if phase.aside)
        return max(aside, sum(phase.seconds for phase in self.phases if not phase.aside))

    @property
    def run_seconds(self) -> float | None:
        return None if self.steps is None else self.steps * self.step_seconds + self.evaluation

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_step / self.step_seconds

    @property
    def cost(self) -> float | None:
        """Of the run, in the unit of the price."""
        seconds = self.run_seconds
        return None if self.price is None or seconds is None else self.price * self.devices * seconds / 3600


def assumed_lengths(config: Trained, prompt: float | None = None, response: float | None = None) -> Lengths:
    """Half of what is allowed, where nothing else is known. All tokens of an example are scored like a response's, none
    of a text to compare. prompt: mean tokens of the data."""
    of_data = "half of what is allowed (assumed)" if prompt is None else "mean of data.train"
    if not isinstance(config, RlConfig):
        mean = config.max_tokens / 2 if prompt is None else prompt
        return Lengths(0.0, mean, of_data) if isinstance(config, SftConfig) else Lengths(mean, 0.0, of_data)
    most = config.rollout
    prompt = most.max_prompt_tokens / 2 if prompt is None else prompt
    of_responses = "half of what is allowed (assumed)" if response is None else "stated or recorded"
    response = most.max_response_tokens / 2 if response is None else min(response, most.max_response_tokens)
    return Lengths(prompt, response, f"prompts: {of_data}; responses: {of_responses}")


def forward_operations(facts: ModelFacts, tokens: float, scored: float, seen: float) -> float:
    """Operations of a forward pass: `scored` tokens get log-probabilities, `seen` are the tokens that all of them
    attend to, added up."""
    head = facts.vocabulary_size * facts.hidden_size * scored
    width = facts.num_attention_heads * facts.head_size
    return 2 * (facts.body * tokens + head) + 4 * facts.num_layers * width * seen


class StepTimes:
    """The times of a run's phases. lengths: mean tokens. rewards: its reward models."""

    def __init__(
        self,
        config: Trained,
        facts: ModelFacts,
        machine: Machine,
        speed: Speed,
        lengths: Lengths,
        rewards: Sequence[RewardFacts] = (),
        sharding: Sharding = "whole",
    ) -> None:
        self.config, self.facts, self.machine, self.speed = config, facts, machine, speed
        self.lengths, self.rewards, self.sharding = lengths, rewards, sharding
        self.trainers, self.workers = config.cluster.trainers, num_rollout_workers(config)
        self.epochs = self.minibatches = 1
        self.apart = config.debug.plain  # each text is read with its own prompt
        if isinstance(config, RlConfig):
            optimization = config.optimization
            self.texts, self.prompts = float(responses_per_step(config)), float(config.rollout.prompts_per_step)
            self.epochs, self.minibatches = optimization.epochs, optimization.minibatches
            self.apart |= optimization.shuffle == "responses"
        elif isinstance(config, RmConfig):
            self.texts = self.prompts = config.optimization.comparisons_per_batch * (config.candidates or 2)
        else:
            self.texts = self.prompts = config.optimization.tokens_per_batch / max(1.0, lengths.response)
        self.scored = self.texts * lengths.response
        self.trained = num_trained(config.model.lora, facts)
        self.width = 2 if config.model.dtype == "bfloat16" else 4

    def phases(self) -> Iterator[PhaseTime]:
        """Those of a step that take any time, in its order."""
        ahead = isinstance(self.config, RlConfig) and self.workers > 0 and self.config.max_staleness > 0
        if isinstance(self.config, RlConfig):
            responses = responses_per_step(self.config)
            if self.workers:
                seconds = self.width * self.facts.num_parameters / self._link(self.trainers + self.workers)
                yield PhaseTime("push", seconds, "weights to the rollout workers", ahead)
            yield PhaseTime("rollout", self.rollout(self.config, responses), self._how_sampled(responses), ahead)
            if self.speed.step_seconds:
                yield PhaseTime("rewards", self.speed.step_seconds, "and logging, batching: as measured")
            yield from self._log_probs(self.config)
        yield from self._update()

    def of_run(self, steps: int | None, evaluation: float = 0.0, price: float | None = None) -> RunTime:
        """The time of a run of so many steps. evaluation: seconds of all evaluations."""
        phases = tuple(phase for phase in self.phases() if phase.seconds > 0)
        price = self.machine.price if price is None else price
        tokens, devices, source = self.tokens_per_step(), self.machine.devices, self.speed.source
        return RunTime(phases, tokens, steps, evaluation, devices, source, self.lengths, price)

    def tokens_per_step(self) -> float:
        """Tokens of prompts (once for each response, as is usual) and responses, or of examples."""
        return self.texts * (self.lengths.prompt + self.lengths.response)

    def rollout(self, config: RlConfig, responses: int) -> float:
        """Seconds of sampling: prompts once, then as many decoding steps as the rows need."""
        prompt, mean = self.lengths.prompt, self.lengths.response
        engines, lanes = self.workers or self.trainers, config.cluster.num_lanes
        share, rounds = responses / engines, max(1, -(-lanes // engines))
        at_once = min(config.rollout.max_batch_rows, -(-responses // lanes))
        longest = min(config.rollout.max_response_tokens, _LONGEST * mean)
        steps = max(share * mean / at_once, rounds * longest)
        prefill = self._passes(self.facts, self.prompts * prompt / engines, 0)
        rows = share * mean / steps
        return prefill + steps * self.decoding_step(rows, prompt + mean / 2, in_vllm=config.rollout.engine == "vllm")

    def decoding_step(self, rows: float, context: float, *, in_vllm: bool) -> float:
        """Seconds of one token for each of these rows, with so many tokens before it."""
        facts, speed = self.facts, self.speed
        operations = forward_operations(facts, rows, rows, rows * context) / speed.decoding_operations
        kept = 2 * facts.num_layers * facts.num_key_value_heads * facts.head_size * rows * context
        read = (self._body_read(rows) + facts.vocabulary_size * facts.hidden_size + kept) * self.width
        fixed = VLLM_STEP_SECONDS if in_vllm else speed.token_seconds + speed.layer_seconds * facts.num_layers
        return fixed + speed.row_seconds * rows + max(operations, read / speed.decoding_bytes)

    def _body_read(self, rows: float) -> float:
        """Numbers of the layers that some row needs; with experts more for more rows."""
        facts = self.facts
        everything = max(facts.body, facts.num_parameters - 2 * facts.vocabulary_size * facts.hidden_size)
        unread = (1 - facts.body / max(1, everything)) ** max(1.0, rows)
        return everything * (1 - unread)

    def _how_sampled(self, responses: int) -> str:
        engines = f"{self.workers} rollout workers" if self.workers > 1 else "1 rollout worker"
        engines = engines if self.workers else f"{self.trainers} trainer{'s' * (self.trainers > 1)}"
        return f"{responses:,} responses of {self.lengths.response:,.0f} tokens, {engines}"

    def _log_probs(self, config: RlConfig) -> Iterator[PhaseTime]:
        """Passes without a gradient: of reward models, for old log-probabilities, reference and values."""
        algorithm, own = config.algorithm, config.cluster.own_process
        tokens, scored, found, seconds = self._read() / self.trainers, self.scored / self.trainers, [], 0.0
        for name, facts, is_made in (
            ("old log-probabilities", self.facts, self.epochs * self.minibatches > 1 or algorithm.kl_in == "reward"),
            ("reference", self.facts, algorithm.kl_in != "none" and "reference" not in own),
            ("values", self.facts.critic or self.facts, has_separate_critic(config) and "critic" not in own),
        ):
            if is_made:
                found.append(name)
                seconds += self._passes(facts, tokens, scored)
        for reward in self.rewards:
            if reward.facts is not None:
                found.append(f"reward {reward.label}")
                seconds += self._passes(reward.facts, self.tokens_per_step(), 0)
        if found:
            yield PhaseTime("log-probs", seconds, ", ".join(found))

    def _update(self) -> Iterator[PhaseTime]:
        config, read, trained = self.config, self._read(), self.trained
        passes = (2 if config.model.lora else 3) + config.model.gradient_checkpointing
        share = passes * self.epochs / self.trainers
        seconds = self._passes(self.facts, share * read, share * self.scored)
        because = f"{passes} forward passes of {read:,.0f} tokens"
        if isinstance(config, RlConfig) and has_separate_critic(config) and "critic" not in config.cluster.own_process:
            critic = self.facts.critic or self.facts
            seconds += self._passes(critic, share * read, 0)
            trained, because = trained + critic.num_parameters, f"{because}, and the critic's"
        in_step = math.ceil(read / config.optimization.microbatch_tokens / self.trainers)
        number = self.epochs * max(self.minibatches, in_step)
        yield PhaseTime("update", seconds + number * self.speed.pass_seconds, because)
        steps, slices = self.epochs * self.minibatches, 1 if self.sharding == "whole" else self.trainers
        yield from self._optimizer(trained, steps, slices)
        yield from self._exchange(trained, steps, number)

    def _optimizer(self, trained: int, steps: float, slices: int) -> Iterator[PhaseTime]:
        seconds = steps * ADAM_BYTES * trained / slices / self.speed.decoding_bytes
        yield PhaseTime("optimizer", seconds, f"{ADAM_BYTES} bytes x {trained / slices:,.0f}, {steps:g} steps")
        if "optimizer" in self.config.cluster.offload and self.machine.gpu_bytes:
            each = 2 * ParameterBytes.of(self.config.model.dtype).optimizer / slices
            yield PhaseTime("offload", steps * each * trained / HOST_BYTES, f"{each:.3g} bytes x {trained:,}")

    def _exchange(self, trained: int, steps: float, passes: float) -> Iterator[PhaseTime]:
        if self.trainers == 1:
            return
        share = (self.trainers - 1) / self.trainers
        sent = 8 * share * trained * steps
        if self.sharding == "full":
            sent = share * passes * (2 * self.width * self.facts.num_parameters + 4 * trained)
        yield PhaseTime("exchange", sent / self._link(self.trainers), f"{sent / 1e9:,.1f} GB for each trainer")

    def _link(self, processes: int) -> float:
        """Bytes a second between processes that take so many devices."""
        several = self.machine.gpus_per_node and processes > self.machine.gpus_per_node
        return self.speed.network_bytes if several else self.speed.link_bytes

    def _passes(self, facts: ModelFacts, tokens: float, scored: float) -> float:
        """Seconds of a forward pass of the step's texts, or of a part of them."""
        context = (self.lengths.prompt + self.lengths.response) / 2
        return forward_operations(facts, tokens, scored, tokens * context) / self.speed.operations

    def _read(self) -> float:
        """Tokens in one pass over the step: prompts as often as their responses need another micro-batch."""
        group, response = self.texts / self.prompts, self.lengths.response
        room = self.config.optimization.microbatch_tokens - self.lengths.prompt
        often = group if self.apart or room <= 0 else min(group, max(1, math.ceil(group * response / room)))
        return self.scored + self.prompts * often * self.lengths.prompt
