"""An optimizer in slices: the bits of one that has everything, on any number of processes (threads in these tests)."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from burnish.errors import CheckpointError, ModelError
from burnish.forward import team as teams
from burnish.forward.lanes import Lanes
from burnish.forward.team import PeerFailedError, Slices
from burnish.models.optimizers import OptimizerSettings, WeightOptimizer
from burnish.models.sharded_optimizer import ShardedOptimizer, optimizer_for

Result = TypeVar("Result")
Parameters = list[tuple[str, nn.Parameter]]
SHAPES = ((256,), (7,), (3, 100), (40, 33), (5, 1024), (2, 3, 700), (1,), (20, 256))
"""One row, less than one, a row and a rest, whole rows, many rows and a rest, many whole rows."""
LANES = 12


class Table:
    """Where the members of a team put things down for each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._given: list[Any] = [None] * size

    def put(self, rank: int, thing: Any) -> list[Any]:
        self._given[rank] = thing
        self._barrier.wait(timeout=30)
        given = list(self._given)
        self._barrier.wait(timeout=30)
        return given


@dataclass
class ThreadTeam:
    """`forward.team.Team` of threads of one process."""

    rank: int
    table: Table

    @property
    def size(self) -> int:
        return self.table.size

    def exchange(self, own: object) -> list[Any]:
        return self.table.put(self.rank, own)

    def swap(self, sent: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
        received = [vectors[self.rank].clone() for vectors in self.table.put(self.rank, sent)]
        assert [vector.numel() for vector in received] == list(lengths)
        return received

    def gather(self, own: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        everyones = [vector.clone() for vector in self.table.put(self.rank, own)]
        assert [vector.numel() for vector in everyones] == list(lengths)
        return everyones


def on_team(size: int, work: Callable[[Lanes], Result], *, sharded: bool = True) -> list[Result]:
    """What `work` returns in each process of a team."""
    table = Table(size)

    def run(rank: int) -> Result:
        team = ThreadTeam(rank, table)
        return work(Lanes(LANES, team, Slices(team) if sharded else None))

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def weights(dtype: torch.dtype = torch.float32) -> Parameters:
    generator = torch.Generator().manual_seed(3)
    return [
        (f"weight {number}", nn.Parameter(torch.randn(shape, generator=generator).to(dtype)))
        for number, shape in enumerate(SHAPES)
    ]


def settings(**fields: Any) -> OptimizerSettings:
    return OptimizerSettings(0.01, 20, weight_decay=0.1, schedule="linear", **fields)


def begun(lanes: Lanes, dtype: torch.dtype = torch.float32, **fields: Any) -> tuple[Parameters, WeightOptimizer]:
    parameters = weights(dtype)
    return parameters, optimizer_for(parameters, settings(**fields), lanes)


def accumulate(lanes: Lanes, parameters: Parameters, step: int, *, size: float = 1.0) -> None:
    """One part of a step; the second weight is reached in odd steps only, and the fourth by a single micro-batch."""
    generator = torch.Generator().manual_seed(step)
    parts = [[torch.randn(shape, generator=generator) * size for shape in SHAPES] for _ in range(13)]
    with lanes.adding(list(enumerate(parts)), [3, 5, 1, *range(10)], [p for _, p in parameters], list[float]()) as own:
        for number, gradients in own:
            for index, ((_, parameter), gradient) in enumerate(zip(parameters, gradients, strict=True)):
                if (index != 1 or step % 2) and (index != 3 or number == 4):
                    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient


def train(optimizer: WeightOptimizer, lanes: Lanes, parameters: Parameters, steps: range, **named: Any) -> list[float]:
    norms = []
    for step in steps:
        accumulate(lanes, parameters, 2 * step, **named)
        accumulate(lanes, parameters, 2 * step + (step % 2), **named)
        norm = optimizer.grad_norm()
        optimizer.step(step, norm)
        norms.append(float(norm))
    return norms


def bits(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def all_bits(parameters: Parameters) -> list[str]:
    return [bits(parameter) for _, parameter in parameters]


def state_bits(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: state_bits(value) for key, value in state.items()}
    return (tuple(state.shape), bits(state)) if isinstance(state, Tensor) else state


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a tensor travels in several pieces, and a piece holds parts of several tensors."""
    monkeypatch.setattr(teams, "PIECE_NUMBERS", 3001)


@pytest.mark.slow_cases("[34]-*", "2-adam_tf-torch.float32", "2-adamw-torch.bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["adamw", "adam_tf"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_bits_of_one_process(size: int, kind: str, dtype: torch.dtype) -> None:
    def work(lanes: Lanes) -> tuple[list[float], list[str], Any]:
        parameters, optimizer = begun(lanes, dtype, optimizer=kind)
        norms = train(optimizer, lanes, parameters, range(4))
        return norms, all_bits(parameters), state_bits(optimizer.state())

    norms, expected, state = work(Lanes(LANES))
    for sharded in (True, False):
        results = on_team(size, work, sharded=sharded)
        for found_norms, found, _ in results:
            assert found_norms == norms
            assert found == expected
        assert results[0][2] == state
        assert all(result[2] == {} for result in results[1:])


@pytest.mark.parametrize("size", [1e-25, 0.0, 1e25, float("inf")], ids=["tiny", "zero", "huge", "infinite"])
def test_norms_beyond_the_squares_of_float32(size: float) -> None:
    def work(lanes: Lanes) -> str:
        parameters, optimizer = begun(lanes)
        accumulate(lanes, parameters, 1, size=size)
        return repr(float(optimizer.grad_norm()))

    assert on_team(3, work) == [work(Lanes(LANES))] * 3


def test_a_gradient_of_zero_moves_what_momentum_moves() -> None:
    def work(lanes: Lanes) -> list[str]:
        parameters, optimizer = begun(lanes)
        train(optimizer, lanes, parameters, range(2))
        optimizer.zero()
        optimizer.step(2, optimizer.grad_norm())
        return all_bits(parameters)

    assert on_team(2, work) == [work(Lanes(LANES))] * 2


def test_no_gradient_has_the_norm_0() -> None:
    assert on_team(2, lambda lanes: float(optimizer_for(weights(), settings(), lanes).grad_norm())) == [0.0, 0.0]


@pytest.mark.slow_cases("(4, 3)-torch.bfloat16", "(4, 3)-torch.float32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(2, 1), (1, 4), (4, 3)], ids=str)
def test_a_state_continues_on_another_number_of_processes(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    def straight(lanes: Lanes) -> list[str]:
        parameters, optimizer = begun(lanes, dtype)
        train(optimizer, lanes, parameters, range(4))
        return all_bits(parameters)

    def first(lanes: Lanes) -> tuple[Any, list[Tensor]]:
        parameters, optimizer = begun(lanes, dtype)
        train(optimizer, lanes, parameters, range(2))
        return optimizer.state(), [parameter.detach() for _, parameter in parameters]

    def second(lanes: Lanes) -> list[str]:
        parameters, optimizer = begun(lanes, dtype)
        with torch.no_grad():
            for (_, parameter), value in zip(parameters, values, strict=True):
                parameter.copy_(value)
        optimizer.refresh()
        optimizer.load_state(state)
        train(optimizer, lanes, parameters, range(2, 4))
        return all_bits(parameters)

    state, values = on_team(sizes[0], first)[0]
    expected = straight(Lanes(LANES))
    assert on_team(sizes[1], second) == [expected] * sizes[1]
    assert second(Lanes(LANES)) == expected
    state, values = first(Lanes(LANES))
    assert on_team(sizes[0], second) == [expected] * sizes[0]


@pytest.mark.parametrize(("dtype", "each"), [(torch.float32, 8), (torch.bfloat16, 12)], ids=str)
def test_no_process_keeps_more_than_its_slice(dtype: torch.dtype, each: int) -> None:
    """Bytes of moments and masters: 8 or 12 a number, divided by the processes up to a row a tensor."""
    numbers = sum(parameter.numel() for _, parameter in weights())

    def work(lanes: Lanes) -> tuple[int, int]:
        parameters, optimizer = begun(lanes, dtype)
        assert isinstance(optimizer, ShardedOptimizer)
        accumulate(lanes, parameters, 1)
        assert all(parameter.grad is None for _, parameter in parameters)
        own = [lanes.slices[parameter] for _, parameter in parameters]
        gradients = sum(part.grad.untyped_storage().nbytes() for part in own if part.grad is not None)
        optimizer.step(0, optimizer.grad_norm())
        masters = [part for part, (_, whole) in zip(own, parameters, strict=True) if part.dtype is not whole.dtype]
        held = [*masters, *(value for moments in optimizer._adam.state.values() for value in moments.values())]
        return sum(tensor.untyped_storage().nbytes() for tensor in held), gradients

    found = on_team(4, work)
    assert sum(state for state, _ in found) == each * numbers + 4 * 4 * len(SHAPES)  # and Adam's counts of steps
    assert sum(gradients for _, gradients in found) == 4 * numbers
    for state, gradients in found:
        assert state <= each * (numbers // 4 + 256 * len(SHAPES))
        assert gradients <= 4 * (numbers // 4 + 256 * len(SHAPES))


def test_a_failure_in_one_process_ends_the_step_in_all() -> None:
    def work(lanes: Lanes) -> str:
        parameters, optimizer = begun(lanes)
        accumulate(lanes, parameters, 1)
        norm = optimizer.grad_norm() if lanes.team.rank else torch.ones(3)  # which clipping cannot multiply by
        lanes.team.rank or optimizer.grad_norm()
        try:
            optimizer.step(0, norm)
        except (RuntimeError, PeerFailedError) as error:
            return type(error).__name__
        return "none"

    assert on_team(2, work) == ["RuntimeError", "PeerFailedError"]


def test_a_state_of_other_shapes_is_refused() -> None:
    def work(lanes: Lanes) -> None:
        with pytest.raises(CheckpointError, match=r"'weight 0' \(2,\)"):
            optimizer_for(weights(), settings(), lanes).load_state(
                {"moments": {"weight 0": {"exp_avg": torch.zeros(2)}}, "masters": {}}
            )

    on_team(2, work)


def test_a_weight_that_is_not_contiguous_is_refused() -> None:
    def work(lanes: Lanes) -> None:
        with pytest.raises(ModelError, match=r"shape \(3, 2\) is not contiguous"):
            optimizer_for([("turned", nn.Parameter(torch.zeros(2, 3).T))], settings(), lanes)

    on_team(2, work)
