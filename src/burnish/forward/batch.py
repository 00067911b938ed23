"""The one device-side batch, typed tensors that are cut, joined and moved together, and the scores of its tokens.

Rows are sequences (B), prompts are right-padded to P and responses right-padded to T. Everything that belongs to a
response position is (B, T) and aligned with `response_tokens`. Fields that a run does not need stay None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Key = TypeVar("Key", bound=Hashable)
Text = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and a response to it."""


def upload(values: NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Host values on `device`, without making either wait for the other; on a CPU nothing is copied.

    A plain copy to a GPU waits until everything queued there has run. A copy from pinned memory is queued as well.
    Apple's GPUs have no pinned memory: a queued copy could read numbers that have changed by then.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if tensor.device == device or tensor.device.type != "cpu":
        return tensor.to(device)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=device.type != "mps")


def rows_by(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Row numbers of each distinct key, in the order in which the keys first appear."""
    rows: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class HostRows:
    """Lengths and masks of a batch on the host, so that building a layout never waits for a GPU.

    prompt_lengths, response_lengths (B,); prompts (B,): rows with equal numbers have equal prompt tokens;
    loss_mask (B, T); trained_turns (B,): turns of the policy with a trained token.
    """

    prompt_lengths: Ints
    response_lengths: Ints
    prompts: Ints
    loss_mask: Bools
    trained_turns: Ints

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> Ints:
        """(B,): tokens of each row, prompt and response together."""
        return self.prompt_lengths + self.response_lengths

    def groups(self) -> list[list[int]]:
        """Row numbers of each distinct prompt, in the order in which the prompts first appear."""
        return list(rows_by(self.prompts.tolist()).values())

    def check_prompts(self) -> None:
        """Raise ValueError for an empty prompt: nothing would predict its first response token."""
        if len(self) and self.prompt_lengths.min() < 1:
            raise ValueError("a row has an empty prompt; put at least one token (such as bos) before the response")

    def select(self, rows: Ints) -> HostRows:
        """Select rows, in the order given."""
        lengths = self.response_lengths[rows]
        width = int(lengths.max(initial=0))
        mask = self.loss_mask[rows, :width]
        return HostRows(self.prompt_lengths[rows], lengths, self.prompts[rows], mask, self.trained_turns[rows])

    @staticmethod
    def of(batch: Batch) -> HostRows:
        """Read from a batch; the only place where prompts are compared."""
        tokens, lengths = _on_host(batch.prompt_tokens), _on_host(batch.prompt_lengths)
        # By their bytes: a prompt that comes twice, in whichever groups, is read once.
        numbers: dict[bytes, int] = {}
        prompts = [
            numbers.setdefault(row[:length].tobytes(), len(numbers))
            for row, length in zip(tokens, lengths.tolist(), strict=True)
        ]
        loss_mask: Bools = batch.loss_mask.cpu().numpy()
        turns = np.asarray(loss_mask.any(axis=1), dtype=np.int64)  # without turns, a row is one
        if batch.turn_index is not None:
            turns = _trained_turns(loss_mask, _on_host(batch.turn_index))
        return HostRows(lengths, _on_host(batch.response_lengths), np.array(prompts, dtype=np.int64), loss_mask, turns)


@dataclass(frozen=True)
class Batch:
    """Rollouts of one step, or a part of them.

    prompt_tokens (B, P) int64, prompt_lengths (B,) int64; response_tokens (B, T) int64, response_lengths (B,) int64
    (sampled tokens including the stop token); loss_mask (B, T) bool, True where the token was sampled by the policy and
    is trained on; group_ids (B,) int64. turn_index (B, T) int64: the number of the policy's turn that a token belongs
    to, from 0, and -1 for tokens that it did not sample; None if no row has turns, and each is one. All
    log-probabilities are of the sampling distribution's temperature.
    What is past `response_lengths` is padding and has no meaning.
    """

    prompt_tokens: Tensor
    prompt_lengths: Tensor
    response_tokens: Tensor
    response_lengths: Tensor
    loss_mask: Tensor
    group_ids: Tensor
    turn_index: Tensor | None = None
    rollout_logprobs: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    teacher_weights: Tensor | None = None
    """(B,) weight of each row's teacher."""
    teacher: Tensor | None = None
    """(B,) int64 number of each row's teacher, for the models that teach; None if there is only one."""
    values: Tensor | None = None
    token_rewards: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    weights: Tensor | None = None
    """(B, T) weight of each token's policy loss; None is 1 everywhere."""
    selection: Tensor | None = None
    """(B, T) bool, tokens picked over the whole minibatch for losses that treat some tokens specially."""
    pairs: Tensor | None = None
    """(B,) int64: rows with equal numbers are compared with each other, and no micro-batch cuts them apart."""
    preferred: Tensor | None = None
    """(B,) bool, True for the response that should become more likely, False for the one that should not."""
    row_numbers: Tensor | None = None
    """(B,) int64: place of each row in its step, for results that are put together again; None asks for none."""
    noise_keys: Tensor | None = None
    """(B,) int64: seeds of the noise on each row's embeddings (`burnish.forward.embedding_noise`); None adds none."""

    @staticmethod
    def of_texts(pairs: Sequence[Text], *, pad_token_id: int) -> Batch:
        """Rows of prompts with responses, whose tokens are all in the loss mask, each in a group by itself."""
        tokens, lengths = [], []
        for rows in zip(*pairs, strict=True):
            tokens.append(pad_sequence([torch.tensor(row, dtype=torch.int64) for row in rows], True, pad_token_id))
            lengths.append(torch.tensor(list(map(len, rows))))
        mask_BT = torch.arange(tokens[1].shape[1]) < lengths[1][:, None]
        return Batch(tokens[0], lengths[0], tokens[1], lengths[1], mask_BT, torch.arange(len(pairs)))

    def texts(self) -> list[Text]:
        """Prompt and response of each row."""
        tokens = [tensor.tolist() for tensor in (self.prompt_tokens, self.response_tokens)]
        rows = zip(*tokens, self.host.prompt_lengths.tolist(), self.host.response_lengths.tolist(), strict=True)
        return [(tuple(prompt[:before]), tuple(response[:after])) for prompt, response, before, after in rows]

    def __len__(self) -> int:
        return self.response_tokens.shape[0]

    def __getstate__(self) -> dict[str, object]:
        """For pickle: a copy, because one thread may send a batch while another asks for its `host` for the first
        time, and a dictionary that grows cannot be gone through."""
        return self.__dict__.copy()

    @property
    def device(self) -> torch.device:
        return self.response_tokens.device

    @cached_property
    def host(self) -> HostRows:
        """Lengths, loss mask and equal prompts on the host, read from the tensors when first asked for or before the
        first move; `select`, `cat`, `to` and `replace` carry it along."""
        return HostRows.of(self)

    def replace(self, **fields: Tensor | None) -> Batch:
        """A batch with some fields set; shapes of (B, T) fields must agree with `response_tokens`."""
        shape = tuple(self.response_tokens.shape)
        for name, value in fields.items():
            if value is not None and value.shape[0] != len(self):
                raise ValueError(f"batch field {name} has {value.shape[0]} rows, the batch has {len(self)}")
            if value is not None and value.dim() == 2 and name != "prompt_tokens" and tuple(value.shape) != shape:
                raise ValueError(f"batch field {name} has shape {tuple(value.shape)}, response_tokens has {shape}")
        replaced = dataclasses.replace(self, **fields)  # type: ignore[arg-type]
        return replaced if fields.keys() & _ON_HOST else replaced._with_host(self.host)

    def with_noise(self, keys_B: Tensor) -> Batch:
        """A batch whose rows have their own noise, so that no two of them share a prompt."""
        own = dataclasses.replace(self.host, prompts=np.arange(len(self)))
        return dataclasses.replace(self, noise_keys=keys_B)._with_host(own)

    def select(self, rows: Tensor | Sequence[int] | Ints) -> Batch:
        """The rows in this order, without the padding columns that none of them needs."""
        chosen: Ints = np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows, dtype=np.int64)
        host, index = self.host.select(chosen), upload(chosen, self.device)
        # Columns in which all chosen rows have padding would cost a pass as much as the others.
        prompt_width, width = int(host.prompt_lengths.max(initial=0)), host.loss_mask.shape[1]

        def pick(name: str, tensor: Tensor) -> Tensor:
            columns = prompt_width if name == "prompt_tokens" else width
            return tensor[index] if tensor.dim() == 1 else tensor[index][:, :columns]

        return self._map(pick)._with_host(host)

    def to(self, device: torch.device | str) -> Batch:
        """On another device, without waiting for it; the batch itself where it is there already."""
        if (device := torch.device(device)) == self.device:
            return self
        return self._map(lambda _, tensor: upload(tensor, device))._with_host(self.host)

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows, prompts and responses together, without padding."""
        return int(self.host.lengths.sum())

    def _map(self, function: Callable[[str, Tensor], Tensor]) -> Batch:
        made = {name: function(name, value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **made)  # type: ignore[arg-type]

    def _with_host(self, host: HostRows) -> Batch:
        self.__dict__["host"] = host  # where a cached property is kept
        return self


_ON_HOST = frozenset({"prompt_tokens", "prompt_lengths", "response_lengths", "loss_mask", "turn_index"})
"""Fields that HostRows is made of."""


def _trained_turns(loss_mask: Bools, turn_index: Ints) -> Ints:
    """Count the turns with a trained token in each row. The turns of a row are in order, so each begins at the first
    trained token whose number is above all before it."""
    trained = np.pad(np.where(loss_mask, turn_index, -1), ((0, 0), (1, 0)), constant_values=-1)
    highest = np.maximum.accumulate(trained, axis=1)
    return np.asarray(np.count_nonzero(np.diff(highest, axis=1), axis=1), dtype=np.int64)


def _on_host(tensor: Tensor) -> Ints:
    return np.asarray(tensor.cpu().numpy(), dtype=np.int64)


def present(tensor: Tensor | None, name: str) -> Tensor:
    """A field of a batch that an earlier stage must have filled. ValueError, with its name, when it is empty."""
    if tensor is None:
        raise ValueError(f"the batch has no {name}: the stage that fills them comes first")
    return tensor


class TokenScores(NamedTuple):
    """Per response position: log-probability of the token taken, and when asked for entropy (nats), whether the
    token is the likeliest one (bool), and the value of the state before it. All (B, T). Of the pass as a whole,
    `router_loss` () is the load-balancing loss of its tokens. Compared with a teacher: the divergence from it, and
    whether both find the same token likeliest (bool), (B, T).

    Log-probabilities and entropy are of the temperature-scaled distribution. Slots past a response's end hold 0.
    """

    logprobs_BT: Tensor
    entropy_BT: Tensor | None = None
    correct_BT: Tensor | None = None
    values_BT: Tensor | None = None
    router_loss: Tensor | None = None
    divergence_BT: Tensor | None = None
    agrees_BT: Tensor | None = None
