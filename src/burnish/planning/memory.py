"""An estimate of a run's memory, from the model's sizes alone.

Symbols: P parameters (Q of them trained: all, or only the adapters'), b bytes per weight (4 or 2), L layers, H hidden
size, F feed-forward size, N tokens in one forward and backward pass, V vocabulary, K = key/value heads x head size.

| item | bytes | why |
|---|---|---|
| weights | P b; with `model.quantization` 1 or 1/2 and 1/16 for each of a linear layer | a scale for 64 weights |
| gradients | 4 Q, times those held at once with several lanes or trainers (`gradients_at_once`) | summed in float32 |
| exchanged at a time | 16 MiB at most, 64 on a GPU, with several trainers | sums travel in pieces |
| master weights | 4 Q, only below float32 | small updates would round to nothing |
| Adam | 8 Q | two float32 moments |
| reference | P b, only with a KL and without adapters | |
| critic | P b, 4 P, 4 P (below float32) + 8 P, only a separate one | its weights, gradients, masters and moments |
| activations | N b L A with A = 8 H + 2 K + 3 F; with gradient checkpointing N b (L H + A) | backward pass |
| log-probabilities | b N V + 12 x 2^19 up to 2^26 logits, else 12 x 2^22; 12 N H | logits kept or in chunks |
| the same on a GPU | 4 N V and b N V, at most 2^29 and b 2^27, 2^30 if there are more; 12 x 2^25; 12 N H | |
| the same, `debug.plain` | (b + 16) N V + 12 N H | logits, softmax and gradients at the same time |
| key/value cache | 2 L K b x rows x tokens of a row; 4 for b on a CPU | rows decoded in parallel |
| logits of decoding steps | 32 V x rows, local engine on a GPU; sizes rounded up | held, up to 2^30 with the cache |
| kept conversations | the same of all conversations of a step, at most 2^30 | they go on after an answer |
| sampling policy | P b, reward models with `normalization.on: policy` | it samples responses to measure scores on |
| reward models | P b and N b A, of each reward that is one, with its own P, b, N and A | it scores, a layer at a time |

A reward model that is trained has a score head instead of an output head: there are no log-probabilities, and P is a
little too large.

`RoleMemory` has what every run that trains a model has, by role (the trained model, its passes, its state). Rows of a
kind of run alone are in its own table (`rl_processes.RlTable`, `comparisons.RmTable`). `seats` says which process has
which role, and what saving takes there (`processes`).

Each line says in which phases of a step it is needed: the cache while sampling, passes of reward models while scoring
(at any time, if rollout workers sample ahead), log-probabilities before and in the update, gradients and activations in
the update only, and what rests meanwhile (`cluster.offload`) only in the phases that it is brought back for. The table
adds all of them up, which errs on the safe side; `peak_bytes` takes the phase that needs most. Not counted: PyTorch's
own working memory, fragmentation, and attention without a memory-saving kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from burnish.config.kinds import find_kind, load
from burnish.config.schema_data import LoraConfig
from burnish.config.schema_run import RunConfig
from burnish.planning.model_facts import ModelFacts, RewardFacts

Phase = Literal[
    "sampling",
    "scoring",
    "log-probabilities",
    "reference",
    "teacher",
    "values",
    "update",
    "optimizer step",
    "critic update",
    "critic's optimizer step",
    "checkpoint",
    "trial of the first checkpoint",
]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""Phases in the order of a step. `scoring`: by reward models; `update`: the forward and backward passes; `reference`,
`teacher`: log-probabilities; `values`: of the critic; the trial: the saved policy is loaded again and compared."""
Where = Literal["plain", "gpu", "cpu"]
"""Where, or with which plain operations, log-probabilities are computed."""
Sharding = Literal["whole", "optimizer", "full"]
"""Parts of a trained model that each of several trainers keeps; see `ParameterBytes.of`."""

