"""Time of a step, from the sizes of a model and the speed of a device.

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

from burnish.config.kinds import find_kind, load
from burnish.config.schema_run import RunConfig
from burnish.planning.machines import Machine, Speed
from burnish.planning.memory import ParameterBytes, Sharding, num_trained
from burnish.planning.model_facts import ModelFacts, RewardFacts

ADAM_BYTES = 28
"""Read and written for each parameter in an optimizer step: gradient, moments, master and weight."""
HOST_BYTES = 2e10
"""Assumed bytes a second between a card and its host's memory."""


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
        """Cost of the run, in the unit of the price."""
        seconds = self.run_seconds
        return None if self.price is None or seconds is None else self.price * self.devices * seconds / 3600


def times_of(config: RunConfig) -> type[StepTimes]:
    """The times of runs of this kind."""
    return load(find_kind(config.kind).time)


ALLOWED = "half of what is allowed (assumed)"


def forward_operations(facts: ModelFacts, tokens: float, scored: float, seen: float) -> float:
    """Operations of a forward pass: `scored` tokens get log-probabilities, `seen` are the tokens that all of them
    attend to, added up."""
    head = facts.vocabulary_size * facts.hidden_size * scored
    width = facts.num_attention_heads * facts.head_size
    return 2 * (facts.body * tokens + head) + 4 * facts.num_layers * width * seen


class StepTimes:
    """The times of a run's phases, here of one that trains a model on given data; a kind of run with more of them adds
    its own. lengths: mean tokens. rewards: its reward models."""

    def __init__(
        self,
        config: RunConfig,
        facts: ModelFacts,
        machine: Machine,
        speed: Speed,
        lengths: Lengths,
        rewards: Sequence[RewardFacts] = (),
        sharding: Sharding = "whole",
    ) -> None:
        self.config, self.facts, self.machine, self.speed = config, facts, machine, speed
        self.lengths, self.rewards, self.sharding = lengths, rewards, sharding
        self.trainers, self.workers = config.cluster.trainers, config.cluster.num_workers
        self.epochs, self.minibatches = self.updates()
        self.texts, self.prompts = self.sizes()
        self.scored = self.texts * lengths.response
        self.trained = num_trained(config.model.lora, facts)
        self.width = 2 if config.model.dtype == "bfloat16" else 4

    @staticmethod
    def assumed(config: RunConfig, prompt: float | None, response: float | None) -> Lengths:
        """Half of what is allowed, where nothing else is known. All tokens of an example are scored like a
        response's."""
        mean = config.longest_text / 2 if prompt is None else prompt
        return Lengths(0.0, mean, ALLOWED if prompt is None else "mean of data.train")

    def sizes(self) -> tuple[float, float]:
        """Texts of a step, and how many different prompts these have."""
        raise NotImplementedError

    def updates(self) -> tuple[int, int]:
        """Passes over the texts of a step, and optimizer steps in each of them."""
        return 1, 1

    @property
    def apart(self) -> bool:
        """True if each text is read with its own prompt."""
        return self.config.debug.plain

    @property
    def critic(self) -> ModelFacts | None:
        """The sizes of a critic that the trainers update too."""
        return None

    def before_update(self) -> Iterator[PhaseTime]:
        """Yield the phases of a step before its update."""
        return iter(())

    def evaluation(self, heldout: int | None) -> float:
        """Seconds of an evaluation on so many held-out prompts, as far as they are known."""
        return 0.0

    def phases(self) -> Iterator[PhaseTime]:
        """Yield the phases of a step that take any time, in their order."""
        yield from self.before_update()
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

    def _update(self) -> Iterator[PhaseTime]:
        config, read, trained = self.config, self.read(), self.trained
        passes = (2 if config.model.lora else 3) + config.model.gradient_checkpointing
        share = passes * self.epochs / self.trainers
        seconds = self.passes(self.facts, share * read, share * self.scored)
        because = f"{passes} forward passes of {read:,.0f} tokens"
        if self.critic is not None:
            seconds += self.passes(self.critic, share * read, 0)
            trained, because = trained + self.critic.num_parameters, f"{because}, and the critic's"
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
        yield PhaseTime("exchange", sent / self.link(self.trainers), f"{sent / 1e9:,.1f} GB for each trainer")

    def link(self, processes: int) -> float:
        """Bytes a second between processes that take so many devices."""
        several = self.machine.gpus_per_node and processes > self.machine.gpus_per_node
        return self.speed.network_bytes if several else self.speed.link_bytes

    def passes(self, facts: ModelFacts, tokens: float, scored: float) -> float:
        """Seconds of a forward pass of the step's texts, or of a part of them."""
        context = (self.lengths.prompt + self.lengths.response) / 2
        return forward_operations(facts, tokens, scored, tokens * context) / self.speed.operations

    def read(self) -> float:
        """Tokens in one pass over the step: prompts as often as their responses need another micro-batch."""
        group, response = self.texts / self.prompts, self.lengths.response
        room = self.config.optimization.microbatch_tokens - self.lengths.prompt
        often = group if self.apart or room <= 0 else min(group, max(1, math.ceil(group * response / room)))
        return self.scored + self.prompts * often * self.lengths.prompt
