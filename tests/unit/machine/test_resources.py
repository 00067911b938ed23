"""Names of GPUs, and shares of them."""

import pytest

from burnish.machine.resources import gpu_number, gpu_shares


def test_a_gpu_is_named_as_this_process_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert [gpu_number(index) for index in range(3)] == ["4", "6", ""]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu_number(2) == "2"


def test_processes_get_equal_shares_or_share_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_shares(2, 5) == ["0,1", "2,3"]
    assert gpu_shares(3, 2) == [None, None, None]
    assert gpu_shares(1, 0) == [None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,3,GPU-2")
    assert gpu_shares(2, 4) == ["7,6", "3,GPU-2"]
