"""Identity of a run's folder: its configuration, its environment, whether it may be resumed, moving it aside."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import yaml
from pydantic import ValidationError

from burnish import __version__
from burnish.checkpointing.lock import LOCK_FILE, RunLock
from burnish.checkpointing.sources import with_inputs_moved
from burnish.config.schema import RunConfig
from burnish.config.secrets import masked, masked_command, restored
from burnish.config.yaml_text import parse_yaml, read_run_text
from burnish.errors import BurnishError, CheckpointError, ConfigError, DifferentRunError
from burnish.observability.atomic import disk_errors, write_text_atomically
from burnish.observability.control import ENDING_FILE
from burnish.outside.plugins import installed_version
from burnish.outside.reading import UnreadableError, read_json
from burnish.outside.supervise import run_program
from burnish.types import Json

CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
RUN_SIGNS = (CONFIG_FILE, LOCK_FILE, "checkpoints", "metrics.jsonl")
"""Any of these names in a folder shows that it is a run's folder."""

MAY_DIFFER = (
    *("output", "logging", "evaluation", "stop_when", "checkpoint", "data.eval", "cluster"),
    *("model.device", "model.gradient_checkpointing", "model.kernels"),
    *("optimization.tokens_per_microbatch", "rollout.max_batch_rows"),
    *("scoring.workers", "scoring.max_failure_fraction", "scoring.retry_seconds"),
    *("sandbox.tier", "sandbox.url", "sandbox.token_variable"),
)
"""Fields (and everything below them) that a resumed run may change, because they do not affect what is learned, except
by rounding (model.device, model.kernels).

`steps` may change too if `optimization.schedule` is constant. With other schedules, the learning rate of every step
depends on it.
"""

JUDGE_MAY_DIFFER = (
    *("url", "key_variable", "concurrency", "requests_per_minute", "tokens_per_minute", "retries"),
    *("request_timeout_seconds", "cache", "price_in", "price_out", "labels"),
)
"""Options of a reward `judge` that set where and how fast it is asked, but not the question."""

TEACHER_MAY_DIFFER = ("url", "key_variable", "tokenizer", "concurrency", "timeout_seconds", "cache")
"""Fields of a teacher that set where and how fast it is asked, or where its answers are kept."""

_SOLVED = ("success", "success_score")
"""Fields of `evaluation` that say when a response is solved."""

_CONFIG_REMEDY = "restore the run's own file, start over with --fresh, or name the folder of a run"

