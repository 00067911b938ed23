"""How much of the code a reader meets who follows one GRPO step: its places, their lines, and the hops to `backward`.

    python tools/read_path.py            # print the path and its counts
    python tools/read_path.py --check    # fail when a count is more than 5 % past its limit (part of `make check`)

A tiny run makes one step under Python's profiler. A place is a function or a record (dataclass) that the step enters,
and counts once. The path is made of

- the places of `ROOMS`, which say what a step computes. A function of one statement (an accessor, a name for an
  expression) is read where it is used: its lines count, and it is not a place;
- a record of `DATA` is one place with its methods: `select` or `to` of a batch is looked up, like that of a tensor;
- formulas of `algorithms` that the path calls itself, not the helpers inside that room: a formula is read as one.

What a step asks of others is a door, printed and not counted, because a reader of the step stays outside, also where
what is behind the door calls into `ROOMS` again: an engine generates, a scorer scores, telemetry (`NOT_ON_PATH`)
describes and records. Scoring is behind a door for a reason of its own: a score is whatever a user's function gives,
computed in other processes, and the path goes on with a number per response whichever it was.

A hop is a call from one function of ours to another on the way from the loop to the first `Tensor.backward`. The run
takes the default path, which users take, and `--check` holds its counts to the limits with 5 % of slack, so that a
change that says something need not be squeezed in. `--plain` walks `debug.plain`, which says what is computed and to
which tests hold each fast path.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "burnish"
MAX_HOPS = 4
MAX_PLACES = 115
MAX_LINES = 1_350
SLACK = 1.05
LOOP, STEP = "run_loop", "RlRun.train_step"
ROOMS = ("trainers", "forward", "models")
FORMULAS = "algorithms"
DATA = ("Batch", "HostRows", "ResponsePositions", "Signals")
NOT_ON_PATH = ("trainers/telemetry", "trainers/run_folder.py")


Place = tuple[str, str]
"""File below the package, and qualified name."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a function: its lines of code, and the statements of its body. Docstrings, comments and blank lines are not
    counted: a path must not become shorter by being explained less."""

    lines: int
    statements: int

    @staticmethod
    def of(code: CodeType) -> Size:
        source = textwrap.dedent(inspect.getsource(code))
        (function,) = ast.parse(source).body
        assert isinstance(function, ast.FunctionDef)
        body = function.body[ast.get_docstring(function) is not None :]
        head = source.splitlines()[: function.body[0].lineno - 1]
        code_lines = [*head, *source.splitlines()[body[0].lineno - 1 :]]
        simple = len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr | ast.Assign)
        lines = sum(bool(line.strip()) and not line.strip().startswith("#") for line in code_lines)
        return Size(lines, 1 if simple else max(2, len(body)))


@dataclass(slots=True)
class Walk:
    """What one step entered: places of the path with their lines, doors to other rooms, and the hops to `backward`."""

    places: dict[Place, Size] = field(default_factory=dict)
    doors: set[Place] = field(default_factory=set)
    hops: tuple[str, ...] = ()
    inside: bool = False
    """Whether the step is under way."""

    def enter(self, frame: FrameType, event: str, _: object) -> None:
        """The profiler's call."""
        code = frame.f_code
        if code.co_qualname == STEP:
            self.inside = event == "call"
        if event != "call" or not self.inside:
            return
        if code.co_name == "backward" and code.co_filename.endswith(os.path.join("torch", "_tensor.py")):
            self.hops = self.hops or tuple(code.co_qualname for code in reversed(list(our_callers(frame))))
        elif code.co_name == "__init__" and code.co_filename == "<string>":
            self.note_record(type(frame.f_locals["self"]), frame.f_back)
        elif code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            # A comprehension or a lambda is read with the function around it.
            self.note_function(code, frame.f_back)

    def note_function(self, code: CodeType, caller: FrameType | None) -> None:
        place = (Path(code.co_filename).relative_to(PACKAGE).as_posix(), code.co_qualname)
        if not is_on_path(caller):
            return
        if is_path(place[0]) or place[0].startswith(FORMULAS):
            self.places.setdefault(place, Size.of(code))
        else:
            self.doors.add(place)

    def note_record(self, record: type, caller: FrameType | None) -> None:
        if is_dataclass(record) and record.__module__.startswith("burnish.") and is_on_path(caller):
            file = Path(inspect.getsourcefile(record) or "").relative_to(PACKAGE).as_posix()
            if is_path(file):
                self.places.setdefault((file, record.__qualname__), Size(lines=0, statements=len(fields(record))))


def is_path(file: str) -> bool:
    """Whether a file below the package is one of those that say what a step computes."""
    return file.startswith(ROOMS) and not file.startswith(NOT_ON_PATH)


