"""Decoding steps of fixed shapes, several per look at their tokens, captured as CUDA graphs where possible.

Everything that a step depends on lies on the device, at fixed addresses: each slot's newest token, its position, noise
key, token count and limit, and whether it is done. A step computes the logits, draws a token for every slot, records it
and moves on. A slot that is done feeds its token again, so that its cache stays as it was. The host reads the tokens
once per block. It may find that a row had ended before (by a stop text, which only the host can see), and drops the
tokens after that.

On a GPU such a step is some hundred kernels of a few microseconds, and launching them one by one takes longer than
running them. A captured step is one launch. It holds for one `Shape` and one kind of sampling, and as long as weights
and cache stay where they are. B steps of a block, R rows, S slots (the first of them rows).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.errors import RolloutError
from burnish.forward.fast_paths import failure
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.decoders import PromptedRows
from burnish.rollouts.noise import uniforms
from burnish.rollouts.sampling import sample

TOKEN, POSITION, KEY, COUNT, LIMIT = range(5)
"""Numbers of a row, in this order: its newest token and that token's position, its noise key, the number of tokens
sampled, and their limit."""
BLOCK = 8
"""Steps between looks at the tokens: a row that has ended wastes half of them on average, a look stalls the device."""
_FIRST_BUCKET, _LARGEST_STEP = 64, 1024
_MOST_GRAPHS = 64

Step = Callable[[], None]
Capture = Callable[[Step], Step]
"""Function that runs a step, captures it, and returns a function that replays it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a pass: slots and the columns that it reads of each; if prompts are kept once, their number, the rows
    per prompt (0: any), and their columns."""

    slots: int
    prompts: int
    rows: int
    columns: int
    prompt_columns: int


class SlottedPass(Protocol):
    """A model's pass over the newest tokens of all slots, and the cache that it reads and writes."""

    @property
    def cache(self) -> PromptedRows: ...

    def fit(self, slots: int, positions: Sequence[int], steps: int) -> Shape:
        """Make room for the tokens of this many steps, the first of them at these positions."""

    def logits(self, shape: Shape, tokens_S: Tensor, positions_S: Tensor) -> Tensor:
        """(S, vocabulary) after these tokens. The host reads nothing from the device."""

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that a pass reads or writes, besides the model's."""