_CHUNK_LOGITS, _KEPT_LOGITS, _BLOCK_LOGITS = 1 << 22, 1 << 26, 1 << 19  # as in burnish.forward.logprobs
_DEVICE_LOGITS, _DEVICE_BLOCK_LOGITS = 1 << 27, 1 << 25  # as there
_COMPARED = 12  # tensors of the size of a chunk that a comparison keeps for its gradient, and makes in computing it
_PIECE_NUMBERS, _PIECE_NUMBERS_ON_GPU = 1 << 20, 1 << 22  # as in burnish.forward.team
_UPDATE: tuple[Phase, ...] = ("update", "optimizer step")
_BITS, _SHARE_A_SCALE = {"int8": 8, "nf4": 4}, 64  # as in burnish.forward.quantized_layers
_LOADED_AGAIN_BYTES = 20 << 30  # as in burnish.models.saved


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One line of the estimate: when it is needed, whether less may do (`at_most`), as when texts are short, and
    whether it is somewhere else in the other phases (`rests`)."""

    name: str
    num_bytes: int
    formula: str
    phases: tuple[Phase, ...] = PHASES
    at_most: bool = False
    rests: bool = False

    def needed_in(self, *phases: Phase, if_any: bool) -> MemoryItem:
        """The same if it rests in all other phases; unchanged without `if_any`."""
        return replace(self, phases=phases, rests=True) if if_any else self


def bytes_in(phase: Phase, items: Iterable[MemoryItem]) -> int:
    """The bytes of one phase."""
    return sum(item.num_bytes for item in items if phase in item.phases)


def peak_bytes(items: Iterable[MemoryItem], *, certain: bool = False) -> int:
    """The bytes of the phase that needs most; with `certain` only what is needed however short the texts are."""
    counted = [item for item in items if not (certain and item.at_most)]
    return max(bytes_in(phase, counted) for phase in PHASES)


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """Bytes that one parameter of a trained model takes, by what they are for. `optimizer`: masters and moments."""

    weight: float
    gradient: float
    master: float
    moments: float

    @staticmethod
    def of(dtype: str, sharding: Sharding = "whole", trainers: int = 1) -> ParameterBytes:
        """Bytes per parameter in each of several trainers, which keeps everything, a slice of the optimizer only, or
        slices of everything; the weights that train are then the masters."""
        master, slices = 0 if dtype == "float32" else 4, trainers if sharding == "full" else 1
        weight = 0 if sharding == "full" and master > 0 else (2 if master else 4) / slices
        of_optimizer = 1 if sharding == "whole" else trainers
        return ParameterBytes(weight, 4 / slices, master / of_optimizer, 8 / of_optimizer)

    @property
    def optimizer(self) -> float:
        return self.master + self.moments


def gradients_at_once(lanes: int, trainers: int, sharding: Sharding = "whole") -> float:
    """Gradients of all trained parameters that a trainer holds at the same time, at most.

    In the passes: the lane that is being added up, and a sum for each level of the tree over the trainer's own lanes.
    When trainers exchange them: the own sum, the slice of the total that this trainer adds up, and, unless it keeps
    only that slice, the total.
    """
    own = lanes // trainers
    passes = float((own - 1).bit_length() + 1)
    if trainers == 1:
        return passes
    return max(passes, 1 + 1 / trainers + (sharding == "whole"))


def estimate_memory(
    config: RunConfig, facts: ModelFacts, rewards: Sequence[RewardFacts] = (), on_gpu: bool | None = None
) -> tuple[MemoryItem, ...]:
    """The lines of the table above for this run in one process, without lines of zero bytes. `rewards`: its reward
    models. on_gpu: where it computes, if the machine is known."""
    table = table_of(config)(config, facts, on_gpu)
    return (*table.trained(), *table.sampling(), *table.scoring(rewards))


class RoleMemory:
    """The memory items of each role of a run, where it computes if nothing else is said. These are for a run that
    trains one model on given data; a kind of run with more of them adds its own.

    on_gpu: where it computes, if the machine is known. trainers, sharding: what a trainer keeps of trained models.
    """

    weights_name: ClassVar[str] = "policy weights"

    def __init__(
        self,
        config: RunConfig,
        facts: ModelFacts,
        on_gpu: bool | None = None,
        trainers: int = 1,
        sharding: Sharding = "whole",
    ) -> None:
        self.config, self.facts, self.on_gpu = config, facts, on_gpu
        self.trainers, self.sharding = trainers, sharding
        self.width = int(ParameterBytes.of(config.model.dtype).weight)
        self.kept = ParameterBytes.of(config.model.dtype, sharding, trainers)
        self.frozen = self.width / (trainers if sharding == "full" else 1)
        """Bytes that a trainer keeps of a weight that does not train."""
        self.gradients = self.kept.gradient * gradients_at_once(config.cluster.num_lanes, trainers, sharding)
        self.offload = config.cluster.offload

    @staticmethod
    def pass_tokens(config: RunConfig) -> int:
        """Tokens in one forward and backward pass: the budget, or less if a lane has less of an optimizer step."""
        raise NotImplementedError

    @staticmethod
    def may_rest(config: RunConfig) -> Iterator[str]:
        """Roles whose state can give up its memory between the phases that need it."""
        yield from config.may_rest

    def beside(self) -> Iterator[MemoryItem]:
        """Other models in the process of each trainer."""
        return iter(())

    def of_trainers(self) -> Iterator[MemoryItem]:
        """Memory of each trainer."""
        return self.trained()

    def of_loop(self) -> Iterator[MemoryItem]:
        """Memory of the models that the command's own process computes with, wherever the trainers are."""
        return iter(())

    def sampling(self) -> Iterator[MemoryItem]:
        """Memory of sampling: the key/value cache, and weights that only sampling needs."""
        return iter(())

    def scoring(self, rewards: Sequence[RewardFacts]) -> Iterator[MemoryItem]:
        """Memory of reward models on the device where they score."""
        return iter(())

    def versions(self) -> Iterator[MemoryItem]:
        """The host's memory through which rollout workers get weights."""
        return iter(())

    @property
    def updates(self) -> tuple[Phase, ...]:
        """The phases with a backward pass."""
        return ("update",)

    def trained(self) -> Iterator[MemoryItem]:
        """Memory of training in each trainer: the models of its process, and their passes."""
        items = (*self.policy(), *self.beside(), self.activations(), *self.logprobs())
        return (item for item in items if item.num_bytes > 0)

    def policy(self) -> Iterator[MemoryItem]:
        """The model that is trained, with its gradients and its optimizer."""
        trained, held = num_trained(self.config.model.lora, self.facts), self.gradients / self.kept.gradient
        yield self._policy_weights()
        formula = f"{trained:,} trained parameters x 4 bytes (float32)"
        formula += "" if held == 1 else f" x {held:g} at once (cluster.lanes)"
        yield MemoryItem("gradients", round(trained * self.gradients), formula, _UPDATE)
        if self.trainers > 1:
            piece = min(_PIECE_NUMBERS_ON_GPU if self.on_gpu else _PIECE_NUMBERS, trained)
            formula = f"{piece:,} numbers x 4 bytes, packed, joined, received, passed on"
            yield MemoryItem("exchanged at a time", 16 * piece, formula, self.updates, at_most=True)
        sliced = "" if self.trainers == 1 or self.sharding == "whole" else f", in slices of {self.trainers} trainers"
        for name, each, factor in (
            ("master weights", self.kept.master, 4),
            ("Adam moments", self.kept.moments, "2 x 4"),
        ):
            item = MemoryItem(name, round(trained * each), f"{trained:,} x {factor} bytes (float32){sliced}")
            yield item.needed_in("optimizer step", "checkpoint", if_any="optimizer" in self.offload)

    def _policy_weights(self) -> MemoryItem:
        name = self.weights_name
        each = self.kept.weight if self.config.model.lora is None else self.frozen
        count, quantization = self.facts.num_parameters, self.config.model.quantization
        if quantization is None:
            return replace(self.weights(name), num_bytes=round(count * each))
        few = self.facts.num_layers * sum(number * one * other for number, one, other in _matrices(self.facts))
        per_weight, rest = _BITS[quantization] / 8 + 4 / _SHARE_A_SCALE, max(0, count - few)
        formula = f"{few:,} x {per_weight:g} bytes ({quantization}) + {rest:,} x {self.width} bytes"
        return MemoryItem(name, round(few * per_weight + rest * each), formula)

    def cache(self, rows: int, tokens: int) -> MemoryItem:
        """Keys and values of these rows: float32 in kernels on a CPU, and the model's dtype in other decoding."""
        facts = self.facts
        width = self.width if self.computes_on_gpu else 4
        per_token = 2 * facts.num_layers * facts.num_key_value_heads * facts.head_size * width
        formula = f"{rows} rows x {tokens} tokens x {per_token:,} bytes"
        return MemoryItem("key/value cache", rows * tokens * per_token, formula, ("sampling",), at_most=True)

    @property
    def computes_on_gpu(self) -> bool:
        """True if the role is known to compute on a GPU."""
        device = self.config.model.device
        return device.startswith("cuda") or (device == "auto" and bool(self.on_gpu))

    def loaded_again(self) -> Iterator[MemoryItem]:
        """The policy of the first checkpoint, in the controller, which compares it with the one that is trained."""
        item = replace(self.weights("saved policy"), phases=("trial of the first checkpoint",), at_most=True)
        if item.num_bytes <= _LOADED_AGAIN_BYTES:
            yield item

    def states(self) -> Iterator[tuple[str, int]]:
        """Models whose optimizer state is saved, in that order, and how many parameters of each are trained."""
        yield "policy", num_trained(self.config.model.lora, self.facts)

    def state_of(self, name: str, count: int) -> MemoryItem:
        """A copy of the optimizer state of so many parameters, while a checkpoint is saved."""
        each = ParameterBytes.of(self.config.model.dtype).optimizer
        return MemoryItem(name, round(each * count), f"{count:,} x {each:g} bytes", ("checkpoint",))

    def weights(self, name: str) -> MemoryItem:
        """A copy of the model's weights."""
        return weights_item(name, self.facts, self.width)

    def activations(self, of: ModelFacts | None = None) -> MemoryItem:
        """Activations of the backward passes, of all models that have the trained one's sizes."""
        facts, tokens = of or self.facts, self.pass_tokens(self.config)
        numbers, words = facts.num_layers * layer_numbers(facts), ""
        if self.config.model.gradient_checkpointing:
            numbers, words = facts.num_layers * facts.hidden_size + layer_numbers(facts), " (gradient checkpointing)"
        formula = f"{tokens:,} tokens x {numbers:,} numbers x {self.width} bytes{words}"
        phases: tuple[Phase, ...] = self.updates if self.facts.critic is None else ("update",)
        return MemoryItem("activations", tokens * numbers * self.width, formula, phases, at_most=True)

    def logprobs(self) -> Iterator[MemoryItem]:
        """Log-probabilities of the output head, with the logits that they are computed from."""
        where: Where = "plain" if self.config.debug.plain else "gpu" if self.computes_on_gpu else "cpu"
        num_bytes, formula = logits_bytes(self.pass_tokens(self.config), self.facts, self.width, where)
        yield MemoryItem("log-probabilities", num_bytes, formula, ("log-probabilities", "update"), at_most=True)


