"""The table of run kinds: one row for each, which says where every room finds the kind's own parts.

A row names its parts as `package.module:name`. A part is imported when it is first used, so that the table is light and
no room knows those above it. Built-in kinds are registered at the end of this file. Any other kind is registered in the
same way, by a module of its own that calls `register(Kind(...))` and is imported before its run files are read.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from burnish.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from burnish.config.schema_run import RunConfig

Place = str
"""`package.module:name` of a function or a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of run. Its parts have the same signatures as the parts of the built-in kinds."""

    name: str
    """Name of the command (`burnish NAME`) and of folders of runs; `kind` of the class of its run files."""
    trains: str
    """What a run trains, in a few words for tables."""
    run_file: Place
    """Class of its run files, with their checks and the answers to questions about settings (`RunConfig`)."""
    command: Place
    """Function behind `burnish NAME`, whose docstring is the help."""
    function: str
    """Name in the Python API: `burnish.FUNCTION`."""
    plan: Place
    """(configuration, size of the data, sizes of the model) to the arithmetic of the run."""
    memory: Place
    """Class of its memory items by role, a `burnish.planning.memory.RoleMemory`."""
    time: Place
    """Class of the times of its phases, a `burnish.planning.timing.StepTimes`."""
    processes: Place = "burnish.planning.processes:Processes"
    """Class of its processes and what each holds."""
    preview: Place
    """(configuration, sizes of the model, here) to the size of the data. Refuses what the run would refuse before it
    loads a model; of a run for another machine (not `here`) only what is known anywhere."""
    check: Place = "burnish.cli.check:check_data"
    """Report of `burnish check` on the data, and its number of failures."""
    train: Place
    """Trains in this process, or with as many as the run file asks for, and returns where the run is."""
    evaluate: Place
    """Measures the model of the run file, or saved weights, on held-out data."""
    rows: Literal["prompts", "examples", "preferences"] | None = None
    """Purpose (`burnish.data.schemas`) of its rows. Of kinds whose run files may have the same keys, the first row of
    the data decides; kinds without a purpose have keys that no other kind has."""
    best: tuple[str, ...] = ("eval/loss",)
    """Metrics that `RUN@best` compares checkpoints by; the first one that the run has measured is used."""

    @property
    def section(self) -> type[RunConfig]:
        """The class of its run files."""
        return load(self.run_file)


def load(place: Place) -> Any:
    """The function or class that a row names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


_KINDS: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Add a kind; nothing changes if it is there already. ConfigError if another one has its name."""
    if _KINDS.setdefault(kind.name, kind) != kind:
        raise ConfigError(f"a kind of run called {kind.name!r} is registered already", remedy="choose another name")


def all_kinds() -> tuple[Kind, ...]:
    """Return the kinds of runs in the order in which they were registered."""
    return tuple(_KINDS.values())


def find_kind(name: str) -> Kind:
    """The kind of this name. ConfigError, with the nearest one, for a name without a row."""
    if name not in _KINDS:
        raise ConfigError(f"no kind of run is called {name!r}", remedy=suggestion(name, _KINDS))
    return _KINDS[name]


def kind_of_keys(keys: Collection[str]) -> Kind:
    """The kind that run files with these keys at the top are of: the first one with a key that only it has, else the
    one that knows most of them, of several the plainest."""
    known = {kind.name: set(kind.section.model_fields) for kind in all_kinds()}
    for name, own in known.items():
        others = (fields for other, fields in known.items() if other != name)
        if own.difference(*others).intersection(keys):
            return _KINDS[name]
    plainest_first = sorted(all_kinds(), key=lambda kind: kind.name != PLAINEST)
    return min(plainest_first, key=lambda kind: len(set(keys) - known[kind.name]))


PLAINEST = "sft"
"""The kind of a run file whose keys could be of any."""
USUAL = "rl"
"""The kind that is meant where nothing says which: of a file that cannot be understood, or of a model that no run has
trained."""

for _kind in (
    Kind(
        name="rl",
        trains="a policy, on rollouts that it samples and rewards score",
        run_file="burnish.config.schema:RlConfig",
        command="burnish.cli.training:rl",
        function="train",
        plan="burnish.planning.rl:plan_rl",
        memory="burnish.planning.rl_processes:RlTable",
        time="burnish.planning.rl:RlTimes",
        processes="burnish.planning.rl_processes:RlProcesses",
        preview="burnish.trainers.rl.setup.preflight:preview_rl",
        check="burnish.cli.check:check_gold_answers",
        train="burnish.trainers.cluster:train_rl",
        evaluate="burnish.trainers.rl.measuring:evaluate_run",
        best=("eval/accuracy", "eval/reward_mean"),
    ),
    Kind(
        name="sft",
        trains="a model, on given texts",
        run_file="burnish.config.schema:SftConfig",
        command="burnish.cli.training:sft",
        function="sft",
        plan="burnish.planning.texts:plan_sft",
        memory="burnish.planning.texts:SftTable",
        time="burnish.planning.texts:SftTimes",
        preview="burnish.trainers.preview:preview_sft",
        train="burnish.trainers.sft:train_sft",
        evaluate="burnish.trainers.held_out:evaluate_sft_run",
        rows="examples",
    ),
    Kind(
        name="distill",
        trains="a student, on the token distributions of a teacher",
        run_file="burnish.config.schema_distill:DistillConfig",
        command="burnish.cli.training:distill",
        function="distill",
        plan="burnish.planning.texts:plan_distill",
        memory="burnish.planning.texts:DistillTable",
        time="burnish.planning.texts:DistillTimes",
        processes="burnish.planning.texts:DistillProcesses",
        preview="burnish.trainers.distill:preview_distill",
        train="burnish.trainers.distill:train_distill",
        evaluate="burnish.trainers.distill:evaluate_distill_run",
        rows="examples",
    ),
    Kind(
        name="rm",
        trains="a reward model, on comparisons of responses",
        run_file="burnish.config.schema:RmConfig",
        command="burnish.cli.training:rm",
        function="reward_model",
        plan="burnish.planning.comparisons:plan_rm",
        memory="burnish.planning.comparisons:RmTable",
        time="burnish.planning.comparisons:RmTimes",
        preview="burnish.trainers.preview:preview_rm",
        train="burnish.trainers.reward_model.loop:train_reward_model",
        evaluate="burnish.trainers.held_out:evaluate_rm_run",
        rows="preferences",
        best=("eval/accuracy",),
    ),
    Kind(
        name="prefer",
        trains="a policy, on preferences between given responses",
        run_file="burnish.config.schema_prefer:PreferConfig",
        command="burnish.cli.training:prefer",
        function="prefer",
        plan="burnish.planning.comparisons:plan_prefer",
        memory="burnish.planning.comparisons:PreferTable",
        time="burnish.planning.comparisons:ComparedTimes",
        preview="burnish.trainers.preferences.measuring:preview_prefer",
        check="burnish.trainers.preferences.measuring:check_prefer",
        train="burnish.trainers.preferences.loop:train_preferences",
        evaluate="burnish.trainers.preferences.measuring:evaluate_prefer_run",
        best=("eval/accuracy",),
    ),
):
    register(_kind)
