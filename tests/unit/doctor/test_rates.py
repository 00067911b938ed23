"""What is measured and how it is counted; never how fast this machine is."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from burnish.doctor import rates
from burnish.doctor.rates import measure_rates, product_seconds


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_SHAPE", (8, 4, 16))
    monkeypatch.setattr(rates, "_MEMORY_BYTES", 4096)


def test_rates_are_work_over_median_time(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second for each run: 8 x 4 x 16 multiply-adds, 4096 bytes."""
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) * 0.25)
    monkeypatch.setattr(rates, "_timed", lambda work, repeats, budget=0.0: [0.1, 0.5, 9.0])
    found = measure_rates(None)
    assert found.products == {"float32": 1024, "float32_fast": 1024, "bfloat16": 1024}
    assert found.memory_read == 8192
    assert found.process_start == 0.5
    assert found.threads == torch.get_num_threads()
    assert measure_rates(20_480).memory_read == 4096  # the tenth part of what is there


def test_all_of_it_runs_and_leaves_the_precision_as_it_was(small: None) -> None:
    before = torch.get_float32_matmul_precision()
    found = measure_rates(1 << 30)
    assert torch.get_float32_matmul_precision() == before
    assert all(rate > 0 for rate in (*found.products.values(), found.memory_read, found.process_start))


def test_a_product_that_does_not_work_here_is_left_out(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(shape: tuple[int, int, int], dtype: torch.dtype, *, repeats: int, budget: float) -> list[float]:
        if dtype == torch.bfloat16:
            raise RuntimeError("could not create a primitive descriptor")
        return [1.0]

    monkeypatch.setattr(rates, "product_seconds", picky)
    assert set(measure_rates(None).products) == {"float32", "float32_fast"}


def test_products_are_repeated_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(product_seconds((2, 2, 2), torch.float32, repeats=7)) == 7
    now = [0.0]

    def slow(*_: object, **__: object) -> None:
        now[0] += 0.4

    monkeypatch.setattr(torch, "mm", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert product_seconds((2, 2, 2), torch.bfloat16, repeats=7, budget=1.0) == pytest.approx([0.4, 0.4])
    assert product_seconds((2, 2, 2), torch.bfloat16, repeats=7, budget=0.1) == pytest.approx([0.4])
