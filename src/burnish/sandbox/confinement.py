"""Confinement of the processes of the sandbox: the preparations, made once, and the steps of each candidate."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from burnish.outside.frames import can_be_read
from burnish.outside.supervise import Child, Forked, adopt_orphans, end_with, end_with_parent, fork, limit
from burnish.sandbox import kernel, seccomp
from burnish.sandbox.job import Limits

Tier = Literal["namespaces", "landlock", "process"]
TIERS: tuple[Tier, ...] = ("namespaces", "landlock", "process")
"""From the strongest to the weakest. Each has what the next one has, and more."""

_LIBRARIES = ("/usr/lib", "/lib", "/lib64", "/usr/lib64", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/zero")
_UNPRIVILEGED = kernel.MS_NOSUID | kernel.MS_NODEV
_LOOK_SECONDS = 30.0
_SPARE_USERS = 1_500_000_000
"""User ids from here on, one for each warm parent, belong to nobody on a usual system."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """Preparations of a warm parent. user: the id that its candidates get; None for the parent's own. alone: whether no
    other process counts towards the same limit of processes."""

    tier: Tier
    user: int | None
    alone: bool
    own_memory: int
    """Bytes of address space that Python itself takes."""


def prepare(tier: Tier) -> Confinement:
    """Make the warm parent ready for candidates of this tier. Raises OSError where the machine does not allow it."""
    adopt_orphans()
    is_root = os.geteuid() == 0
    own_memory = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    if tier == "namespaces":
        _leave_the_machine(is_root)
        return Confinement(tier, _spare_user() if is_root else None, True, own_memory)
    if tier == "landlock" and kernel.landlock_version() < kernel.COVERS_TRUNCATION:
        raise OSError("it needs the Landlock of Linux 6.2 or newer, turned on")
    user = _spare_user() if is_root and _can_read_python(_spare_user()) else None
    return Confinement(tier, user, user is not None, own_memory)


def confine(confinement: Confinement, limits: Limits, parent: int) -> None:
    """Confine this process of the sandbox before it reads the code, in this order: later steps need what earlier ones
    allow. It has its descriptors already. Returns in another process in a tier with namespaces. From now on it ends
    when its parent, the process `parent`, does, however that ends."""
    end_with(parent)
    shadow = _enter_own_namespaces(limits) if confinement.tier == "namespaces" else None
    os.chdir("/" if shadow is None else "/tmp")
    os.setsid()
    is_root = confinement.user is None and os.geteuid() == 0
    threads = confinement.alone or not is_root  # root has no limit of processes
    _limit(confinement, limits)
    if confinement.user is not None:
        os.setgroups([])
        os.setresgid(confinement.user, confinement.user, confinement.user)
        os.setresuid(confinement.user, confinement.user, confinement.user)
        if shadow is None:
            end_with(parent)  # changing the user has undone it
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if confinement.tier == "process":
        return
    kernel.drop_capabilities()
    if shadow is not None:
        _end_with(shadow)  # changing the user would undo it
    if kernel.landlock_version():
        kernel.restrict_files(readable_paths(), [*_DEVICES, *(["/tmp"] if confinement.tier == "namespaces" else [])])
    seccomp.restrict(threads=threads)


def readable_paths() -> list[str]:
    """Return the folders of Python and its packages, and of the libraries that they load."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {sysconfig.get_path(name) for name in names} | {sysconfig.get_config_var("DESTSHARED")}
    return [*sorted(path for path in found if path and os.path.isdir(path)), *filter(os.path.isdir, _LIBRARIES)]


def _limit(confinement: Confinement, limits: Limits) -> None:
    limit(
        {
            resource.RLIMIT_CPU: max(1, math.ceil(limits.processor_seconds)),
            resource.RLIMIT_AS: confinement.own_memory + limits.memory_mb * 2**20,
            resource.RLIMIT_FSIZE: limits.output_bytes,
            resource.RLIMIT_NOFILE: limits.files,
            resource.RLIMIT_NPROC: limits.processes + (0 if confinement.alone else _tasks_of_this_user()),
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }
    )


def _tasks_of_this_user() -> int:
    """Number of threads that already count towards this user's limit."""
    own, count = os.getuid(), 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == own:
                    count += len(os.listdir(f"{entry.path}/task"))
    return count


def _spare_user() -> int:
    return _SPARE_USERS + os.getpid()


def _can_read_python(user: int) -> bool:
    """Return whether this user can read the standard library, which may be in a folder that only root enters."""

    def look() -> int:
        os.setresuid(user, user, user)
        return 0 if os.access(sysconfig.get_path("stdlib"), os.R_OK | os.X_OK) else 1

    return Child(Forked(fork(look))).status(_LOOK_SECONDS) == 0


def _leave_the_machine(is_root: bool) -> None:
    """A root of our own with nothing in it but Python, read-only, and no network."""
    user, group, paths = os.getuid(), os.getgid(), readable_paths()
    everything = kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    kernel.unshare(everything if is_root else everything | kernel.CLONE_NEWUSER)
    if not is_root:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    root = tempfile.mkdtemp(prefix="burnish-sandbox-")
    here = os.open(root, os.O_PATH | os.O_CLOEXEC)
    kernel.mount("sandbox", root, "tmpfs", _UNPRIVILEGED, "mode=755,size=1m")
    for path in _outermost(paths):
        _show(path, root + path, kernel.MS_RDONLY | kernel.MS_NODEV)
    for device in _DEVICES:
        _show(device, root + device, 0)
    for folder in ("/tmp", "/old"):
        os.mkdir(root + folder)
    kernel.pivot_root(root, root + "/old")
    os.chdir("/")
    with contextlib.suppress(OSError):
        os.rmdir("/old" + root)  # the empty folder that the root was mounted on, outside
    os.close(here)
    kernel.unmount("/old")
    os.rmdir("/old")
    kernel.mount("none", "/", "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _UNPRIVILEGED)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Leave out the paths that are beneath another one."""
    real = sorted(set(paths))
    return [path for path in real if not any(path.startswith(other + "/") for other in real if other != path)]


def _show(source: str, target: str, flags: int) -> None:
    """Bind a file or folder into the new root."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    kernel.mount(source, target, "", kernel.MS_BIND | kernel.MS_REC)
    if flags:
        # A user namespace may not take away flags that the mount had outside.
        had = os.statvfs(source).f_flag & (_UNPRIVILEGED | kernel.MS_NOEXEC)
        kernel.mount("none", target, "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_NOSUID | flags | had)


def _end_with(shadow: int) -> None:
    """Be killed when the process at the other end of this pipe ends."""
    end_with_parent()
    if can_be_read(shadow, 0):  # it ended before that
        os._exit(1)
    os.close(shadow)


def _enter_own_namespaces(limits: Limits) -> int:
    """Give this candidate its own process ids and /tmp. What returns is a child; the parent becomes its shadow, which
    ends as the child ends. Returns the end of a pipe that the shadow holds as long as it lives."""
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
    kernel.mount("tmp", "/tmp", "tmpfs", _UNPRIVILEGED, f"mode=1777,nr_inodes=256,size={4 * limits.output_bytes}")
    shadow, alive = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(alive)
        return shadow
    os.dup2(alive, 0)
    kernel.close_from(1)  # only the child is to hold the ends of its pipes
    code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
    if code in (-signal.SIGKILL, -signal.SIGXCPU, -signal.SIGSEGV):
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)
