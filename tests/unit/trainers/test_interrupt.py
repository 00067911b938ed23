"""Requests to stop: by signals, and in the folder of a run, heeded between steps."""

import signal
import threading
from pathlib import Path

import pytest
from watching import wait_for

from burnish.observability.control import ask, asked, take
from burnish.trainers import interrupt
from burnish.trainers.interrupt import StopRequest, forget_requests, graceful_stop, heed_requests


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


def test_nothing_is_asked_for_and_nothing_written(tmp_path: Path) -> None:
    assert not heed_requests(tmp_path, StopRequest(), lambda: 1 / 0, lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_each_request_is_heeded_once(tmp_path: Path) -> None:
    saved: list[int] = []
    ask(tmp_path, "save")
    assert not heed_requests(tmp_path, StopRequest(), lambda: saved.append(1), lambda text: None)
    assert (saved, asked(tmp_path)) == ([1], [])
    ask(tmp_path, "stop")
    assert heed_requests(tmp_path, StopRequest(), lambda: saved.append(2), lambda text: None)
    assert (saved, asked(tmp_path)) == ([1], [])


def test_a_pause_lasts_until_it_is_withdrawn_and_saving_works_meanwhile(tmp_path: Path) -> None:
    saved: list[int] = []
    said: list[str] = []
    ask(tmp_path, "pause")
    heeding = threading.Thread(
        target=heed_requests, args=(tmp_path, StopRequest(), lambda: saved.append(1), said.append)
    )
    heeding.start()
    wait_for(lambda: bool(said))
    ask(tmp_path, "save")
    wait_for(lambda: saved == [1])
    assert heeding.is_alive()
    take(tmp_path, "pause")
    heeding.join(20)
    assert not heeding.is_alive()
    assert len(said) == 1


def test_what_was_asked_of_an_earlier_start_is_forgotten(tmp_path: Path) -> None:
    ask(tmp_path, "stop")
    ask(tmp_path, "pause")
    forget_requests(tmp_path)
    assert asked(tmp_path) == []


def test_a_request_that_cannot_be_removed_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "control" / "stop").mkdir(parents=True)
    assert not heed_requests(tmp_path, StopRequest(), lambda: None, lambda text: None)
