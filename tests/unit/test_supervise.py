"""What processes start ends with them, and nothing else does."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, time
from burnish.outside.supervise import adopt_orphans, depend_on, end_children, has_children, reap

def forked(work):
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        depend_on(parent)
        work()
        time.sleep(60)
    return pid

def leave_an_orphan():
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    os._exit(3)

adopt_orphans()
kept, ended = forked(lambda: None), forked(leave_an_orphan)
while ended not in (found := reap()[0]):
    pass
print(found[ended])
others = end_children({kept})
print(kept in others, set(others.values()), has_children())
print(end_children() == {kept: -signal.SIGKILL}, has_children())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt the orphans below it")
def test_all_children_but_the_known_ones_are_ended() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["3", "False {-9} True", "True False"]
