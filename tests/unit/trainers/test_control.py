"""Requests in the folder of a run, heeded between steps."""

from __future__ import annotations

import threading
from pathlib import Path

from watching import wait_for

from burnish.observability.control import ask, asked, take
from burnish.trainers.control import forget_requests, heed_requests
from burnish.trainers.interrupt import StopRequest


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