class CudaGraphs:
    """Capture of steps as CUDA graphs, which never run at the same time and so share a pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream()

    def __call__(self, step: Step) -> Step:
        with torch.cuda.device(self._device):
            # Libraries set themselves up when they are first used on a stream, which must not be captured.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                step()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads (loading, logging) may use CUDA meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                step()
        return graph.replay


class Slots:
    """The state of all slots, and the tokens that a block has drawn."""

    def __init__(self, places: int, device: torch.device) -> None:
        self.numbers_5S = torch.zeros(5, places, dtype=torch.int64, device=device)
        self.is_done_S = torch.ones(places, dtype=torch.bool, device=device)
        self.step_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens_BS = torch.zeros(BLOCK, places, dtype=torch.int64, device=device)
        self.logprobs_BS = torch.zeros(BLOCK, places, dtype=torch.float32, device=device)

    def load(self, numbers_5R: Tensor) -> None:
        """Begin a block with these rows. The other slots are idle: done, with a token 0 at position 0."""
        rows = numbers_5R.shape[1]
        self.numbers_5S[:, :rows].copy_(numbers_5R)
        self.numbers_5S[:, rows:].zero_()
        self.is_done_S[:rows].fill_(False)
        self.is_done_S[rows:].fill_(True)
        self.step_1.zero_()

    def draw(self, logits_SV: Tensor, sampling: Sampling, stop_ids_N: Tensor) -> None:
        """Draw a token for each slot, and advance the slots that are not done."""
        tokens_S, positions_S, keys_S, counts_S, limits_S = self.numbers_5S[:, : len(logits_SV)]
        is_done_S = self.is_done_S[: len(logits_SV)]
        drawn_S, logprobs_S = sample(logits_SV, uniforms(keys_S, counts_S), sampling)
        self.tokens_BS[:, : len(logits_SV)].index_copy_(0, self.step_1, drawn_S[None])
        self.logprobs_BS[:, : len(logits_SV)].index_copy_(0, self.step_1, logprobs_S[None])
        counts_S.add_(1)
        is_done_S |= (counts_S >= limits_S) | (drawn_S[:, None] == stop_ids_N).any(1)
        tokens_S.copy_(torch.where(is_done_S, tokens_S, drawn_S))
        positions_S.add_(~is_done_S)
        self.step_1.add_(1)


class StaticSteps:
    """Blocks of steps for up to `places` rows, a power of two. `capture` None runs every step uncaptured.

    must_capture: an exception while capturing is raised; otherwise steps of that shape then run uncaptured.
    """

    def __init__(
        self, model: PreTrainedModel, slotted: SlottedPass, places: int, capture: Capture | None, *, must_capture: bool
    ) -> None:
        self._model = model
        self._slotted = slotted
        self._device = next(model.parameters()).device
        self._slots = Slots(places, self._device)
        self._capture = capture
        self._must_capture = must_capture
        self._stop_ids: dict[frozenset[int], Tensor] = {}
        self._captured: dict[object, Step | None] = {}  # None: cannot be
        self._addresses: tuple[int, ...] = ()

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """(R, vocabulary) after these tokens."""
        shape = self._slotted.fit(power_of_two(len(tokens_R)), positions_R.tolist(), 1)
        nothing_R = torch.zeros_like(tokens_R)
        self._slots.load(torch.stack([tokens_R, positions_R, nothing_R, nothing_R, nothing_R]))
        return self._logits(shape)[: len(tokens_R)]

    def block(
        self, numbers_5R: Tensor, steps: int, sampling: Sampling, stop_ids: frozenset[int], vocabulary: int | None
    ) -> tuple[Tensor, Tensor]:
        """The tokens (steps, R) of this many steps, and their log-probabilities. Tokens of a row after one of
        `stop_ids` or its limit do not count."""
        rows = numbers_5R.shape[1]
        shape = self._slotted.fit(power_of_two(rows), numbers_5R[POSITION].tolist(), steps)
        same = replace(sampling, max_response_tokens=1, stop=(), stop_token_ids=())
        stop_ids_N = self._on_device(stop_ids)

        def step() -> None:
            self._slots.draw(self._logits(shape)[:, :vocabulary], same, stop_ids_N)

        run = step if self._capture is None else self._repeatable((shape, same, stop_ids, vocabulary), step, numbers_5R)
        self._slots.load(numbers_5R)
        for _ in range(steps):
            run()
        return self._slots.tokens_BS[:steps, :rows], self._slots.logprobs_BS[:steps, :rows]

    def _logits(self, shape: Shape) -> Tensor:
        tokens_S, positions_S = self._slots.numbers_5S[:2, : shape.slots]
        return self._slotted.logits(shape, tokens_S, positions_S)

    def _on_device(self, stop_ids: frozenset[int]) -> Tensor:
        if stop_ids not in self._stop_ids:
            self._stop_ids[stop_ids] = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=self._device)
        return self._stop_ids[stop_ids]

    def _repeatable(self, key: object, step: Step, numbers_5R: Tensor) -> Step:
        """The step as it was captured, if all addresses are still the same."""
        addresses = self._current_addresses()
        if addresses != self._addresses:
            self._captured.clear()
            self._addresses = addresses
        if key not in self._captured:
            while len(self._captured) >= _MOST_GRAPHS:
                del self._captured[next(iter(self._captured))]
            self._captured[key] = self._newly_captured(step, numbers_5R)
        return self._captured[key] or step

    def _newly_captured(self, step: Step, numbers_5R: Tensor) -> Step | None:
        try:
            return self._checked(step, numbers_5R)
        except Exception as error:  # boundary: a model's code may do anything that cannot be captured
            if self._must_capture:
                raise
            warnings.warn(
                f"decoding without a CUDA graph for one shape: {failure(error)}", RuntimeWarning, stacklevel=2
            )
            return None

    def _checked(self, step: Step, numbers_5R: Tensor) -> Step:
        """The captured step, if it draws the same tokens. The check writes only what the block's first step writes."""
        assert self._capture is not None
        rows = numbers_5R.shape[1]
        self._slots.load(numbers_5R)
        step()
        expected = self._slots.tokens_BS[0, :rows].tolist()
        self._slots.load(numbers_5R)
        replay = self._capture(step)
        self._slots.load(numbers_5R)
        self._slots.tokens_BS.fill_(-1)
        replay()
        found = self._slots.tokens_BS[0, :rows].tolist()
        if found != expected:
            differing = sum(one != other for one, other in zip(found, expected, strict=True))
            raise RolloutError(
                f"a captured decoding step draws {differing} of {rows} tokens differently from the same step by itself",
                remedy="set BURNISH_WITHOUT=static_decoder",
            )
        return replay

    def _current_addresses(self) -> tuple[int, ...]:
        """Addresses and sizes of the tensors: a new cache may lie where an earlier one was."""
        weights = (*self._model.parameters(), *self._model.buffers())
        cached = list(self._slotted.tensors())
        return (*(tensor.data_ptr() for tensor in (*weights, *cached)), *(tensor.numel() for tensor in cached))


def bucket(columns: int) -> int:
    """Round the columns of a pass up to one of a few numbers, so that few shapes are captured."""
    if columns > _LARGEST_STEP:
        return -(-columns // _LARGEST_STEP) * _LARGEST_STEP
    return max(_FIRST_BUCKET, power_of_two(columns))


def power_of_two(number: int) -> int:
    """The smallest that is not below this number."""
    return 1 << max(0, number - 1).bit_length()
