"""Trainers and rollout workers as actors of a Ray cluster. The only file that imports Ray.

Ray finds places for them, starts and ends them, and carries the weights through its object store. Requests and signs of
life go over connections of our own (`burnish.distributed.network`): a process that was killed is noticed at once, and
one that hangs after 12 seconds, which Ray does not notice at all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from torch import Tensor

from burnish.distributed.channel import Channel
from burnish.distributed.host import Host
from burnish.distributed.launching import Crew
from burnish.distributed.network import DistantPulse, connect
from burnish.distributed.nodes import Expected, check_address, check_room, expected_here, marked, refuse
from burnish.distributed.peers import START_SECONDS, Peer, ProcessSpec, RoleLostError
from burnish.distributed.pulse import PulseWatch
from burnish.distributed.team import Rendezvous
from burnish.distributed.weight_transfer import Bytes, SealedWeights, TensorLayout, sealed, unsealed
from burnish.errors import ConfigError, RolloutError
from burnish.models.weights import Weights

PLACE_SECONDS = 60.0
"""For Ray to find places, and to move the places of a lost node."""
ACTOR_SECONDS = 180.0
"""For Ray to start a process, and for that to import what it needs, on a busy machine with a slow disk."""
_QUIET_SECONDS = 3.0
"""For Ray to find places before anyone is told that it takes a while."""
_REACH_SECONDS = 10.0
_STACKS_SECONDS = 2.0
_CAUSE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_REASON_CHARACTERS = 600
"""Of an error of Ray's: a mismatch names the versions of both sides on separate lines."""

Reference = Any
"""Of an object in Ray's store, or of an answer to come."""


class UnreadableWeightsError(RolloutError):
    """Ray has lost weights: mostly the process that published them has ended, or its node."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetches bytes from Ray's object store, in whichever process calls it. An argument of a call that could not be
    fetched would be an error of the call itself, as if the one who reads had failed."""

    reference: Reference

    def __call__(self) -> Bytes:
        """The bytes. Raises UnreadableWeightsError."""
        try:
            numbers: Bytes = ray.get(self.reference, timeout=START_SECONDS)
        except RayError as error:
            raise UnreadableWeightsError(
                f"published weights cannot be read from Ray's object store ({_cause(error)})",
                remedy="see what became of the node on which they were published",
            ) from error
        return numbers


@dataclass(slots=True)
class StoredWeights(SealedWeights):
    """`SealedWeights` in Ray's object store, seen from the controller. Each node fetches them once. `author`: the
    process that published them; None for the controller."""

    layout: TensorLayout
    reference: Reference
    author: RayProcess | None = None

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """See `SealedWeights`."""
        with self.blaming("weights"):
            numbers = Fetch(self.reference)()
        return unsealed(numbers, self.layout)

    @contextmanager
    def blaming(self, what: str) -> Iterator[None]:
        """Blame a failure to read them here on the process that published them: RoleLostError."""
        try:
            yield
        except UnreadableWeightsError as error:
            if self.author is None:
                raise
            raise self.author.unreadable(what, error) from error

    def close(self) -> None:
        """See `SealedWeights`. Ray frees them when nobody reads them any more."""
        self.reference = None