def comparison(role: RoleMemory, teacher: ModelFacts) -> MemoryItem:
    """Logits of student and teacher in a chunk of rows, with what the divergence and its gradient are computed from."""
    tokens, vocabulary = role.pass_tokens(role.config), role.facts.vocabulary_size
    chunk = tokens * vocabulary
    if not role.config.debug.plain:
        chunk = min(chunk, max(vocabulary, _DEVICE_BLOCK_LOGITS if role.computes_on_gpu else _CHUNK_LOGITS))
    width = 3 * role.facts.hidden_size + teacher.hidden_size
    formula = f"{_COMPARED} chunks of {chunk:,} logits and {tokens:,} tokens x {width:,}, 4 bytes each"
    num_bytes = 4 * (_COMPARED * chunk + tokens * width)
    return MemoryItem("comparison with the teacher", num_bytes, formula, ("update",), at_most=True)


def logits_bytes(tokens: int, facts: ModelFacts, width: int, where: Where) -> tuple[int, str]:
    """Bytes of a pass through the output head, whose weights have `width` bytes each, and their formula."""
    logits, hidden = tokens * facts.vocabulary_size, facts.hidden_size
    if where == "plain":
        formula = f"{logits:,} logits x {width + 16} bytes (debug.plain), {tokens:,} tokens x {hidden} x 12"
        return (width + 16) * logits + 12 * tokens * hidden, formula
    if where == "gpu":
        kept, again = min(logits, _DEVICE_LOGITS), min(max(0, logits - _DEVICE_LOGITS), _DEVICE_LOGITS)
        block, factor = min(logits, _DEVICE_BLOCK_LOGITS), width if width < 4 else 0
        formula = f"{kept + again:,} logits x 4 bytes, {kept:,} x {factor}, "
        formula += f"3 blocks of {block:,} logits and {tokens:,} tokens x {hidden} x 3, 4 bytes each"
        return 4 * (kept + again) + factor * kept + 4 * (3 * block + 3 * tokens * hidden), formula
    kept = logits if logits <= _KEPT_LOGITS else 0
    chunk = min(logits, _BLOCK_LOGITS if kept else _CHUNK_LOGITS)
    formula = f"{kept:,} kept logits x {width} bytes, " if kept else ""
    formula += f"3 chunks of {chunk:,} logits and {tokens:,} tokens x {hidden} x 3, 4 bytes each"
    return width * kept + 4 * (3 * chunk + 3 * tokens * hidden), formula


