"""State that rests gives up its memory and comes back with the same bits, whatever happens to its resting place."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from burnish.errors import OffloadError
from burnish.models.optimizers import OptimizerSettings, WeightOptimizer
from burnish.models.resting import Resting, RestingFile, RestingHostMemory, RestingPlace, own_memory, resting_place

FULL = OSError(28, "No space left on device")
SETTINGS = OptimizerSettings(learning_rate=0.1, total_steps=10, weight_decay=0.1)


@pytest.fixture(params=["file", "host memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> RestingPlace:
    return RestingFile(tmp_path) if request.param == "file" else RestingHostMemory()


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_bits_views_and_identity_survive(place: RestingPlace) -> None:
    weight, odd, half = numbers(300, 7), numbers(5), numbers(64).bfloat16()
    weight[0, :2] = torch.tensor([float("nan"), -0.0])
    view, twin = weight[3], weight.view(-1)
    before = [tensor.clone().view(torch.uint8) for tensor in (weight, odd, half)]
    resting = Resting("reference", place, lambda: [weight, odd, half, twin])
    for _ in range(3):
        assert resting.num_bytes == 300 * 7 * 4 + 5 * 4 + 64 * 2
        assert view.untyped_storage().data_ptr() == 0  # a mistake of ours would fail, and get no wrong numbers
        with resting.awake():
            assert resting.num_bytes == 0
            assert all(map(torch.equal, [tensor.view(torch.uint8) for tensor in (weight, odd, half)], before))
            assert torch.equal(view, weight[3])
            assert weight.data_ptr() % 64 == 0  # aligned as before, because products round by alignment


def test_copies_to_pinned_memory_are_queued_together_and_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, which the CPU plays here: in blocks, and memory is given up after all numbers have arrived."""
    events: list[object] = []
    copy = Tensor.copy_

    def copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        events.append(non_blocking)
        return copy(target, source)

    weight, other = numbers(30, 7), numbers(5)
    before, tail = weight.clone(), other.clone()
    empty = torch.empty
    monkeypatch.setattr("burnish.models.resting.BLOCK_BYTES", 512)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    waits = lambda device: events.append((weight.untyped_storage().nbytes(), "waits"))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "synchronize", waits)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **how: empty(*size, **how))
    monkeypatch.setattr(Tensor, "copy_", copied)
    resting = Resting("critic", RestingHostMemory(), lambda: [weight, other])
    assert events == [True, True, True, (840, "waits")]
    with resting.awake():
        assert events[4:] == [True, True, True]
        assert torch.equal(weight, before)
        assert torch.equal(other, tail)


def test_changes_made_while_awake_are_kept(place: RestingPlace) -> None:
    weight = numbers(10, 10)
    resting = Resting("critic", place, lambda: [weight])
    for number in range(3):
        with resting.awake():
            weight.fill_(number)
        with resting.awake():
            assert torch.equal(weight, torch.full((10, 10), float(number)))


def test_what_never_changes_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, place = numbers(10, 10), RestingFile(tmp_path)
    written = []
    keep = place.keep
    monkeypatch.setattr(place, "keep", lambda storages: (written.append(len(storages)), keep(storages)))
    resting = Resting("reference", place, lambda: [weight], changes=False)
    for _ in range(2):
        with resting.awake():
            assert torch.equal(weight, numbers(10, 10))
    assert written == [1]


def test_blocks_within_blocks_and_in_threads_are_one_phase(tmp_path: Path) -> None:
    weight = numbers(100, 100)
    resting = Resting("reference", RestingFile(tmp_path), lambda: [weight])

    def read(_: int) -> bool:
        with resting.awake():
            return torch.equal(weight, numbers(100, 100))

    with resting.awake():
        with resting.awake():
            pass
        assert weight.untyped_storage().nbytes() > 0
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(100)))
    assert weight.untyped_storage().nbytes() == 0


def test_an_error_in_a_phase_ends_the_phase(tmp_path: Path) -> None:
    weight = numbers(10)
    resting = Resting("reference", RestingFile(tmp_path), lambda: [weight])
    with pytest.raises(ValueError, match="in the phase"), resting.awake():
        raise ValueError("in the phase")
    assert resting.num_bytes == 40
    assert list(tmp_path.iterdir()) == []  # the file has no name


