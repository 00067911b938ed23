"""The machine of a plan: the one that is here, or one that is described (`8xH100-80GB`, `2x24GB`, a file).

A described machine has for each card `USABLE` of its memory. The rest is PyTorch's own working memory, fragmentation
and the driver's. Its speed is a share of what the maker states, so times that follow from it are estimates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config.problems import Problem, raise_problems
from burnish.config.yaml_text import parse_yaml, read_run_text
from burnish.errors import ConfigError
from burnish.planning.model_facts import known
from burnish.types import Json
from burnish.words import suggestion

USABLE = 0.95
"""Share of a described card's memory that plans give out."""
TRAINING_SHARE, DECODING_SHARE = 0.35, 0.3
"""Assumed shares of a card's operations and of its memory bandwidth: what trainers and engines for one card reach in
published measurements."""
LAYER_SECONDS, VLLM_STEP_SECONDS = 6e-4, 4e-3
"""Assumed fixed time of a decoding step: of each layer with the local engine, which starts every operation from Python;
of the whole step with vLLM, which replays a graph."""
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
    """What a device (a card, or the processor) does in a second, net of what it never reaches: operations of passes and
    of decoding, bytes read while decoding, bytes exchanged with other devices of its node and of other nodes. And the
    seconds that are spent whatever the size: of a decoding step, of each layer and row in it, of a pass, of a step."""

    operations: float
    decoding_operations: float
    decoding_bytes: float | None
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
    """Of one device for one hour."""

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
    return _machine(text, {"nodes": nodes, "cards": cards, **card})


def _card(name: str, place: str) -> dict[str, float]:
    """The facts of a known card, or the memory of one that is named by it alone."""
    cards: Mapping[str, Mapping[str, float]] = known()["cards"]
    alike = [known for known in cards if known.lower() == name.lower() or known.lower().startswith(f"{name.lower()}-")]
    if alike:
        return {_WORDS[key]: value for key, value in cards[alike[0]].items()}
    memory = _MEMORY.fullmatch(name)
    if memory is not None and int(memory[1]) > 0:
        return {"card_memory_gb": int(memory[1])}
    hint = suggestion(name, list(cards))
    remedy = f"{hint}; or name its memory alone (48GB), or describe the machine in a file (docs/plan.md)"
    raise ConfigError(f"{place}: the card {name!r} is not known", remedy=remedy)


_WORDS = {"memory": "card_memory_gb", "tflops": "tflops", "bandwidth": "bandwidth_gbs", "link": "link_gbs"}
"""Keys of a file for those of `known.yaml`."""
_COUNTS = {"nodes": 1, "cards": 0, "cores": 1}
_AMOUNTS = ("card_memory_gb", "tflops", "bandwidth_gbs", "link_gbs", "network_gbs", "memory_gb", "price")
_SHARES = ("training_share", "decoding_share")
KEYS = (*_COUNTS, "card", *_AMOUNTS, *_SHARES)
"""Keys of a file that describes a machine."""


def _of_file(path: Path) -> Machine:
    parsed = parse_yaml(read_run_text(path))
    problems, numbers = list(parsed.problems), dict[str, float]()
    data = parsed.data if isinstance(parsed.data, dict) else {}
    if not data and not problems:
        problems.append(Problem("", "it describes no machine", f"give some of {', '.join(KEYS)}"))
    for key, value in data.items():
        if key == "card" and isinstance(value, str):
            numbers = {**_card(value, place=str(path)), **numbers}
        elif key not in KEYS:
            problems.append(Problem(key, f"{key} is not known", suggestion(key, KEYS)))
        elif (wanted := _wanted(key, value)) is not None:
            problems.append(Problem(key, f"{key} is {value!r}", f"give {wanted}"))
        elif isinstance(value, int | float):
            numbers[key] = value
    if not problems and numbers.get("cards", 1) and "card_memory_gb" not in numbers:
        problems.append(Problem("", "its cards have no memory", "set card, or card_memory_gb, or cards: 0"))
    if numbers.get("cards") == 0 and numbers.get("nodes", 1) > 1:
        problems.append(Problem("nodes", "several nodes without cards cannot be planned", "describe one of them"))
    raise_problems(problems, source=str(path), where={key: f"{path}:{line}" for key, line in parsed.lines.items()})
    return _machine(str(path), numbers)


def _wanted(key: str, value: Json) -> str | None:
    """What the key needs instead of this value; None if it is right."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key == "card":
        return "the name of a known card, for example H100-80GB"
    if key in _COUNTS:
        right = isinstance(value, int) and number and _COUNTS[key] <= value <= _MOST
        return None if right else f"a whole number from {_COUNTS[key]} to {_MOST:,}"
    most = 1.0 if key in _SHARES else 1e9
    right = number and isinstance(value, int | float) and 0 < value <= most
    return None if right else f"a number above 0{', at most 1' if key in _SHARES else ''}"


def _machine(name: str, numbers: Mapping[str, Any]) -> Machine:
    nodes, cards = int(numbers.get("nodes", 1)), int(numbers.get("cards", 1))
    cores = int(numbers.get("cores", CORES_A_CARD * max(1, cards)))
    memory = numbers.get("memory_gb")
    each = round(USABLE * numbers["card_memory_gb"] * 2**30) if cards else 0
    return Machine(
        cores=cores,
        threads=cores,
        memory_bytes=None if memory is None else round(memory * 2**30),
        gpu_bytes=(each,) * (nodes * cards),
        nodes=nodes,
        name=name,
        is_here=False,
        speed=_speed(numbers, on_cards=cards > 0),
        price=numbers.get("price"),
    )


def _speed(numbers: Mapping[str, Any], *, on_cards: bool) -> Speed | None:
    """None if operations or bandwidth are not stated."""
    if "tflops" not in numbers or "bandwidth_gbs" not in numbers:
        return None
    training, decoding = numbers.get("training_share", TRAINING_SHARE), numbers.get("decoding_share", DECODING_SHARE)
    operations, bandwidth = training * numbers["tflops"], decoding * numbers["bandwidth_gbs"]
    stated = f"{numbers['tflops']:g} TFLOP/s and {decoding:.0%} of {numbers['bandwidth_gbs']:g} GB/s"
    return Speed(
        operations=1e12 * operations,
        decoding_operations=1e12 * operations,
        decoding_bytes=1e9 * bandwidth,
        source=f"estimate: {training:.0%} of {stated}",
        link_bytes=1e9 * LINK_SHARE * numbers.get("link_gbs", NETWORK_GB),
        network_bytes=1e9 * LINK_SHARE * numbers.get("network_gbs", NETWORK_GB),
        layer_seconds=LAYER_SECONDS if on_cards else 0.0,
    )
