"""Python's search for garbage rests inside, and is as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from burnish.machine.garbage import uncollected


@pytest.fixture(autouse=True)
def searching() -> Iterator[None]:
    gc.enable()
    frozen = gc.get_freeze_count()
    yield
    gc.enable()
    if not frozen:
        gc.unfreeze()


def test_it_rests_inside_and_goes_on_afterwards_whatever_happens() -> None:
    with uncollected(), uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        raise KeyError
    assert gc.isenabled()


def test_who_had_turned_it_off_finds_it_off() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_only_what_lasts_is_left_out_of_later_searches() -> None:
    before = gc.get_freeze_count()
    with uncollected():
        kept = [[]]
    assert gc.get_freeze_count() == before
    with uncollected(lasting=True):
        kept += [[]]
    assert gc.get_freeze_count() > before
    assert len(kept) == 2
