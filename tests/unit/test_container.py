"""Limits of control groups, from file systems made up as Docker, Kubernetes and plain machines have them."""

import os
from pathlib import Path

import pytest

from burnish.machine.resources import ContainerLimits, allowed_cores, container_limits

GIB = 1 << 30
CASES: dict[str, tuple[str, dict[str, str], ContainerLimits]] = {
    "no control groups": ("", {}, ContainerLimits()),
    "second version, inside": (
        "0::/\n",
        {"memory.max": f"{4 * GIB}\n", "cpu.max": "150000 100000\n"},
        ContainerLimits(1.5, 4 * GIB),
    ),
    "second version, no limits": ("0::/\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"}, ContainerLimits()),
    "second version, the lowest above counts": (
        "0::/user.slice/job.scope\n",
        {
            "user.slice/memory.max": f"{2 * GIB}",
            "user.slice/job.scope/memory.max": f"{8 * GIB}",
            "user.slice/job.scope/cpu.max": "400000 100000",
            "user.slice/cpu.max": "max 100000",
        },
        ContainerLimits(4.0, 2 * GIB),
    ),
    "first version, inside, with the machine's path": (
        "9:memory:/docker/0123\n5:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n",
        {
            "memory/memory.limit_in_bytes": f"{GIB}",
            "cpu,cpuacct/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        ContainerLimits(0.5, GIB),
    ),
    "first version, no limits": (
        "9:memory:/\n5:cpu:/\n",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
        },
        ContainerLimits(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_lowest_limit_of_both_versions(case: str, tmp_path: Path) -> None:
    groups, files, expected = CASES[case]
    if groups:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert container_limits(tmp_path) == expected


def test_cores_that_may_be_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    cores = [allowed_cores(ContainerLimits(processors=limit)) for limit in (None, 64.0, 2.0, 1.5, 0.1)]
    assert cores == [6, 6, 2, 2, 1]