class RayProcess(Peer):
    """An actor with roles of the run."""

    def __init__(
        self,
        seat: ProcessSpec,
        host: Any,
        place: Place,
        *,
        seconds: float,
        threads: int,
        stacks: Path,
        folder: str | None,
    ) -> None:
        """Return when the roles are built. host: the actor's class, with the `place` and the resources that it gets.
        Otherwise as `RoleProcess`."""
        self.name = seat.name
        self._place = place
        self._stacks = stacks
        self._pulse: DistantPulse | None = None
        environment = {name: value for name, value in os.environ.items() if name.startswith("BURNISH_")}
        self._actor = host.remote(environment, folder, sys.path)
        try:
            self._connect(time.monotonic() + min(seconds, ACTOR_SECONDS))
            self._build(seat, threads, seconds=seconds)
        except BaseException:
            self._lost = self._lost or "could not be started"
            self.kill()
            raise

    def _connect(self, deadline: float) -> None:
        token = secrets.token_bytes(32)
        self.address, self.pid = self._answer(
            self._actor.open.remote(ray.util.get_node_ip_address()), what="start", seconds=deadline - time.monotonic()
        )
        try:
            lines = connect(self.address, token, seconds=_REACH_SECONDS)
        except OSError as error:
            raise self._error(
                "start", f"cannot be reached at {self.address[0]}:{self.address[1]} ({error.strerror or error})"
            ) from error
        self._channel = Channel(lines.requests)
        self._pulse = DistantPulse(lines.beats)
        self._watch = PulseWatch(self._pulse.read)
        self._answer(self._actor.begin.remote(token), what="start", seconds=max(deadline - time.monotonic(), 1.0))

    def load(self, role: str, shared: SealedWeights, *, what: str, seconds: float) -> None:
        """See `Peer`."""
        assert isinstance(shared, StoredWeights), "actors read from Ray's object store"
        self._answer(self._actor.lend.remote(Fetch(shared.reference)), what=what, seconds=seconds)
        with shared.blaming(what):
            self.ask(("load", role, shared.layout), what=what, seconds=seconds)

    def share(self, role: str, version: int, *, what: str, seconds: float) -> StoredWeights:
        """See `Peer`."""
        layout: TensorLayout = self.ask(("share", role, version), what=what, seconds=seconds)
        return StoredWeights(layout, self._actor.published.remote(), author=self)

    def unreadable(self, what: str, error: UnreadableWeightsError) -> RoleLostError:
        """The error for weights that this process has published and nobody can read. Others may be asking it, so it is
        left to them."""
        return self._error(what, self._lost or f"is lost: {error.message}")

    def _answer(self, call: Reference, *, what: str, seconds: float) -> Any:
        """The answer of the actor itself, while it gives signs of life, or has a place to start in. RoleLostError, with
        the actor killed: it would keep its place."""
        deadline = time.monotonic() + seconds
        if self._pulse is not None:
            self._watch.restart()
        while not ray.wait([call], timeout=min(_LOOK_SECONDS, max(deadline - time.monotonic(), 0.0)))[0]:
            if self._pulse is not None:
                self.check_alive(what=what, seconds=seconds)
            elif self._place.is_lost:
                raise self.lose(what, "has lost its place")
            elif time.monotonic() > deadline:
                raise self.lose(what, f"did not answer within {seconds:.0f} seconds")
        try:
            return ray.get(call, timeout=_REACH_SECONDS)
        except RayError as error:
            raise self.lose(what, f"has failed ({_cause(error)})") from error

    def _write_stacks(self) -> None:
        """See `Peer`. They go to a file in the folder for that, here."""
        if self._lost is not None:
            return
        with contextlib.suppress(RayError, OSError):
            text = ray.get(self._actor.stacks.remote(), timeout=_STACKS_SECONDS)
            (self._stacks / f"{self.name.replace(' ', '-')}.txt").write_text(text, encoding="utf-8")

    def _end(self) -> None:
        """See `Peer`. Ray ends a process that is stopped with SIGKILL, after some seconds."""
        with contextlib.suppress(RayError, RuntimeError, ValueError):  # Ray itself may be gone
            ray.kill(self._actor, no_restart=True)
        if self._pulse is not None:
            self._pulse.close()

    def kill(self) -> None:
        """See `Peer`. One that has no connection yet has only Ray to end it."""
        if self._pulse is not None:
            super().kill()
        else:
            self._lost = self._lost or "has been ended"
            self._end()

    def _epitaph(self) -> str:
        """See `Peer`. Ray needs a moment to find out, and longer for a node that is lost."""
        deadline, why = time.monotonic() + _CAUSE_SECONDS, "closed its connection without ending"
        while time.monotonic() < deadline:
            try:
                ray.get(self._actor.ping.remote(), timeout=_CAUSE_SECONDS)
            except (ActorDiedError, GetTimeoutError) as error:
                return f"on node {self.address[0]} ended ({_cause(error)})"
            except RayError:
                why = "cannot be reached any more (its node may be lost)"
            time.sleep(_LOOK_SECONDS)
        self.kill()
        return f"on node {self.address[0]} {why}, and was killed"


def _cause(error: RayError) -> str:
    """The sentence of a long message of Ray's that says why."""
    text = str(error)
    told = re.search(r"exit detail: ([^.\n]*)|([^.\n]*(?:node (?:has|was|is)|low on memory)[^.\n]*)", text)
    sentence = next(filter(None, told.groups())) if told else text.strip().splitlines()[-1] if text.strip() else ""
    return sentence.strip() or type(error).__name__


@dataclass(frozen=True, slots=True)
class Place:
    """One of the places of a group, on the node that Ray has found for it."""

    group: PlacementGroup
    number: int
    node: str

    @staticmethod
    def now(group: PlacementGroup, number: int) -> Place:
        """Return the current place. Ray moves the places of a lost node."""
        return Place(group, number, placement_group_table(group)["bundles_to_node_id"][number])

    @property
    def is_lost(self) -> bool:
        """True if its node is lost, as far as Ray knows. Then a process that was to start there never does."""
        table = placement_group_table(self.group)
        moved = table["state"] != "CREATED" or table["bundles_to_node_id"][self.number] != self.node
        return moved or not any(node["NodeID"] == self.node and node["Alive"] for node in ray.nodes())


