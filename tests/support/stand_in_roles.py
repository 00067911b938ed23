"""Roles for processes that tests start: they answer, fail, wait and die as they are asked to."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from burnish.errors import DivergenceError, ModelError
from burnish.models.weights import Weights


class Odd(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


class Role:
    version = 3

    def __init__(self) -> None:
        self.taken: dict[str, torch.Tensor] = {}

    def echo(self, value: object, *, twice: bool = False) -> object:
        return (value, value) if twice else value

    def raises(self, what: str) -> None:
        if what == "divergence":
            raise DivergenceError("loss is nan", remedy="lower it")
        if what == "odd":
            raise Odd("one", "two")
        raise EOFError

    def sleeps(self) -> None:
        time.sleep(600)

    def trains(self, micro_batches: int) -> None:
        layer = torch.nn.Linear(1, 1)
        for _ in range(micro_batches):
            layer(torch.ones(1))
            time.sleep(0.1)

    def trains_or_waits(self) -> None:
        if os.environ["WORKS"] == "yes":
            self.trains(40)
        else:
            time.sleep(3)

    def diverges_late(self) -> None:
        time.sleep(float(os.environ["DELAY"]))
        raise DivergenceError(f"loss is nan after {os.environ['DELAY']}", remedy="lower it")

    def dies(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def unpicklable(self) -> object:
        return lambda: None

    def threads(self) -> int:
        return torch.get_num_threads()

    def publish(self) -> Weights:
        tensors = [("a", torch.arange(6.0)), ("b", torch.ones(2, 2, dtype=torch.bfloat16))]
        return Weights(self.version, lambda: iter(tensors))

    def sync(self, weights: Weights) -> None:
        if weights.version == 13:
            raise ModelError("no such tensor")
        if weights.version != 12:  # an engine need not read them
            self.taken = dict(weights.tensors())
        self.version = weights.version

    def read(self) -> dict[str, torch.Tensor]:
        return self.taken

    def generate_until(
        self, what: str, *, stopped: Callable[[], bool], on_finished: Callable[[Sequence[Any]], None]
    ) -> tuple[list[str], list[int]]:
        tokens = 0
        while what == "until it is stopped" and not stopped():
            on_finished([])
            time.sleep(0.01)
            tokens += 1
        return [what], [tokens]

    def take_metrics(self) -> dict[str, Any]:
        return {}


@contextlib.contextmanager
def roles(left: Path | None = None) -> Iterator[dict[str, Role]]:
    yield {"policy": Role(), "engine": Role()}
    if left is not None:
        left.write_text("left")


@contextlib.contextmanager
def broken() -> Iterator[dict[str, Role]]:
    raise ModelError("there is no model")
    yield {}


@contextlib.contextmanager
def slow() -> Iterator[dict[str, Role]]:
    time.sleep(60)
    yield {}
