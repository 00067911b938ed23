"""Which signal asks to stop, and which one stops at once."""

from __future__ import annotations

import signal

import pytest

from burnish.trainers import interrupt
from burnish.trainers.interrupt import graceful_stop


def ask_twice(first: signal.Signals, second: signal.Signals) -> None:
    with graceful_stop(lambda text: None):
        signal.raise_signal(first)
        signal.raise_signal(second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_sent_twice_at_once_is_one(number: signal.Signals) -> None:
    said: list[str] = []
    with graceful_stop(said.append) as stop:
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert stop.requested
    assert said == ["stopping after this step, then saving (once more to stop now)"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_comes_later_stops_now(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setattr(interrupt, "_ECHO_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        ask_twice(number, number)


def test_a_second_ctrl_c_stops_now_however_soon() -> None:
    with pytest.raises(KeyboardInterrupt):
        ask_twice(signal.SIGTERM, signal.SIGINT)