_PACKAGES = ("torch", "transformers", "safetensors", "numpy", "pydantic", "datasets", "mpmath", "peft", "tensorboard")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the run file whose value has changed since the run began (None: the field is missing)."""

    field: str
    before: Json
    now: Json

    def __str__(self) -> str:
        before, now = (masked(value, place=self.field) for value in (self.before, self.now))
        return f"{self.field}: {before!r} before, {now!r} now"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of a run, and the paths in it."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / CONFIG_FILE

    @property
    def environment_file(self) -> Path:
        return self.path / ENVIRONMENT_FILE

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    def begun(self) -> bool:
        """Return whether a run was started in this folder before."""
        return os.path.lexists(self.config_file)

    def admit(self, config: RunConfig) -> bool:
        """Return whether this configuration continues an earlier run in the folder. Changes nothing.

        Raises CheckpointError if the configuration differs from the earlier run's (listing all differences), or if the
        folder has checkpoints but no configuration.
        """
        if self.begun():
            self._refuse_differences(config)
            return True
        if (self.path / "checkpoints").is_dir():
            raise CheckpointError(
                f"{self.path} has checkpoints but no {CONFIG_FILE}, so it is unclear which run they belong to",
                remedy="set `output` to another folder, or restore the run's config.yaml",
            )
        return False

    def begin(self, config: RunConfig, *, accepted: Sequence[str] = ()) -> None:
        """Write the configuration and the environment of this start.

        `accepted`: changes of files and versions that the user has accepted, recorded in the environment. Raises
        CheckpointError if the folder cannot be written.
        """
        with self._writing():
            if config.logging.keeps_rollouts:
                self.rollouts.mkdir(parents=True, exist_ok=True)
            # Temporary files of a killed process. The run is locked, so nobody is writing them now.
            for torn in (*self.path.glob(".*.tmp"), *self.rollouts.glob(".*.tmp")):
                torn.unlink()
            (self.path / ENDING_FILE).unlink(missing_ok=True)
            self._add_environment(accepted)
            write_text_atomically(self.config_file, dump_config(config))

    def begin_fork(self, config: RunConfig, forked_from: dict[str, Json]) -> None:
        """Write the configuration of a run that goes on from a checkpoint of another one, and note that run and step in
        the environment. Raises CheckpointError if the folder cannot be written."""
        with self._writing():
            self._write_environment(self._environment() | {"forked_from": forked_from})
            write_text_atomically(self.config_file, dump_config(config))

    def _writing(self) -> AbstractContextManager[None]:
        return disk_errors(f"write to {self.path}", self.path, CheckpointError)

    def forked_from(self) -> Json:
        """The `run` and `step` that this run was forked from; None if it began by itself."""
        return self._environment().get("forked_from")

    def _environment(self) -> dict[str, Json]:
        """The environment as it was written, with a list of earlier `starts`."""
        if not os.path.lexists(self.environment_file):
            return {"starts": []}
        remedy = "fix it or move it away; it only records the environment of earlier starts"
        try:
            content = read_json(self.environment_file)
        except UnreadableError as error:
            raise CheckpointError(f"cannot read {self.environment_file}: it {error}", remedy=remedy) from error
        if not isinstance(content, dict) or not isinstance(content.get("starts"), list):
            raise CheckpointError(f"{self.environment_file} has no list of `starts`", remedy=remedy)
        return content

    def read_config(self) -> dict[str, Json]:
        """The resolved configuration of the run as plain values."""
        try:
            parsed = parse_yaml(read_run_text(self.config_file))
        except ConfigError as error:
            raise CheckpointError(error.message, remedy=_CONFIG_REMEDY) from error
        if parsed.problems:
            raise CheckpointError(
                f"cannot read {self.config_file}: {parsed.problems[0].message}", remedy=_CONFIG_REMEDY
            )
        content = parsed.data
        if not isinstance(content, dict):
            raise CheckpointError(f"{self.config_file} is not a run's configuration", remedy=_CONFIG_REMEDY)
        return content

    def _refuse_differences(self, config: RunConfig) -> None:
        found = refused_differences(self.read_config(), config)
        if found:
            listed = "\n".join(f"  {difference}" for difference in found)
            raise DifferentRunError(
                f"{self.path} contains a run with a different configuration:\n{listed}",
                remedy="set these fields back to resume it, set `output` to another folder, or start over with --fresh "
                "(fresh=True)",
            )

    def restore(self, config: RunConfig) -> list[str]:
        """Rewrite files that were removed from the run's folder since `begin`; return a line about each.

        Raises CheckpointError if the folder cannot be written.
        """
        wanted = [self.config_file, self.environment_file, *([self.rollouts] if config.logging.keeps_rollouts else [])]
        missing = [path for path in wanted if not path.exists()]
        with self._writing():
            if self.config_file in missing:
                write_text_atomically(self.config_file, dump_config(config))
            if self.environment_file in missing:
                self._add_environment(())
            if self.rollouts in missing:
                self.rollouts.mkdir()
        return [f"{path} was removed during the run and has been restored" for path in missing]

    def _add_environment(self, accepted: Sequence[str]) -> None:
        """Append the environment of this start to the list of earlier ones."""
        start = environment() | ({"accepted_changes": list(accepted)} if accepted else {})
        before = self._environment()
        earlier = before["starts"]
        assert isinstance(earlier, list), "checked when it was read"
        self._write_environment(before | {"starts": [*earlier, start]})

    def _write_environment(self, content: dict[str, Json]) -> None:
        write_text_atomically(self.environment_file, json.dumps(content, indent=2) + "\n")


def dump_config(config: RunConfig) -> str:
    """The resolved run file as YAML, with all fields in the order of the reference, and secrets masked."""
    values = masked(config.model_dump(mode="json"), hashed=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def refused_differences(before: dict[str, Json], config: RunConfig) -> list[Difference]:
    """Find the differences between a saved configuration and this one that prevent resuming, sorted by field."""
    # Inputs of its own are in the run's folder, which may have been moved, or copied with the run file that names them.
    now = with_inputs_moved(config.model_dump(mode="json") | {"output": before.get("output")}, Path(config.output))
    before = with_inputs_moved(before, Path(config.output))
    before = {name: restored(value, now.get(name)) for name, value in before.items()}
    allowed = tuple(f"{name}." for name in (*MAY_DIFFER, *(["steps"] if _constant_schedule(now) else [])))
    found = differences(_what_judges_are_asked(_with_defaults(before, config)), _what_judges_are_asked(now))
    fixed = _what_is_solved(now)
    return [one for one in found if one.field in fixed or not f"{one.field}.".startswith(allowed)]


def changed_fields(before: dict[str, Json], config: RunConfig) -> list[Difference]:
    """List the fields in which a configuration differs from a saved one, `output` left out."""
    now = config.model_dump(mode="json") | {"output": before.get("output")}
    known = {name: restored(value, now.get(name)) for name, value in before.items()}
    return differences(_with_defaults(known, config), now)


def _what_is_solved(config: dict[str, Json]) -> list[str]:
    """Shared fields of `evaluation` that define "solved" for a domain without its own, if that decides which prompts it
    trains on, or how much."""
    domains = config.get("domains")
    own = [domain for domain in domains.values() if isinstance(domain, dict)] if isinstance(domains, dict) else []
    found = [one.get("evaluation") for one in own if one.get("difficulty") or one.get("difficulty_weight")]
    given = [evaluation if isinstance(evaluation, dict) else {} for evaluation in found]
    return [f"evaluation.{name}" for name in _SOLVED if any(one.get(name) is None for one in given)]


def _what_judges_are_asked(config: dict[str, Json]) -> dict[str, Json]:
    """The configuration (of a run or a domain) without the options of judges and fields of teachers that may differ."""
    rewards, domains, teacher = config.get("rewards"), config.get("domains"), config.get("teacher")
    found = dict(config)
    if isinstance(teacher, dict):
        found["teacher"] = {name: value for name, value in teacher.items() if name not in TEACHER_MAY_DIFFER}
    if isinstance(rewards, list):
        found["rewards"] = [_asked(reward) for reward in rewards]
    if isinstance(domains, dict):
        found["domains"] = {
            name: _what_judges_are_asked(_trained_part(domain)) if isinstance(domain, dict) else domain
            for name, domain in domains.items()
        }
    return found


def _trained_part(domain: dict[str, Json]) -> dict[str, Json]:
    """A domain without the parts that may differ: held-out data and evaluation, except the definition of "solved",
    which also decides how difficult a prompt is."""
    evaluation = domain.get("evaluation")
    kept = {name: value for name, value in domain.items() if name not in ("eval", "evaluation")}
    if isinstance(evaluation, dict):
        kept["evaluation"] = {name: evaluation.get(name) for name in _SOLVED}
    return kept


def _asked(reward: Json) -> Json:
    options = reward.get("options") if isinstance(reward, dict) else None
    if not isinstance(reward, dict) or not isinstance(options, dict) or reward.get("name") != "judge":
        return reward
    return {**reward, "options": {name: value for name, value in options.items() if name not in JUDGE_MAY_DIFFER}}


def differences(before: dict[str, Json], now: dict[str, Json], prefix: str = "") -> list[Difference]:
    """List all fields with different values, sorted by their dotted names. Lists of sections are compared section by
    section, other lists as a whole."""
    found: list[Difference] = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{key}.")
        elif _are_sections(old) and _are_sections(new):
            found += differences(_by_number(old), _by_number(new), f"{prefix}{key}.")
        elif old != new:
            found.append(Difference(f"{prefix}{key}", old, new))
    return found


def _are_sections(value: Json) -> TypeGuard[list[Json]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _by_number(sections: list[Json]) -> dict[str, Json]:
    return {str(number): section for number, section in enumerate(sections)}


def environment() -> dict[str, Json]:
    """Record versions, machine and git revision of this start."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [*masked_command(sys.argv)],
        "burnish": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: installed_version(name) for name in _PACKAGES},
        "git": git_revision(Path(__file__).resolve().parent),
        "git_of_working_folder": git_revision(Path.cwd()),
    }


