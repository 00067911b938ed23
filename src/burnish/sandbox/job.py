"""Jobs of a sandbox, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Status = Literal["passed", "failed", "not_loaded", "ended", "timed_out", "out_of_memory"]
"""`not_loaded`: the code raised before anything was called. `ended`: its process ended by itself, or was killed by the
system, before all tests were done. `out_of_memory`: the same, with MemoryError or at its limit."""
Grade = Literal["split", "shared"]
"""`split`: candidate and tests in separate processes. `shared`: in one, so that the candidate can cheat."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one candidate. seconds: of the clock, for all its tests together. memory_mb: beyond what Python itself has
    loaded. processes: threads, because a confined candidate cannot start processes. output_bytes: of each stream and
    of each file. files: open at once. values_bytes: of one value that crosses to or from the tests."""

    seconds: float = 10.0
    processor_seconds: float = 10.0
    memory_mb: int = 512
    processes: int = 32
    output_bytes: int = 1 << 20
    files: int = 64
    values_bytes: int = 1 << 24


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a function and the value that it should return. Tuples count as lists, because JSON has only one such
    type. wrapped: `expected` may be a list that holds just this value, as APPS has it."""

    arguments: tuple[Any, ...]
    expected: Any
    named: Mapping[str, Any] = field(default_factory=dict)
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class FunctionTests:
    """Calls of the function `entry`: a name, or `Class.method` of a class that is made without arguments."""

    code: str
    entry: str
    cases: tuple[Case, ...]
    tolerance: float = 1e-6
    """Relative and absolute, where a float is expected or returned."""


@dataclass(frozen=True, slots=True)
class AssertTests:
    """Texts with `assert` statements about names of the code. prelude: trusted code that the tests need, such as
    imports or helper functions of the task. entry: the name of the code's function that `check(candidate)` is about,
    for texts that define such a function and do not call it."""

    code: str
    texts: tuple[str, ...]
    prelude: str = ""
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is run once, with this text as its standard input."""

    code: str
    stdin: str = ""


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """A program that is run once for each pair of standard input and expected standard output. until_failure: what
    follows the first pair that fails is not run."""

    code: str
    pairs: tuple[tuple[str, str], ...]
    until_failure: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a program, and how it ended. code: its exit status, or minus the number of the signal."""

    stdout: str
    stderr: str
    code: int
    seconds: float
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """passed of total tests; detail: why the first one that failed did, for a human."""

    status: Status
    passed: int
    total: int
    seconds: float
    detail: str = ""
    grade: Grade = "split"

    @property
    def fraction(self) -> float:
        """Share of the tests that passed."""
        return self.passed / self.total if self.total else 0.0


class Runner(Protocol):
    """Protocol of what runs jobs: the `Sandbox` of this machine, or a `RemoteSandbox`. Several threads may use one."""

    limits: Limits

    def run(self, job: FunctionTests | AssertTests | ProgramTests, limits: Limits | None = None) -> Verdict:
        """Judge a candidate. SandboxError when there can be no verdict."""

    def output(self, job: Program, limits: Limits | None = None) -> Output:
        """Run a program once. SandboxError."""

    def close(self) -> None:
        """End its processes, or its connections."""
