"""Signs of life, seen from both sides."""

import os

import pytest

from burnish.distributed import pulse
from burnish.distributed.pulse import Pulse, PulseWatch


def test_beats_and_progress_are_seen_by_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now)
    ours = Pulse.new()
    theirs = Pulse(os.dup(ours.descriptor))
    watch = PulseWatch(ours.read)
    now = 200.0
    watch.look()
    assert watch.silent_seconds == 100.0  # it may be stopped before its first beat
    theirs.beat()
    watch.look()
    now = 203.0
    theirs.progress()
    watch.look()
    now = 204.0
    assert (watch.silent_seconds, watch.idle_seconds) == (4.0, 1.0)
    watch.restart()
    assert (watch.silent_seconds, watch.idle_seconds) == (0.0, 0.0)
    assert ours.read() == (1, 1)
    theirs.close()
    ours.close()
    ours.close()
