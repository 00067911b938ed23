"""Responses judged by a program of the user: a proof checker, a linter, a compiler."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from burnish.errors import ConfigError
from burnish.outside.supervise import limit, start
from burnish.rewards.builtins.reading_rows import NoScoreError, check_positive

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PLACEHOLDERS = ("file", "row", "here")
_SAID = 500


class Command:
    """The verdict of a program on a response: 1 if it exits with status 0, 0 with one of `wrong` (by default 1). With
    `score: stdout` its last line of standard output is the score, at most 1, and its status must be 0. Any other end is
    an error without a score: another status, a signal, no number.

    argv: the program and its arguments, run without a shell. It gets the response as standard input, or in a file whose
    path replaces `{file}`. `{row}` is the path of a JSON file with `response`, `answer`, `prompt` and `columns`,
    `{here}` the folder where the run was started. No text of a response ever becomes an argument.

    suffix: of the file's name. folder: working directory; by default a new one that is removed afterwards. seconds:
    wall time, less than `timeout_seconds`. too_slow: whether a program that takes longer is an `error`, or the response
    `wrong`. memory_mb: address space of each of its processes; no limit by default, because some programs reserve far
    more than they use. output_mb: size of each file that it writes, standard output too.

    The program is not confined: it can do all that a reward can (`environment` names the variables that it sees).
    """

    def __init__(
        self,
        argv: Annotated[
            Sequence[str], "the program and its arguments, a list (required); {file}, {row} and {here} become paths"
        ],
        score: Annotated[
            Literal["exit_code", "stdout"], "exit_code (default), or stdout: its last line is the score, at most 1"
        ] = "exit_code",
        wrong: Annotated[
            Sequence[int] | None, "exit statuses that score 0 (default [1]); any other is an error"
        ] = None,
        suffix: Annotated[str, "ending of the name of {file}, such as .lean"] = "",
        folder: Annotated[str | None, "working directory (default a new one, removed afterwards)"] = None,
        seconds: Annotated[float, "for one response; less than timeout_seconds"] = 8.0,
        too_slow: Annotated[Literal["error", "wrong"], "what a longer run is: an error (default), or wrong"] = "error",
        memory_mb: Annotated[int | None, "address space of each of its processes (default no limit)"] = None,
        output_mb: Annotated[int, "of each file that it writes, standard output too"] = 16,
    ) -> None:
        check_positive("command", seconds=seconds, output_mb=output_mb, memory_mb=1 if memory_mb is None else memory_mb)
        if os.sep in suffix:
            raise ConfigError(
                f"option suffix of reward 'command' is {suffix!r}", remedy="give an ending, such as .lean"
            )
        self._argv = _checked(argv)
        if wrong is not None and score == "stdout":
            raise ConfigError(
                f"option wrong of reward 'command' is {wrong!r}, but with score: stdout no status is a verdict",
                remedy="remove wrong, and have the program print 0 and exit with status 0",
            )
        self._wrong = _statuses((1,) if wrong is None else wrong)
        self._reads_number, self._slow_is_wrong = score == "stdout", too_slow == "wrong"
        self._suffix, self._seconds = suffix, seconds
        self._folder = None if folder is None else _existing(folder)
        self._most_bytes = int(output_mb * 2**20)
        self._limit = _limiter(memory_mb, self._most_bytes)

    def __call__(self, response: str, answer: Any = None, prompt: str | None = None, **columns: Any) -> float:
        row = {"response": response, "answer": answer, "prompt": prompt, "columns": columns}
        # Processes that left the group may still be writing there, which is not an error.
        with tempfile.TemporaryDirectory(prefix="burnish-command-", ignore_cleanup_errors=True) as own:
            status = self._run(Path(own), row)
            if status is None and self._slow_is_wrong:
                return 0.0
            said = (Path(own) / "stderr").read_text(errors="replace").strip()[-_SAID:]
            stdout = (Path(own) / "stdout").read_bytes()
        if status is None:
            raise NoScoreError(f"{self._argv[0]} did not end within {self._seconds:g} seconds{_quoted(said)}")
        if len(stdout) >= self._most_bytes:  # a program need not notice that the rest is missing
            raise NoScoreError(f"{self._argv[0]} wrote more than output_mb allows")
        if status == 0:
            return _last_number(stdout.decode(errors="replace")) if self._reads_number else 1.0
        if status in self._wrong and not self._reads_number:
            return 0.0
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        raise NoScoreError(f"{self._argv[0]} {how}, which is not a verdict{_quoted(said)}")

    def _run(self, own: Path, row: dict[str, Any]) -> int | None:
        """Run the program and end its process group. Returns its status, or minus the signal; None if too slow."""
        work = own / "work"
        work.mkdir()
        file = own / f"response{self._suffix}"
        file.write_bytes(row["response"].encode(errors="surrogatepass"))
        paths = {"file": str(file), "row": str(own / "row.json")}
        if any("{row}" in argument for argument in self._argv):
            (own / "row.json").write_text(_json(row), encoding="utf-8")
        takes_file = any("{file}" in argument for argument in self._argv)
        with (
            open(os.devnull if takes_file else file, "rb") as stdin,
            open(own / "stdout", "wb") as stdout,
            open(own / "stderr", "wb") as stderr,
        ):
            process = start(
                [_filled(argument, paths) for argument in self._argv],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                folder=self._folder or work,
                environment={**os.environ, "TMPDIR": str(work)},
                first=self._limit,
            )
        try:
            return process.status(self._seconds)
        finally:
            process.end()


def _checked(argv: Any) -> list[str]:
    """Check the arguments, resolve the program's path, and fill in `{here}`."""
    if not isinstance(argv, (list, tuple)) or not argv or not all(isinstance(one, str) and one for one in argv):
        raise ConfigError(
            f"option argv of reward 'command' is {argv!r}",
            remedy="give a list of texts, such as [lean, '{file}']; no shell reads it",
        )
    here = os.getcwd()
    for argument in argv:
        for name in _PLACEHOLDER.findall(argument):
            if name not in _PLACEHOLDERS:
                raise ConfigError(
                    f"option argv of reward 'command' has {{{name}}} in {argument!r}",
                    remedy="use {file}, {row} or {here}; a response never becomes an argument, and for other braces "
                    "write a script",
                )
    for argument in argv[1:]:
        if not os.path.isabs(argument) and os.path.isfile(argument):
            raise ConfigError(
                f"argument {argument!r} of reward 'command' is a file here, but the program runs in another folder",
                remedy=f"write '{{here}}/{argument}'",
            )
    filled = [argument.replace("{here}", here) for argument in argv]
    program = shutil.which(filled[0])
    if program is None:
        raise ConfigError(
            f"the program {filled[0]!r} of reward 'command' was not found on PATH, or is not executable",
            remedy=f"install it, or give its path; PATH is {os.environ.get('PATH', 'not set')}",
        )
    return [os.path.abspath(program), *filled[1:]]