def is_on_path(frame: FrameType | None) -> bool:
    """Whether the function is called by the path, and not by what is behind one of its doors."""
    return all(is_path(Path(code.co_filename).relative_to(PACKAGE).as_posix()) for code in our_callers(frame))


def our_callers(frame: FrameType | None) -> Iterator[CodeType]:
    """Functions of this package on the stack, up to the loop and without it."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(str(PACKAGE)):
            if code.co_name == LOOP:
                return
            yield code
        frame = frame.f_back


@contextmanager
def walking(walk: Walk) -> Iterator[None]:
    """Python's profiler on for this thread."""
    sys.setprofile(walk.enter)
    try:
        yield
    finally:
        sys.setprofile(None)


def walk_one_step(folder: Path, *, plain: bool) -> Walk:
    """Make one GRPO step on a model and data of a few kilobytes, and note what it enters."""
    from rich.console import Console

    from burnish.config.loading import load_run_data
    from burnish.trainers.interrupt import StopRequest
    from burnish.trainers.outer_loop import run_loop
    from burnish.trainers.rl.setup.parts import open_rl_run

    walk = Walk()
    config = load_run_data(run_file(folder, plain=plain)).config
    with open_rl_run(config, Console(quiet=True)) as run, walking(walk):
        run_loop(run, StopRequest())
    return walk


def run_file(folder: Path, *, plain: bool) -> dict[str, object]:
    """A run of one step of GRPO with a reward from a file, two updates and no evaluation."""
    from burnish.demo import problem_rows, split_problems, write_model

    write_model(folder / "model", seed=0)
    rows = problem_rows(split_problems(seed=0)[0][:8])
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "reward.py").write_text("def digits(response: str) -> float:\n    return float(len(set(response)))\n")
    return {
        "output": str(folder / "run"),
        "model": str(folder / "model"),
        "data": {"train": str(folder / "train.jsonl")},
        "rewards": f"{folder}/reward.py:digits",
        "algorithm": "grpo",
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_response_tokens": 4},
        "optimization": {"minibatches": 2},
        "debug": {"plain": plain},
        "steps": 1,
    }


def describe(walk: Walk) -> Iterator[str]:
    """The path, file by file, and its counts beside their limits."""
    files: dict[str, list[str]] = {}
    for (file, name), size in walk.places.items():
        read_in_passing = "" if counts_as_place(name, size) else " -"
        files.setdefault(file, []).append(f"{name} {size.lines or 'record'}{read_in_passing}")
    for file, names in sorted(files.items()):
        yield f"{file}: {', '.join(names)}"
    yield "doors: " + ", ".join(f"{file}:{name}" for file, name in sorted(walk.doors))
    yield "hops: " + " > ".join((LOOP, *walk.hops, "Tensor.backward"))
    for name, count, limit in counts(walk):
        yield f"{name}: {count} (at most {limit})"


def counts(walk: Walk) -> list[tuple[str, int, int]]:
    """(name, count, limit) of what is held."""
    return [
        ("hops", len(walk.hops), MAX_HOPS),
        ("places", sum(counts_as_place(name, size) for (_, name), size in walk.places.items()), MAX_PLACES),
        ("lines", sum(size.lines for size in walk.places.values()), MAX_LINES),
    ]


def counts_as_place(name: str, size: Size) -> bool:
    """Whether a reader has to go there: not for one statement, and not for a method of plain data."""
    owner, dot, _ = name.partition(".")
    return size.statements > 1 and not (dot and owner in DATA)


def main() -> int:
    parser = argparse.ArgumentParser(description="Count what a reader of one GRPO step meets.")
    parser.add_argument("--check", action="store_true", help="fail when a count is more than 5 %% past its limit")
    path = parser.add_mutually_exclusive_group()
    path.add_argument("--fast", dest="plain", action="store_false", help="walk the default path (the default)")
    parser.set_defaults(plain=False)
    path.add_argument("--plain", action="store_true", help="walk that of debug.plain")
    arguments = parser.parse_args()
    sys.path.insert(0, str(PACKAGE.parent))
    os.environ["BURNISH_TIMING"] = "off"  # which of several fast paths is walked must not depend on this machine's load
    with tempfile.TemporaryDirectory() as folder:
        walk = walk_one_step(Path(folder), plain=arguments.plain)
    print("\n".join(describe(walk)))
    past = [name for name, count, limit in counts(walk) if count > SLACK * limit]
    if not walk.hops:
        past.append("hops: the step has made no backward pass")
    return 1 if arguments.check and past else 0


if __name__ == "__main__":
    sys.exit(main())
