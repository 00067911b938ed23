"""Trial of a tier on this machine: attacks of our own, whose effects are looked for from outside.

They say that the kernel does what the tier relies on. They do not say that no other attack exists.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from burnish.errors import SandboxError, suggestion
from burnish.sandbox.confinement import TIERS
from burnish.sandbox.job import Case, FunctionTests, Limits, Output, Program
from burnish.sandbox.parent import TierRefusedError
from burnish.sandbox.sandbox import Sandbox

_LIMITS = Limits(seconds=20.0, processor_seconds=20.0, memory_mb=128, output_bytes=1 << 16)
_SECRET_NAME = "BURNISH_SANDBOX_CANARY"
_LATE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack: whether it was held, and what it showed otherwise."""

    name: str
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Bait:
    """Targets of the attacks: a folder with a file, a secret, this process, a port at which it listens."""

    folder: Path
    secret: str
    listener: socket.socket

    @property
    def file(self) -> Path:
        return self.folder / "canary"

    def fill(self, code: str) -> str:
        values = {
            "FILE": str(self.file),
            "FOLDER": str(self.folder),
            "PID": os.getpid(),
            "PORT": self.listener.getsockname()[1],
        }
        return "".join(f"{name} = {value!r}\n" for name, value in values.items()) + code


_Held = Callable[[Output, _Bait], bool]


def _no_secret(output: Output, bait: _Bait) -> bool:
    return bait.secret not in output.stdout + output.stderr


def _folder_as_it_was(output: Output, bait: _Bait) -> bool:
    time.sleep(_LATE_SECONDS if "late" in output.stdout else 0.0)
    if bait.folder.stat().st_mode & 0o777 != 0o777:
        bait.folder.chmod(0o777)
        return False
    return os.listdir(bait.folder) == ["canary"] and bait.file.read_text() == bait.secret


def _nobody_came(output: Output, bait: _Bait) -> bool:
    bait.listener.settimeout(_LATE_SECONDS)
    try:
        bait.listener.accept()[0].close()
    except TimeoutError:
        return True
    return False


def _says_no(output: Output, bait: _Bait) -> bool:
    return "yes" not in output.stdout and not output.timed_out


def _at_most(amount: int) -> _Held:
    return lambda output, bait: int(output.stdout.split()[-1] if output.stdout.split() else amount + 1) <= amount


_READ = "try: print(open(FILE).read())\nexcept OSError as error: print(error)"
_CHANGE = """
import os
for attempt in (
    lambda: open(FILE, 'w').write('x'), lambda: os.remove(FILE), lambda: os.truncate(FILE, 0),
    lambda: os.rename(FILE, FILE + '2'), lambda: os.chmod(FOLDER, 0), lambda: os.symlink('/', FOLDER + '/link'),
    lambda: open(FOLDER + '/new', 'w').write('x'), lambda: os.mkdir(FOLDER + '/new'),
):
    try: attempt()
    except OSError: pass
"""
_LOOK = """
import os
print(dict(os.environ))
for name in ('environ', 'mem', 'maps', 'cmdline'):
    for pid in ('self', PID, os.getppid(), 1):
        try: print(open(f'/proc/{pid}/{name}', 'rb').read(1 << 16))
        except OSError: pass
for pid in (PID, os.getppid()):
    try: print(os.listdir(f'/proc/{pid}/fd') and 'yes')
    except OSError: pass
"""
_SIGNAL = (
    "import os\nfor pid in (PID, -1, os.getppid()):\n    try: os.kill(pid, 0); print('yes')\n    except OSError: pass"
)
_CONNECT = """
import socket
try: socket.create_connection(('127.0.0.1', PORT), timeout=1)
except OSError: pass
"""
_SHELL = "import os, subprocess\nos.system(f'touch {FOLDER}/shell')\nsubprocess.run(['touch', FOLDER + '/run'])"
_FORK = """
import os
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import time; time.sleep(.02); open(FOLDER + '/late', 'w').write('x')
        os._exit(0)
    print('late')
except OSError: pass
"""
_PROCESSES = """
import os
count = 0
for _ in range(100):
    try:
        if os.fork() == 0:
            import time; time.sleep(3); os._exit(0)
        count += 1
    except OSError: break
print(count)
"""
_THREADS = """
import threading
threading.stack_size(1 << 16)
stop, count = threading.Event(), 0
for _ in range(300):
    try: threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError: break
    count += 1
print(count)
"""
_MEMORY = """
kept, megabytes = [], 0
try:
    while megabytes < 1000:
        kept.append(bytearray(1 << 20)); megabytes += 1
except MemoryError: pass
kept.clear()
print(megabytes)
"""
_KERNEL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
calls = {
    'seize': lambda: libc.ptrace(0x4206, PID, 0, 0),  # unlike attaching, it does not stop the process
    'namespaces': lambda: libc.unshare(0x20000),  # with one of mounts it could mount; nothing is mounted here
    'users': lambda: libc.unshare(0x10000000),
}
for name, call in calls.items():
    ctypes.set_errno(0)
    if call() != -1: print('yes', name)
"""
_LIMITS_RAISED = """
import resource
for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
    try: resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)); print('yes', what)
    except (OSError, ValueError): pass
"""
_DESCRIPTORS = """
import os
for number in range(3, 1024):
    try: os.fstat(number); print('yes', number)
    except OSError: pass
