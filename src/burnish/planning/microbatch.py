"""Tokens of a micro-batch where the run file leaves them to the machine (`optimization.tokens_per_microbatch: auto`).

They decide how much memory a pass takes and in which order sums are added, so a run keeps what it began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from burnish.config.schema_optimization import TOKENS_PER_MICROBATCH
from burnish.config.schema_run import RunConfig
from burnish.planning.machines import Machine
from burnish.planning.memory import bytes_in, bytes_in_words
from burnish.planning.model_facts import ModelFacts, RewardFacts
from burnish.planning.processes import needs_of_gpus, runs_on_gpu, seats_of

MOST, FEWEST = 65_536, 512
"""Bounds of the tokens that are tried, by halving. More tokens are no faster on any GPU."""
USABLE = 0.9
"""Share of a GPU's memory to use: the rest is for PyTorch, and for fragmentation."""
_OF_PASSES = ("activations", "critic activations", "log-probabilities", "policy weights")
"""Items that a trial of a pass measures, or that exist before it."""


@dataclass(frozen=True, slots=True)
class MicrobatchChoice:
    """The tokens, and why so many."""

    tokens: int
    because: str


def microbatch_of(
    config: RunConfig, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> MicrobatchChoice:
    """Resolve `optimization.tokens_per_microbatch` for this run on this machine. `auto` takes on GPUs as many tokens as
    the plan has memory for, a power of two; elsewhere the default."""
    asked = config.optimization.tokens_per_microbatch
    if asked != "auto":
        return MicrobatchChoice(asked, "optimization.tokens_per_microbatch")
    if not runs_on_gpu(config, machine):
        return MicrobatchChoice(TOKENS_PER_MICROBATCH, "auto: more is hardly faster on a CPU")
    if facts is None:
        return MicrobatchChoice(TOKENS_PER_MICROBATCH, "auto, and the model's sizes are unknown")
    usable = round(usable_share(config) * min(machine.gpu_bytes))
    tokens = MOST
    while tokens > FEWEST and _needed(config, tokens, facts, machine, rewards) > usable:
        tokens //= 2
    because = f"auto: what {bytes_in_words(usable)} of a GPU are enough for; less if a first trial needs more"
    return MicrobatchChoice(tokens, because)


def usable_share(config: RunConfig) -> float:
    """The part of a GPU that training may take: an engine beside it may take its own at the start, unless it rests."""
    engine, traits = config.engine, config.engine.traits
    if not engine.stays:
        return USABLE
    share = engine.options.get(traits.share_options[0]) if traits.share_options else None
    return max(0.0, USABLE - (share if isinstance(share, float) else traits.gpu_share))


def bytes_beside_passes(
    config: RunConfig, facts: ModelFacts, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> int:
    """Bytes on the training process's GPU in an update, besides the weights and what passes make: gradients, masters,
    moments and whatever else is planned there."""
    seats = seats_of(config.changed("optimization", tokens_per_microbatch=FEWEST), facts, machine, rewards)
    seat = next(seat for seat in seats if seat.device)
    return bytes_in("update", (item for item in seat.device if item.name not in _OF_PASSES))


def _needed(config: RunConfig, tokens: int, facts: ModelFacts, machine: Machine, rewards: Sequence[RewardFacts]) -> int:
    """Memory needed on the fullest GPU, without items of sampling alone: smaller passes leave no room for these."""
    seats = [
        replace(seat, device=tuple(item for item in seat.device if item.phases != ("sampling",)))
        for seat in seats_of(config.changed("optimization", tokens_per_microbatch=tokens), facts, machine, rewards)
    ]
    return max((needed for _, needed in needs_of_gpus(seats).values()), default=0)