def git_revision(folder: Path) -> str | None:
    """Commit of the git checkout around `folder`, with "+changes" if there are uncommitted ones; None without one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = run_program(["git", "-C", str(folder), *arguments], seconds=10.0)
    except OSError:  # no git, which a run does not need
        return None
    return None if done.returncode else done.stdout.decode().strip()  # nor a checkout


def _with_defaults(before: dict[str, Json], config: RunConfig) -> dict[str, Json]:
    """The saved configuration read by today's classes, so that a field that is new since then has its default."""
    try:
        return type(config).model_validate(before).model_dump(mode="json")
    except (ValidationError, BurnishError):  # written by a version with other fields: compare as it stands
        return before


def _constant_schedule(config: dict[str, Json]) -> bool:
    optimization = config.get("optimization")
    return isinstance(optimization, dict) and optimization.get("schedule") == "constant"


def move_run_aside(folder: Path, *, signs: Sequence[str] = RUN_SIGNS) -> Path | None:
    """Rename the folder to the first free `NAME.old-N` and return that path; None if there is nothing to move.

    A folder is a run's if it contains one of the names in `signs`. It is locked while it moves, together with all run
    folders below it. If it is a link, its target is moved and replaced by an empty folder. Raises CheckpointError, with
    nothing changed, if a process is writing to one of the folders, if the folder is not a run's, or if it cannot be
    renamed.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    target = folder.resolve()
    if not (target.is_dir() and any((target / sign).exists() for sign in signs)):
        raise CheckpointError(
            f"{folder} exists and is not the folder of a run, so it is not moved aside",
            remedy="set `output` to the folder of a run, or to one that does not exist yet",
        )
    with ExitStack() as stack:
        for inner in _run_folders(target):
            stack.enter_context(RunLock(inner))
        aside = _free_name(target)
        with disk_errors(f"move {folder} aside", target.parent, CheckpointError):
            target.rename(aside)
            if folder.is_symlink():
                target.mkdir()
    return aside


def _run_folders(folder: Path) -> list[Path]:
    """The folder itself, and all folders below it with a lock file: a demo has two, a folder of runs has many."""
    return [folder, *sorted(path.parent for path in folder.rglob(LOCK_FILE) if path.parent != folder)]


def _free_name(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    return aside