"""
_FLOOD = "import os\ntry:\n    while True: os.write(1, b'x' * 65536)\nexcept OSError: pass"
_LEAVE = "try: open('/tmp/left', 'w').write('yes')\nexcept OSError: pass"
_FIND = "try: print(open('/tmp/left').read())\nexcept OSError: pass"

_PROGRAMS: tuple[tuple[str, str, _Held], ...] = (
    ("reads a file of the user", _READ, _no_secret),
    ("changes, removes or adds files of the user", _CHANGE, _folder_as_it_was),
    ("looks into the environment and into other processes", _LOOK, lambda o, b: _no_secret(o, b) and _says_no(o, b)),
    ("signals another process", _SIGNAL, _says_no),
    ("connects to this machine", _CONNECT, _nobody_came),
    ("runs another program", _SHELL, _folder_as_it_was),
    ("leaves a running process behind", _FORK, _folder_as_it_was),
    ("starts many processes", _PROCESSES, _at_most(_LIMITS.processes)),
    ("starts many threads", _THREADS, _at_most(_LIMITS.processes)),
    ("takes a lot of memory", _MEMORY, _at_most(_LIMITS.memory_mb)),
    ("traces, mounts, makes namespaces", _KERNEL, _says_no),
    ("raises its limits", _LIMITS_RAISED, _says_no),
    ("finds descriptors of others", _DESCRIPTORS, _says_no),
    ("writes without end", _FLOOD, lambda output, bait: len(output.stdout) <= _LIMITS.output_bytes),
)

_EQUAL_TO_ALL = (
    "class Any(int):\n    __eq__ = lambda self, other: True\n    __hash__ = int.__hash__\ndef f(x): return Any(3)"
)
_SEARCH = """
import gc, sys
def f(x):
    frame = sys._getframe()
    while frame:
        for value in frame.f_locals.values():
            if value == 271828: return value
        frame = frame.f_back
    return next((o for o in gc.get_objects() if isinstance(o, list) and 271828 in o), [0])[-1]
"""
_CHEATS: tuple[tuple[str, str], ...] = (
    ("exits without an error when it is loaded", "import os\nos._exit(0)"),
    ("exits without an error when it is called", "import os\ndef f(x): os._exit(0)"),
    ("raises SystemExit when it is called", "def f(x): raise SystemExit(0)"),
    ("returns an object that is equal to everything", _EQUAL_TO_ALL),
    (
        "writes a verdict to every descriptor",
        'import os\nfor number in range(64):\n    try: os.write(number, b\'{"passed": true}\\n{"end": true}\\n\')\n'
        "    except OSError: pass\ndef f(x): return 0",
    ),
    ("looks for the expected value in memory and frames", _SEARCH),
)


def attack(sandbox: Sandbox) -> list[Attack]:
    """Try all attacks on a sandbox. Raises SandboxError if one brings it down."""
    sandbox.run(FunctionTests("def f(x): return x", "f", (Case((1,), 1),)), _LIMITS)  # it works at all
    with _bait() as bait:
        found = [
            _tried(name, sandbox.output(Program(bait.fill(code)), _LIMITS), held, bait)
            for name, code, held in _PROGRAMS
        ]
    sandbox.output(Program(_LEAVE), _LIMITS)
    found.append(_tried("leaves a file for the next one", sandbox.output(Program(_FIND), _LIMITS), _says_no, None))
    for name, code in _CHEATS:
        verdict = sandbox.run(FunctionTests(code, "f", (Case((1,), 271828), Case((2,), 31415))), _LIMITS)
        found.append(Attack(name, verdict.passed == 0, f"{verdict.passed} of 2 tests passed"))
    hung = sandbox.output(Program("while True: pass"), replace(_LIMITS, seconds=0.2))
    found.append(Attack("never ends", hung.timed_out, f"ended with {hung.code}"))
    return found


def opened(tier: str, *, processes: int = 1, limits: Limits | None = None) -> Sandbox:
    """A sandbox of this tier, or with `auto` of the strongest that holds. SandboxError if there is none."""
    if tier == "auto":
        return strongest(processes=processes, limits=limits)
    found = next((one for one in TIERS if one == tier), None)
    if found is None:
        raise SandboxError(f"the sandbox has no tier {tier!r}", remedy=suggestion(tier, ("auto", *TIERS)))
    return Sandbox(found, processes=processes, limits=limits)


def strongest(*, processes: int = 1, limits: Limits | None = None) -> Sandbox:
    """A sandbox of the strongest tier that confines and holds against all attacks here. SandboxError if none does."""
    reasons = []
    for tier in TIERS[:-1]:
        try:
            sandbox = Sandbox(tier, processes=processes, limits=limits)
        except TierRefusedError as error:
            reasons.append(str(error).splitlines()[0])
            continue
        try:
            fallen = [one.name for one in attack(sandbox) if not one.held]
        except SandboxError as error:
            fallen = [str(error).splitlines()[0]]
        if not fallen:
            return sandbox
        sandbox.close()
        reasons.append(f"tier {tier!r} does not hold: {', '.join(fallen)}")
    raise SandboxError(
        "no tier of the sandbox confines programs on this machine:\n  " + "\n  ".join(reasons),
        remedy="run on Linux 6.2 or newer; or set sandbox.tier: process, which only limits time and memory, and lets "
        "programs read and change whatever this user can",
    )


def _tried(name: str, output: Output, held: Callable[[Output, _Bait], bool], bait: _Bait | None) -> Attack:
    return Attack(name, held(output, bait), (output.stdout or output.stderr).strip()[-200:])  # type: ignore[arg-type]


@contextmanager
def _bait() -> Iterator[_Bait]:
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="burnish-") as folder, socket.socket() as listener:
        os.chmod(folder, 0o777)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        bait = _Bait(Path(folder), secret, listener)
        bait.file.write_text(secret)
        bait.file.chmod(0o666)
        os.environ[_SECRET_NAME] = secret
        try:
            yield bait
        finally:
            del os.environ[_SECRET_NAME]