def _statuses(wrong: Any) -> frozenset[int]:
    if not isinstance(wrong, (list, tuple)) or not all(type(one) is int and 1 <= one <= 255 for one in wrong):
        raise ConfigError(
            f"option wrong of reward 'command' is {wrong!r}", remedy="give a list of numbers from 1 to 255"
        )
    return frozenset(wrong)


def _existing(folder: str) -> str:
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(
            f"the folder of reward 'command' does not exist: {path}", remedy=f"it is relative to {Path.cwd()}"
        )
    return str(path)


def _limiter(memory_mb: int | None, most_bytes: int) -> Callable[[], None]:
    bounds = {resource.RLIMIT_FSIZE: most_bytes, resource.RLIMIT_CORE: 0}
    if memory_mb is not None:
        bounds[resource.RLIMIT_AS] = memory_mb * 2**20
    return partial(limit, bounds)


def _filled(argument: str, paths: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: paths.get(match[1], match[0]), argument)


def _json(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row)
    except (TypeError, ValueError) as error:
        raise NoScoreError(f"a column cannot be written as JSON for {{row}}: {error}") from error


def _last_number(stdout: str) -> float:
    last = next((line.strip() for line in reversed(stdout.splitlines()) if line.strip()), "")
    try:
        score = float(last)
    except ValueError:
        raise NoScoreError(f"the last line that it wrote is not a number: {last!r:.200}") from None
    if not math.isfinite(score) or score > 1.0:
        raise NoScoreError(f"the score that it wrote is {last:.50}, and must be at most 1")
    return score


def _quoted(said: str) -> str:
    return f": {said}" if said else ""
