"""Checks that the machines of a cluster match the controller's, and have enough resources.

`problems_here` runs on each node before a run starts there. It takes plain values, so that a node without Burnish, or
with another version of it, can be named instead of failing while it unpickles.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import TypedDict

from burnish import __version__
from burnish.errors import ConfigError
from burnish.outside.plugins import import_place

_REACH_SECONDS = 10.0
_MARK = ".seen-from-other-nodes"
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""In which Ray tells the command of a job about the job; that is its name."""


class Expected(TypedDict):
    """Versions, paths and plugins that a process must find on its machine."""

    versions: dict[str, str]
    folder: str | None
    """The folder that it works in; None where Ray gives it one."""
    paths: list[str]
    plugins: list[str]
    marked: tuple[str, str] | None
    """A folder that it has to see and write to, and what its mark says."""


def versions_here() -> dict[str, str]:
    """Return the versions that numbers, and the protocol between processes, depend on. Builds of PyTorch for other
    devices count as the same: the controller may be on a machine without a GPU."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "torch": version("torch").partition("+")[0], "Burnish": __version__}


def words_here() -> list[tuple[str, str]]:
    """The words of this command, each with a hash of the file that it names, or "" where it names none here."""
    return [(word, _hash_of(word)) for word in sys.argv[1:]]


def _hash_of(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""


def other_words(theirs: Sequence[Sequence[str]], ours: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the differences between two commands. The same file may have another path, and need not be there on every
    node."""
    for (word, content), (own, own_content) in zip_longest(theirs, ours, fillvalue=("nothing", "")):
        if content and own_content:
            if content != own_content:
                yield f"the content of {word} differs from rank 0's"
        elif word != own:
            yield f"{word} is where rank 0 has {own}"


def expected_here(plugins: Sequence[str], *, folder: str | None, marked: tuple[str, str] | None = None) -> Expected:
    """Collect what this process has and processes on other machines must have too."""
    return Expected(versions=versions_here(), folder=folder, paths=sys.path[:], plugins=list(plugins), marked=marked)


def problems_here(expected: Expected) -> list[str]:
    """Return the differences between this machine and the expected one, a line each."""
    here = versions_here()
    found = [
        f"{name} is {here[name]}, and {wanted} where the run was started"
        for name, wanted in expected["versions"].items()
        if here[name] != wanted
    ]
    if not enter(expected["folder"], expected["paths"]):
        found.append(f"the folder in which the run was started, {expected['folder']}, does not exist there")
    for plugin in expected["plugins"]:
        try:
            import_place(plugin.rpartition(":")[0], f"the run file names {plugin!r}")
        except ConfigError as error:
            found.append(error.message)
    if expected["marked"] is not None and not _is_marked(*expected["marked"]):
        found.append(f"the run's folder {expected['marked'][0]} cannot be seen or written to")
    return found


def refuse(what: str, found: Sequence[str], *, remedy: str) -> None:
    """ConfigError with a line for everything that was found, if anything was."""
    if found:
        raise ConfigError("\n".join([what, *found]), remedy=remedy)


def enter(folder: str | None, paths: Sequence[str]) -> bool:
    """Work in this folder, and import from these as well; whether there is such a folder."""
    if folder is not None and not Path(folder).is_dir():
        return False
    os.chdir(folder or os.curdir)
    sys.path += [path for path in paths if path not in sys.path and Path(path).exists()]
    return True


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """The text of a mark in this folder, which another machine finds if it sees the same folder."""
    file, text = folder / _MARK, secrets.token_hex(8)
    file.write_text(text, encoding="utf-8")
    try:
        yield text
    finally:
        file.unlink(missing_ok=True)


def _is_marked(folder: str, text: str) -> bool:
    try:
        return (Path(folder) / _MARK).read_text(encoding="utf-8") == text and os.access(folder, os.W_OK)
    except OSError:
        return False


def check_room(needs: Sequence[tuple[int, Mapping[str, float]]], nodes: Sequence[Mapping[str, float]]) -> None:
    """ConfigError unless these numbers of processes, which need so much each, fit into the nodes together."""
    asked: dict[tuple[tuple[str, float], ...], int] = {}
    for count, amounts in needs:
        kind = tuple(sorted(amounts.items()))
        asked[kind] = asked.get(kind, 0) + count
    free = [dict(node) for node in nodes]
    for kind, count in sorted(asked.items(), key=lambda one: -sum(amount for _, amount in one[0])):  # the largest first
        each = dict(kind)
        room = sum(_fitting(each, node) for node in free)
        if room < count:
            there = {name: sum(node.get(name, 0.0) for node in free) for name in each}
            left = " left" if len(asked) > 1 else ""
            raise ConfigError(
                f"cluster asks for {count} processes with {_listed(each)} each, but the Ray cluster has room for "
                f"{room}: {_listed(there)}{left} on {len(nodes)} node{'s' * (len(nodes) != 1)}",
                remedy="ask for fewer (cluster.trainers, cluster.rollout_workers, cluster.own_process), give each less "
                "(cluster.cpus_per_worker, cluster.gpus_per_worker, tensor_parallel_size of vLLM), or add nodes",
            )
        _take(each, count, free)


def _take(each: Mapping[str, float], count: int, nodes: Sequence[dict[str, float]]) -> None:
    """Subtract what so many processes need from what the nodes have, node after node."""
    for node in nodes:
        here = min(count, _fitting(each, node))
        for name, amount in each.items():
            node[name] = node.get(name, 0.0) - here * amount
        count -= here


def _fitting(each: Mapping[str, float], node: Mapping[str, float]) -> int:
    """Count the processes that this node has room for; a huge number if they need nothing."""
    return min((int(node.get(name, 0.0) / amount + 1e-9) for name, amount in each.items() if amount), default=1 << 30)


def _listed(amounts: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in amounts.items())


def job_without_folder() -> str | None:
    """A sentence about a job of Ray's that was submitted without a folder, and so begins in one of Ray's choice."""
    try:
        job = json.loads(os.environ.get(_JOB, ""))
        is_without = "job_submission_id" in job["metadata"] and not (job["runtime_env"] or {}).get("working_dir")
    except (ValueError, KeyError, TypeError):  # no job, or of a version of Ray's that tells it otherwise
        return None
    return (
        f"this job of Ray's was submitted without --working-dir: relative paths begin in {Path.cwd()} on "
        f"{socket.gethostname()}, not in the folder in which it was submitted"
        if is_without
        else None
    )


def check_address(address: str) -> None:
    """ConfigError for an address at which nobody listens. Ray itself would try for a minute, and end the process."""
    if "://" in address:
        raise ConfigError(
            f"RAY_ADDRESS is {address}, an address for programs outside the cluster",
            remedy="the controller has to run inside, where the address is host:port: "
            "ray job submit --working-dir . -- burnish rl FILE",
        )
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdigit()):
        return  # auto, local
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: {error.strerror or error}",
            remedy="start it (ray start --head), correct RAY_ADDRESS, or unset it to start one on this machine",
        ) from error