@pytest.mark.parametrize("function", ["posix_fallocate", "pwrite"])
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    weight = numbers(10, 10)
    place = RestingFile(tmp_path)
    monkeypatch.setattr(os, function, Mock(side_effect=FULL))
    with pytest.raises(OffloadError) as caught:
        Resting("policy's optimizer", place, lambda: [weight])
    text = str(caught.value)
    assert f"the policy's optimizer cannot rest in a file in {tmp_path}, which takes 400 B: No space left" in text
    assert torch.equal(weight, numbers(10, 10))


def test_a_disk_that_fills_up_is_said_once_and_the_state_can_still_be_read(tmp_path, monkeypatch) -> None:
    weight = numbers(10, 10)
    resting = Resting("critic", RestingFile(tmp_path), lambda: [weight])

    def phase() -> None:
        with resting.awake():
            weight.add_(1)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Mock(side_effect=FULL))
        with pytest.raises(OffloadError, match="the critic cannot rest"):
            phase()
    with resting.awake():
        assert torch.equal(weight, numbers(10, 10) + 1)
    assert torch.equal(weight, numbers(10, 10) + 1)


def test_no_pinned_memory_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, place = numbers(10, 10), RestingHostMemory()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", Mock(side_effect=RuntimeError("not enough memory: you tried to allocate 400 B")))
        with pytest.raises(OffloadError, match="cannot rest in host memory, which takes 400 B: not enough memory"):
            Resting("critic", place, lambda: [weight])
    assert torch.equal(weight, numbers(10, 10))


def test_state_that_cannot_be_read_back_stays_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = numbers(10, 10)
    resting = Resting("reference", RestingFile(tmp_path), lambda: [weight])

    def phase() -> bool:
        with resting.awake():
            return torch.equal(weight, numbers(10, 10))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", Mock(side_effect=FULL))
        with pytest.raises(OffloadError, match="cannot come back from a file in"):
            phase()
    assert phase()


def test_a_mapped_file_is_copied_first(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_bytes(numbers(10, 10).numpy().tobytes())
    module = nn.Linear(10, 10, bias=False)
    module.weight.data = torch.from_file(str(tmp_path / "numbers"), size=100).view(10, 10)
    assert not module.weight.untyped_storage().resizable()
    own_memory(module)
    assert module.weight.untyped_storage().resizable()
    assert torch.equal(module.weight, numbers(10, 10))


def test_the_place_follows_the_device(tmp_path: Path) -> None:
    assert isinstance(resting_place(torch.device("cpu"), tmp_path), RestingFile)
    assert isinstance(resting_place(torch.device("cuda:0"), tmp_path), RestingHostMemory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw", "adam_tf"])
def test_steps_are_those_of_an_optimizer_that_does_not_rest(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    settings = OptimizerSettings(learning_rate=0.1, total_steps=10, weight_decay=0.1, optimizer=name)

    def trained(*, rests: bool) -> tuple[list[Tensor], object]:
        weights = [nn.Parameter(numbers(30, 20).to(dtype)), nn.Parameter(numbers(7).to(dtype))]
        optimizer = WeightOptimizer([("a", weights[0]), ("b", weights[1])], settings)
        if rests:
            optimizer.rest("policy's optimizer", tmp_path)
        for step in range(4):
            for weight in weights:
                weight.grad = (numbers(*weight.shape) * (step + 1)).to(weight.grad_dtype or dtype)
            optimizer.step(step, optimizer.grad_norm())
            if step == 1:  # as when a checkpoint is written, and read
                optimizer.load_state(optimizer.state())
            if step == 2:
                optimizer.refresh()
        return [weight.detach().clone() for weight in weights], flat(optimizer.state())

    expected, found = trained(rests=False), trained(rests=True)
    assert all(map(torch.equal, found[0], expected[0]))
    assert found[1] == expected[1]


def flat(state: object) -> object:
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, Tensor) else state


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float32, 8), (torch.bfloat16, 12)])
def test_moments_and_masters_rest_and_weights_do_not(tmp_path: Path, dtype: torch.dtype, bytes_each: int) -> None:
    weight = nn.Parameter(numbers(30, 20).to(dtype))
    optimizer = WeightOptimizer([("a", weight)], SETTINGS)
    optimizer.rest("policy's optimizer", tmp_path)
    assert optimizer.resting.num_bytes == 600 * (bytes_each - 8)  # there are no moments yet
    weight.grad = torch.ones(30, 20)
    optimizer.step(0, optimizer.grad_norm())
    assert optimizer.resting.num_bytes == 600 * bytes_each
    assert weight.isfinite().all()
