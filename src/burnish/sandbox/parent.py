"""The handle of one warm parent: starts it, gives it one job at a time, and reads what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from burnish.errors import SandboxError
from burnish.outside.frames import can_be_read, pair
from burnish.outside.supervise import NOWHERE, start
from burnish.sandbox.confinement import Tier
from burnish.sandbox.job import Limits, Output

START_SECONDS = 60.0
GRACE_SECONDS = 40.0
"""For the warm parent to begin a job, and to end one whose time is up, on a busy machine."""
_END_SECONDS = 10.0
"""For the warm parent to end its own processes, before it is killed."""
_ROOT = Path(__file__).parents[2]
_BOOT = (
    "import sys, importlib; sys.path.insert(0, sys.argv[1]); module = importlib.import_module(sys.argv[2]); "
    "del sys.path[0]; module.main(int(sys.argv[3]), sys.argv[4])"
)
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program prints the same set
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_VERDICT_BYTES = 1 << 22


class TierRefusedError(SandboxError):
    """Error of a tier that this machine does not allow."""


class Parent:
    """A process that forks candidates of one tier, and a socket to it. Raises TierRefusedError where the machine does
    not allow the tier.

    module: what runs in the process.
    """

    def __init__(self, tier: Tier, module: str) -> None:
        if sys.platform != "linux":
            raise TierRefusedError(
                f"the sandbox needs Linux, and this is {sys.platform}", remedy="run the reward on a Linux machine"
            )
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        with pair(socket.SOCK_SEQPACKET) as (self._channel, theirs):
            self._process = start(
                # Not -I, which ignores PYTHONHASHSEED: the environment and the folder are given anyway.
                [sys.executable, "-s", "-P", "-c", _BOOT, str(_ROOT), module, str(theirs.fileno()), tier],
                descriptors=(theirs.fileno(),),
                stdout=NOWHERE,
                stderr=self._said,
                environment=_ENVIRONMENT,
                folder="/",
            )
        self._channel.settimeout(GRACE_SECONDS)
        try:
            answer = self._answer(START_SECONDS, "start")
        except BaseException:
            self.close()
            raise
        if "refused" in answer:
            self.close()
            raise TierRefusedError(
                f"tier {tier!r} is not possible here: {answer['refused']}",
                remedy="see `burnish sandbox`, which tries all tiers",
            )

    @property
    def is_running(self) -> bool:
        """True until its process has ended."""
        return self._process.status() is None

    def stop(self) -> None:
        """End its jobs. Another thread than the one that waits for a job may call this: that one gets a SandboxError,
        and is the one to close."""
        with contextlib.suppress(OSError):  # it is closed already
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it and the processes that it has started. Idempotent."""
        self._channel.close()
        try:
            self._process.end(_END_SECONDS)  # where nothing else does, it ends its candidates itself
        finally:
            self._said.close()

    def ask(self, what: str, header: dict[str, Any], *descriptors: int) -> None:
        """Have it do something with these descriptors."""
        try:
            socket.send_fds(self._channel, [json.dumps(header).encode()], descriptors)
        except OSError as error:
            raise self._broken(what) from error

    def _answer(self, seconds: float, what: str) -> dict[str, Any]:
        if can_be_read(self._channel.fileno(), seconds):
            with contextlib.suppress(ConnectionError):
                data = self._channel.recv(1 << 16)
                if data:
                    return json.loads(data)
        raise self._broken(what)

    def _broken(self, what: str) -> SandboxError:
        ended = self._process.status()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        how = "does not answer" if ended is None else f"has ended with status {ended}"
        return SandboxError(
            f"the sandbox's process {how} ({what}){': ' + said[-1] if said else ''}",
            remedy="the candidate has no verdict; `burnish sandbox` tries the sandbox on this machine",
        )


class WarmParent(Parent):
    """Forks the candidates of one job at a time."""

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier, "burnish.sandbox.warm")

    def tests(self, code: str, tests: dict[str, Any], limits: Limits) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The tester's lines, and how the job ended. Raises SandboxError."""
        with _files(_bytes(code), json.dumps(tests).encode(), b"", b"") as (source, questions, stdout, stderr):
            reading, writing = os.pipe()
            try:
                try:
                    self._begin("tests", limits, source, questions, writing, stdout, stderr)
                finally:
                    os.close(writing)
                lines, ended = self._collect(reading, limits)
            finally:
                os.close(reading)
            self._check(ended, stderr)
        return lines, ended

    def program(self, code: str, stdin: str, limits: Limits) -> Output:
        """Run it once. Raises SandboxError."""
        with _files(_bytes(code), _bytes(stdin), b"", b"") as (source, given, stdout, stderr):
            self._begin("program", limits, source, given, stdout, stderr)
            ended = self._answer(limits.seconds + GRACE_SECONDS, "program")
            self._check(ended, stderr)
            return Output(_text(stdout), _text(stderr), ended["code"], ended["seconds"], ended["timed_out"])

    def _begin(self, kind: str, limits: Limits, *descriptors: int) -> None:
        self.ask(kind, {"kind": kind, "limits": dataclasses.asdict(limits)}, *descriptors)

    def _check(self, ended: dict[str, Any], stderr: int) -> None:
        if not ended["confined"]:
            raise not_confined(_text(stderr))

    def _collect(self, reading: int, limits: Limits) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The verdict's lines, read while the job goes on, because a pipe holds only so much."""
        data, deadline = bytearray(), time.monotonic() + limits.seconds + GRACE_SECONDS
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            if not can_be_read(reading, left):
                raise self._broken("tests")
            part = os.read(reading, 1 << 16)
            if not part:
                break
            data += part
            if len(data) > _VERDICT_BYTES:
                raise SandboxError("tests wrote more than 4 MB of results", remedy="give fewer tests")
        lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
        return lines, self._answer(max(deadline - time.monotonic(), 1.0), "tests")


def not_confined(stderr: str) -> SandboxError:
    """The error for a process that has written this instead of confining itself."""
    said = stderr.strip().rpartition("\n")[2]
    return SandboxError(
        f"a process of the sandbox could not be confined{': ' + said if said else ''}",
        remedy="`burnish sandbox` tries all tiers; Limits may be too tight",
    )


@contextmanager
def _files(*contents: bytes) -> Iterator[tuple[int, ...]]:
    """Files in memory with these contents."""
    descriptors = []
    try:
        for content in contents:
            descriptor = os.memfd_create("burnish", os.MFD_CLOEXEC)
            descriptors.append(descriptor)
            os.write(descriptor, content)
            os.lseek(descriptor, 0, os.SEEK_SET)
        yield tuple(descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _bytes(text: str) -> bytes:
    """Encode the text of a model, which may hold halves of characters; the program then says that it cannot be
    loaded."""
    return text.encode(errors="surrogatepass")


def _text(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