@dataclass(frozen=True, slots=True)
class RayLauncher:
    """`Launcher` on reserved places: a group and a number in it by the name of the process, with so much of each
    resource; `of_worker` for rollout workers."""

    crew: Crew
    places: Mapping[str, tuple[PlacementGroup, int]]
    each: Mapping[str, float]
    of_worker: Mapping[str, float]
    threads: int
    folder: str | None

    def start(self, seat: ProcessSpec) -> RayProcess:
        """See `Launcher`. A node may be lost before Ray knows of it, and then the process starts on another one."""
        deadline = time.monotonic() + ACTOR_SECONDS
        while True:
            group, number = self.places[seat.name]
            _await_places(group, f"process {seat.name!r}", self._amount(seat), self.crew.say)
            if seat.given_up.is_set():  # the run may have ended meanwhile, and Ray with it, which would start anew
                why = f"start: process {seat.name!r} is not needed any more"
                raise RoleLostError(why, remedy="", process=seat.name)
            place = Place.now(group, number)
            try:
                return self._start_at(place, seat)
            except RoleLostError as error:
                if time.monotonic() > deadline or not place.is_lost:
                    raise
                self.crew.say(f"{error.message}; it starts on another node")

    def _start_at(self, place: Place, seat: ProcessSpec) -> RayProcess:
        amount = self._amount(seat)
        host = ray.remote(Host).options(
            num_cpus=amount["CPU"],
            num_gpus=amount["GPU"],
            max_restarts=0,  # restarts are ours: the pool knows what was asked for
            scheduling_strategy=PlacementGroupSchedulingStrategy(place.group, place.number),
        )
        return RayProcess(
            seat, host, place, seconds=START_SECONDS, threads=self.threads, stacks=self.crew.stacks, folder=self.folder
        )

    def _amount(self, seat: ProcessSpec) -> Mapping[str, float]:
        return self.of_worker if seat.name in self.crew.workers else self.each

    def meetings(self, size: int, *, seconds: float) -> AbstractContextManager[list[Rendezvous]]:
        """See `Launcher`."""
        return Rendezvous.all_at(ray.util.get_node_ip_address(), size, seconds=seconds)

    def write(self, weights: Weights) -> StoredWeights:
        """See `Launcher`."""
        layout, numbers = sealed(weights)
        try:
            return StoredWeights(layout, ray.put(numbers))
        except RayError as error:
            raise RolloutError(
                f"no room for a copy of the weights of version {weights.version} ({layout.num_bytes:,} bytes) in Ray's "
                f"object store: {_cause(error)}",
                remedy="start Ray with a larger object store (ray start --object-store-memory)",
            ) from error


class RaySite:
    """`Site`: a Ray cluster, from when it is needed until the end of the context."""

    def __init__(self) -> None:
        self._started = False

    def __enter__(self) -> RaySite:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._started:
            ray.shutdown()
            _let_ray_print(True)

    @contextmanager
    def reserved(self, crew: Crew) -> Iterator[RayLauncher]:
        """See `Site`. Raises ConfigError for whatever is not as it has to be, before anything is started."""
        self._connect()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        resources = [node["Resources"] for node in nodes]
        each = _resources(crew, resources)
        of_worker = {**each, "GPU": float(crew.worker_gpus)} if each["GPU"] and crew.worker_gpus > 1 else each
        kinds = [
            (names, of_worker if names == crew.workers else each)
            for names in (crew.trainers, crew.models, crew.workers)
            if names
        ]
        check_room([(len(names), amount) for names, amount in kinds], resources)
        # Each kind is on as few nodes as possible: trainers exchange gradients.
        groups = [placement_group([dict(amount) for _ in names], strategy="PACK") for names, amount in kinds]
        try:
            for group, (names, amount) in zip(groups, kinds, strict=True):
                count = f"{len(names)} process{'es' * (len(names) > 1)}"
                some = ", ".join((*names[:3], *(["..."] if len(names) > 3 else [])))
                _await_places(group, f"{count} ({some})", amount, crew.say)
            packed = ray.get_runtime_context().runtime_env.get("working_dir")  # then Ray gives each process the folder
            expected = expected_here(crew.plugins, folder=None if packed else os.getcwd())
            places: dict[str, tuple[PlacementGroup, int]] = {}
            for group, (names, _) in zip(groups, kinds, strict=True):
                needs_folder = names != crew.workers or crew.workers_log
                nodes_of_group = sorted(set(placement_group_table(group)["bundles_to_node_id"].values()))
                _check_nodes(nodes_of_group, expected, crew, needs_folder=needs_folder)
                places |= {name: (group, number) for number, name in enumerate(names)}
            threads = crew.cluster.threads or max(1, int(each["CPU"]))
            yield RayLauncher(crew, places, each, of_worker, threads, expected["folder"])
        finally:
            for group in groups:
                remove_placement_group(group)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        address = os.environ.get("RAY_ADDRESS") or "local"
        check_address(address)
        # At Ray's own niceness of 15, trainers and samplers starve beside the programs that rewards run.
        os.environ.setdefault("RAY_worker_niceness", "0")
        only_here: dict[str, bool] = {"include_dashboard": False} if address == "local" else {}
        try:
            with _keeping_signals():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **only_here)
        except (RayError, RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())[:_REASON_CHARACTERS] or type(error).__name__
            raise ConfigError(
                "Ray does not start on this machine: " + reason
                if address == "local"
                else f"cannot join the Ray cluster at RAY_ADDRESS={address}: {reason}",
                remedy="on a busy machine try again, or set cluster.backend: processes"
                if address == "local"
                else "it has to run the same versions of Ray and Python; `ray status` tells more",
            ) from error
        self._started = True
        _let_ray_print(False)