def passes_item(name: str, facts: ModelFacts, tokens: int, width: int, *phases: Phase) -> MemoryItem:
    """Memory of passes of so many tokens without gradient, which keep one layer's numbers at a time."""
    numbers = layer_numbers(facts)
    formula = f"{tokens:,} tokens x {numbers:,} numbers x {width} bytes, one layer"
    return MemoryItem(name, tokens * numbers * width, formula, phases, at_most=True)


def num_trained(lora: LoraConfig | None, facts: ModelFacts) -> int:
    """Count all parameters, or only the adapters': rank x (inputs + outputs) for each adapted matrix of each layer."""
    if lora is None:
        return facts.num_parameters
    return facts.num_layers * lora.rank * sum(count * (one + other) for count, one, other in _matrices(facts))


def _matrices(facts: ModelFacts) -> tuple[tuple[int, int, int], ...]:
    """(how many, size, size) in each layer: query and output, key and value, and the three of a gated feed-forward
    layer."""
    hidden = facts.hidden_size
    query = facts.num_attention_heads * facts.head_size
    key_value = facts.num_key_value_heads * facts.head_size
    return (2, hidden, query), (2, hidden, key_value), (3, hidden, facts.intermediate_size)


def weights_item(name: str, facts: ModelFacts, width: int) -> MemoryItem:
    """Memory of all weights of a model."""
    return MemoryItem(name, facts.num_parameters * width, f"{facts.num_parameters:,} parameters x {width} bytes")


def layer_numbers(facts: ModelFacts) -> int:
    """Numbers that the backward pass of one layer needs, for each token: A in the table."""
    return 8 * facts.hidden_size + 2 * facts.num_key_value_heads * facts.head_size + 3 * facts.intermediate_size


def table_of(config: RunConfig) -> type[RoleMemory]:
    """The memory items of runs of this kind."""
    return load(find_kind(config.kind).memory)


def bytes_in_words(number: float) -> str:
    """`1.5 GiB` and the like."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"
