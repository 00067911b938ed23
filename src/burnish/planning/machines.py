"""The machine of a plan: the one that is here, or one that is described (`8xH100-80GB`, `2x24GB`, a file).

A described machine has for each card `USABLE` of its memory. The rest is PyTorch's own working memory, fragmentation
and the driver's. Its speed is a share of what the maker states, so times that follow from it are estimates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from burnish.config.explain import explain
from burnish.config.problems import Problem, named, raise_problems
from burnish.config.section import Section
from burnish.config.yaml_text import parse_yaml, read_run_text
from burnish.errors import ConfigError, suggestion
from burnish.planning.model_facts import known

USABLE = 0.95
"""Share of a described card's memory that plans give out."""
TRAINING_SHARE, DECODING_SHARE = 0.35, 0.3
"""Assumed shares of a card's operations and of its memory bandwidth: what trainers and engines for one card reach in
published measurements."""
LAYER_SECONDS = 6e-4
"""Assumed fixed time of each layer in a decoding step whose operations are started from Python."""
NETWORK_GB = 25.0
"""Assumed gigabytes a second from a card to another machine."""
LINK_SHARE = 0.5
"""Assumed share of a link's bandwidth that an exchange reaches."""
CORES_A_CARD = 8
"""Assumed cores of a described machine for each of its cards."""
_SHORT = re.compile(r"(?:(?P<first>\d+)x)?(?:(?P<second>\d+)x)?(?P<card>[A-Za-z0-9-]*[A-Za-z][A-Za-z0-9-]*)", re.ASCII)
_MEMORY = re.compile(r"(\d+)GB", re.IGNORECASE)
_REMEDY = "for example --on 8xH100-80GB, --on 2x8xH100-80GB (nodes x cards), --on 2x24GB or --on machine.yaml"
_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Speed:
    """Sustained speed of a device (a card, or the processor), per second: operations of passes and of decoding, bytes
    read while decoding, bytes exchanged with other devices of its node and of other nodes. And fixed costs in seconds:
    of a decoding step, of each layer and row in it, of a pass, of a step."""

    operations: float
    decoding_operations: float
    decoding_bytes: float
    source: str
    link_bytes: float = 1e10
    network_bytes: float = 1e10
    layer_seconds: float = 0.0
    token_seconds: float = 0.0
    row_seconds: float = 0.0
    pass_seconds: float = 0.0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores and bytes of memory of each node (None: not stated) that this program may use, threads that PyTorch takes
    by itself, and the bytes of each GPU, of one node after the other. `is_here`: it is the machine of this process, so
    what it lacks is refused and not only said. speed: of each GPU, or of the processor without any; None if unknown."""

    cores: int
    threads: int
    memory_bytes: int | None
    gpu_bytes: tuple[int, ...] = ()
    nodes: int = 1
    name: str = "this machine"
    is_here: bool = True
    speed: Speed | None = None
    price: float | None = None
    """Price of one device for one hour."""

    @property
    def devices(self) -> int:
        """GPUs, or nodes if there are none."""
        return len(self.gpu_bytes) or self.nodes

    @property
    def gpus_per_node(self) -> int:
        return len(self.gpu_bytes) // self.nodes

    def node_of(self, gpu: int | None) -> int:
        """The node of a GPU; the first one for what has none."""
        return 0 if gpu is None or not self.gpus_per_node else gpu // self.gpus_per_node


def described_machine(text: str) -> Machine:
    """The machine of `--on`. ConfigError for a text or a file that describes none."""
    if Path(text).suffix in (".yaml", ".yml", ".json"):
        return _of_file(Path(text))
    found = _SHORT.fullmatch(text)
    if found is None:
        raise ConfigError(f"--on {text!r} describes no machine", remedy=_REMEDY)
    first, second = (int(found[name]) if found[name] else None for name in ("first", "second"))
    nodes, cards = (1, first or 1) if second is None else (first or 1, second)
    if first == 0 or second == 0 or nodes * cards > _MOST:
        raise ConfigError(f"--on {text!r}: from 1 to {_MOST:,} cards can be planned for", remedy=_REMEDY)
    card = _card(found["card"], place=f"--on {text!r}")
    return _machine(text, DescribedMachine.model_validate({"nodes": nodes, "cards": cards, **card}))


def _card(name: str, place: str) -> dict[str, float]:
    """The facts of a known card, or the memory of one that is named by it alone."""
    cards: Mapping[str, Mapping[str, float]] = known()["cards"]
    alike = [known for known in cards if known.lower() == name.lower() or known.lower().startswith(f"{name.lower()}-")]
    if alike:
        return dict(cards[alike[0]])
    memory = _MEMORY.fullmatch(name)
    if memory is not None and int(memory[1]) > 0:
        return {"card_memory_gb": int(memory[1])}
    hint = suggestion(name, list(cards))
    remedy = f"{hint}; or name its memory alone (48GB), or describe the machine in a file (docs/plan.md)"
    raise ConfigError(f"{place}: the card {name!r} is not known", remedy=remedy)


Amount = Annotated[float, Field(gt=0, le=1e9)]
Share = Annotated[float, Field(gt=0, le=1)]


class DescribedMachine(Section):
    """A file that describes a machine; see docs/plan.md. Cores and memory are per node."""

    nodes: Annotated[int, Field(ge=1, le=_MOST)] = 1
    cards: Annotated[int, Field(ge=0, le=_MOST)] = 1
    card: str | None = None
    card_memory_gb: Amount | None = None
    tflops: Amount | None = None
    bandwidth_gbs: Amount | None = None
    link_gbs: Amount = NETWORK_GB
    network_gbs: Amount = NETWORK_GB
    training_share: Share = TRAINING_SHARE
    decoding_share: Share = DECODING_SHARE
    cores: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    memory_gb: Amount | None = None
    price: Amount | None = None


def _of_file(path: Path) -> Machine:
    parsed = parse_yaml(read_run_text(path, "--on: the file"))
    where = {key: f"{path}:{line}" for key, line in parsed.lines.items()}
    raise_problems(parsed.problems, source=str(path), where=where)
    data = parsed.data if isinstance(parsed.data, dict) else {}
    if not data:
        known_keys = ", ".join(DescribedMachine.model_fields)
        raise ConfigError(f"{path}: it describes no machine", remedy=f"give some of {known_keys}")
    if isinstance(data.get("card"), str):
        data = {**_card(str(data["card"]), place=str(path)), **data}
    problems = []
    try:
        machine = DescribedMachine.model_validate(data)
    except ValidationError as error:
        problems = named(explain(error, DescribedMachine, data, {}))
    else:
        if machine.cards and machine.card_memory_gb is None:
            problems.append(Problem("", "its cards have no memory", "set card, or card_memory_gb, or cards: 0"))
        if not machine.cards and machine.nodes > 1:
            problems.append(Problem("nodes", "several nodes without cards cannot be planned", "describe one of them"))
    raise_problems(problems, source=str(path), where=where)
    return _machine(str(path), machine)


def _machine(name: str, given: DescribedMachine) -> Machine:
    cores = given.cores or CORES_A_CARD * max(1, given.cards)
    memory = None if given.memory_gb is None else round(given.memory_gb * 2**30)
    gpus = (round(USABLE * (given.card_memory_gb or 0) * 2**30),) * (given.nodes * given.cards)
    speed, price = _speed(given), given.price
    return Machine(cores, cores, memory, gpus, given.nodes, name, is_here=False, speed=speed, price=price)


def _speed(given: DescribedMachine) -> Speed | None:
    """Estimate the speed of a described card. None if operations or bandwidth are not stated."""
    if given.tflops is None or given.bandwidth_gbs is None:
        return None
    operations, read = 1e12 * given.training_share * given.tflops, 1e9 * given.decoding_share * given.bandwidth_gbs
    stated = f"{given.tflops:g} TFLOP/s and {given.decoding_share:.0%} of {given.bandwidth_gbs:g} GB/s"
    source = f"estimate: {given.training_share:.0%} of {stated}"
    link, network = 1e9 * LINK_SHARE * given.link_gbs, 1e9 * LINK_SHARE * given.network_gbs
    return Speed(operations, operations, read, source, link, network, LAYER_SECONDS if given.cards else 0.0)