def _let_ray_print(wanted: bool) -> None:
    """Whatever `log_to_driver` says, Ray prints what it hears of lost nodes, and the last lines of their logs, into the
    live table. What is lost is said by the run, and the logs are on the nodes."""
    ray._private.worker._worker_logs_enabled = wanted


@contextmanager
def _keeping_signals() -> Iterator[None]:
    """Ray sets a handler for SIGTERM that ends the program; a run has its own, which finishes the step."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _resources(crew: Crew, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the CPUs and GPUs that each process gets."""
    cluster = crew.cluster
    cpus, gpus = cluster.cpus_per_worker, cluster.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if crew.on_gpu and any(node.get("GPU", 0.0) for node in nodes) else 0.0
    return {"CPU": float(cluster.threads or 1) if cpus is None else cpus, "GPU": gpus}


def _await_places(group: PlacementGroup, what: str, each: Mapping[str, float], say: Callable[[str], None]) -> None:
    """Wait until Ray has set aside what the group asks for. Raises ConfigError."""
    if group.wait(_QUIET_SECONDS):
        return
    say(f"Ray has no place yet for {what}: waiting, at most {PLACE_SECONDS:g} seconds")
    if group.wait(PLACE_SECONDS):
        return
    free = ray.available_resources()
    raise ConfigError(
        f"no place for {what} within {PLACE_SECONDS:g} seconds: {each['CPU']:g} CPU and {each['GPU']:g} GPU are needed "
        f"for each, and {free.get('CPU', 0.0):g} CPU and {free.get('GPU', 0.0):g} GPU are free in the Ray cluster",
        remedy="wait for other programs in the cluster to end, ask for less, or add nodes",
    )


def _check_nodes(nodes: Sequence[str], expected: Expected, crew: Crew, *, needs_folder: bool) -> None:
    """ConfigError with a line for everything that is not as expected on one of the nodes."""
    with marked(crew.output) as text:
        question = {**expected, "marked": (str(crew.output), text) if needs_folder else None}
        calls = {
            node: ray.remote(_prober())
            .options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote(question)
            for node in nodes
        }
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=ACTOR_SECONDS)
        found = [line for node, call in calls.items() for line in _problems(node, call)]
    refuse(
        "not all nodes of the Ray cluster can take part in this run",
        found,
        remedy="install the same versions everywhere, and start the run in a folder that all nodes see "
        "(or ray job submit --working-dir), with `output` on a disk that they share",
    )


def _problems(node: str, call: Reference) -> list[str]:
    names = {entry["NodeID"]: entry["NodeManagerAddress"] for entry in ray.nodes()}
    try:
        return [f"node {names.get(node, node)}: {line}" for line in ray.get(call, timeout=_LOOK_SECONDS)]
    except RayError as error:
        return [f"node {names.get(node, node)}: cannot run anything ({_cause(error)})"]


def _prober() -> Callable[[Expected], list[str]]:
    """A function that Ray sends by its code, because Burnish may be missing over there."""

    def probe(expected: Expected) -> list[str]:
        try:
            from burnish.distributed.nodes import problems_here
        except ImportError as error:
            return [f"Burnish cannot be imported: {error}"]
        return problems_here(expected)

    return probe
