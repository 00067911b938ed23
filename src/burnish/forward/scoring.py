"""Log-probabilities and entropy of the response tokens of a batch, under one model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnish.forward.attention import packs_rows
from burnish.forward.batch import Batch
from burnish.forward.embedding_gradient import embedding_gradient_in_place
from burnish.forward.heads import find_head_transform
from burnish.forward.logprobs import HeadTransform, chunked_token_scores, likeliest_tokens, plain_token_scores
from burnish.forward.microbatches import (
    FULL_SPEED_TOKENS,
    microbatches_by_groups,
    microbatches_by_tokens,
)
from burnish.forward.packing import pack, packed_weights, pays, prompt_groups
from burnish.forward.router_loss import RouterLoss
from burnish.forward.row_rules import RowRules, padded_inputs, plain_inputs, row_rules, takes
from burnish.forward.token_scores import TokenScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows as the model reads them: prompt, response and padding without a gap, (B, S).

    `source_BT` is the column whose hidden state predicts each response token.
    """

    tokens_BS: Tensor
    attention_mask_BS: Tensor
    source_BT: Tensor


def lay_out(batch: Batch) -> Layout:
    """Right-padded rows `prompt|response|padding`. Raises ValueError for an empty prompt (nothing predicts its first
    response token)."""
    if bool((batch.prompt_lengths < 1).any()):
        raise ValueError("a row has an empty prompt; put at least one token (such as bos) before the response")
    lengths_B = batch.prompt_lengths + batch.response_lengths
    width = int(lengths_B.max())
    columns_S = torch.arange(width, device=batch.device)
    mask_BS = columns_S < lengths_B[:, None]
    in_prompt_BS = columns_S < batch.prompt_lengths[:, None]
    prompt_BS = _pick(batch.prompt_tokens, columns_S.expand_as(mask_BS))
    response_BS = _pick(batch.response_tokens, columns_S - batch.prompt_lengths[:, None])
    tokens_BS = torch.where(in_prompt_BS, prompt_BS, response_BS).where(mask_BS, 0)
    columns_T = torch.arange(batch.response_tokens.shape[1], device=batch.device)
    source_BT = (batch.prompt_lengths[:, None] - 1 + columns_T).clamp(max=width - 1)
    return Layout(tokens_BS, mask_BS.to(torch.int64), source_BT)


def response_mask(batch: Batch) -> Tensor:
    """(B, T) bool, True where a response token stands (trained on or not)."""
    columns_T = torch.arange(batch.response_tokens.shape[1], device=batch.device)
    return columns_T < batch.response_lengths[:, None]


@dataclass(frozen=True, slots=True)
class ResponseRows:
    """A batch, and the N of its response positions that are wanted."""

    batch: Batch
    rows_N: Tensor
    columns_N: Tensor
    chosen_BT: Tensor
    targets_N: Tensor

    @staticmethod
    def of(batch: Batch, positions_BT: Tensor | None) -> ResponseRows:
        """The positions given, or those of every response token."""
        chosen_BT = response_mask(batch) if positions_BT is None else positions_BT.to(batch.device)
        rows, columns = chosen_BT.nonzero(as_tuple=True)
        return ResponseRows(batch, rows, columns, chosen_BT, batch.response_tokens[rows, columns])

    def select(self, rows: list[int]) -> ResponseRows:
        """Some of the rows, in this order, with what is wanted of them."""
        batch = self.batch.select(rows)
        return ResponseRows.of(batch, self.chosen_BT[rows, : batch.response_tokens.shape[1]])

    def wanted(self, source_BT: Tensor) -> Tensor:
        """(N,): what `source_BT` says about the wanted positions."""
        return source_BT[self.rows_N, self.columns_N]

    def scatter(self, values_N: Tensor) -> Tensor:
        """(B, T), 0 where nothing was wanted."""
        return values_N.new_zeros(self.chosen_BT.shape).index_put((self.rows_N, self.columns_N), values_N)


class TrunkRunner:
    """Runs a model, with or without output head, over the rows of a batch.

    Rows are packed, with each distinct prompt once, where the model can take that and it saves tokens; else each row
    stands by itself, padded. Both give the numbers that a row has alone: rows that change each other's go through the
    model apart (`burnish.forward.row_rules`). `plain`: the gradient of the embedding is PyTorch's own.

    Raises ModelError for models whose rows have no such numbers.
    """

    def __init__(self, model: PreTrainedModel, *, plain: bool = False, router: RouterLoss | None = None) -> None:
        """router: gets what the model's routers say in passes with a gradient."""
        self._model = model
        self._plain = plain
        self._router = router
        self._rules: RowRules = row_rules(model)
        self.packs = takes(model, "position_ids") and packs_rows(model)
        self._shared_tokens = light_tokens(model)

    def split(self, batch: Batch, tokens_per_microbatch: int) -> Iterator[tuple[list[int], Batch]]:
        """(row numbers, those rows) of each micro-batch: rows of one prompt stay together where each distinct prompt of
        a micro-batch is read once."""
        for company in self._rules.groups(batch.sequence_lengths()):
            for cut in self._microbatches(batch.select(company), tokens_per_microbatch):
                rows = [company[row] for row in cut]
                yield rows, batch.select(rows)

    def _microbatches(self, batch: Batch, tokens_per_microbatch: int) -> list[list[int]]:
        if not self.packs:
            return microbatches_by_tokens(batch.sequence_lengths(), tokens_per_microbatch)
        prompts, lengths = batch.prompt_lengths.tolist(), batch.response_lengths.tolist()
        return microbatches_by_groups(
            prompts, lengths, prompt_groups(batch), tokens_per_microbatch, shared_tokens=self._shared_tokens
        )

    def hidden(self, rows: ResponseRows) -> Tensor:
        """First output at the wanted positions (the state *before* each token): hidden states (N, H) of a trunk,
        logits (N, V) of a whole model."""
        batch = rows.batch
        companies = self._rules.groups(batch.sequence_lengths())
        with nullcontext() if self._plain else embedding_gradient_in_place(self._model):
            if len(companies) == 1:
                return self._pass(rows)
            parts = [self._pass(rows.select(company)) for company in companies]
        row_of_part = [torch.isin(rows.rows_N, torch.tensor(company, device=batch.device)) for company in companies]
        places = torch.cat([is_there.nonzero()[:, 0] for is_there in row_of_part])
        return torch.cat(parts).index_select(0, places.argsort())

    def _pass(self, rows: ResponseRows) -> Tensor:
        if self._packs(rows.batch) and pays(rows.batch, prompt_groups(rows.batch)):
            return self.packed(rows)
        return self.padded(rows)

    def _packs(self, batch: Batch) -> bool:
        """Whether no row is long enough to know of a window, which neither packed rows nor rows without a mask have."""
        limit = self._rules.packed_up_to
        return self.packs and (limit is None or max(batch.sequence_lengths()) <= limit)

    def packed(self, rows: ResponseRows) -> Tensor:
        """`hidden` with all rows in one, whether that pays or not; the model must have been set to packed attention."""
        groups = prompt_groups(rows.batch)
        packed = pack(rows.batch, groups, self._model.dtype)
        inputs = plain_inputs(self._model, packed.tokens_1S) | {
            "position_ids": packed.positions_1S,
            "attention_mask": packed.tokens_1S.new_zeros(1, 1, 1, 1),  # four dimensions: no mask is to be made
            "packed": packed.attention,
        }
        outputs_1SX = self._first_output(inputs, packed_weights(rows.batch, groups, packed.tokens_1S.shape[1]))
        return outputs_1SX[0].index_select(0, rows.wanted(packed.source_BT))

    def padded(self, rows: ResponseRows) -> Tensor:
        """`hidden` with each row by itself, padded on the right."""
        layout = lay_out(rows.batch)
        if self._rules.beside != "padded":  # rows of one length: there is no padding
            inputs = plain_inputs(self._model, layout.tokens_BS)
        elif self._packs(rows.batch):  # causal: padding on the right is seen by no token and needs no mask
            positions = torch.arange(layout.tokens_BS.shape[1], device=layout.tokens_BS.device)[None]
            inputs = plain_inputs(self._model, layout.tokens_BS) | {"position_ids": positions}
        else:
            inputs = padded_inputs(self._model, layout.tokens_BS, layout.attention_mask_BS)
        # As in packed rows, the last token of each row, which predicts nothing, does not count.
        counted_BS = torch.nn.functional.pad(layout.attention_mask_BS[:, 1:], (0, 1))
        outputs_BSX = self._first_output(inputs, counted_BS)
        return outputs_BSX[rows.rows_N, rows.wanted(layout.source_BT)]

    def _first_output(self, inputs: dict[str, Any], weights_BS: Tensor) -> Tensor:
        """Hidden states or logits of every slot; `weights_BS` says how often its token counts for the router's loss."""
        if self._router is None or not torch.is_grad_enabled():
            states: Tensor = self._model(**inputs)[0]
            return states
        outputs = self._model(**inputs | {"output_router_logits": True})
        self._router.add(outputs.router_logits, weights_BS)
        return outputs[0]  # type: ignore[no-any-return]


class ResponseScorer:
    """Scores response tokens: base model without its head, then log-probabilities without (N, V) intermediates.

    Models whose head is not `Linear` with a known transform are scored from their own full logits; `is_chunked` tells.
    `plain`: all logits of the response tokens at once, gradients by PyTorch alone. `router_loss`: passes with a
    gradient also give the router's load-balancing loss; ModelError for models that have none.
    """

    def __init__(
        self, model: PreTrainedModel, *, temperature: float = 1.0, plain: bool = False, router_loss: bool = False
    ) -> None:
        self.model = model
        self.temperature = temperature
        self._plain = plain
        self._transform: HeadTransform | None = find_head_transform(model)
        self._router = RouterLoss(model) if router_loss else None
        self._trunk = TrunkRunner(model.base_model, plain=plain, router=self._router)
        self._whole = TrunkRunner(model, plain=plain, router=self._router)

    @property
    def is_chunked(self) -> bool:
        return self._transform is not None

    def score(
        self,
        batch: Batch,
        *,
        positions_BT: Tensor | None = None,
        entropy: bool = False,
        correct: bool = False,
        value_head: nn.Module | None = None,
    ) -> TokenScores:
        """Scores at `positions_BT` (default: every response token), 0 elsewhere, in one forward pass; differentiable.

        float32, (B, T), on the model's device. `value_head` reads values from the same hidden states (models that are
        not chunked show only their logits, and run their trunk once more for it).
        """
        rows = ResponseRows.of(batch.to(self.model.device), positions_BT)
        runs_trunk = self._transform is not None
        head_inputs = (self._trunk if runs_trunk else self._whole).hidden(rows)
        logprobs_N, entropy_N = self._token_scores(head_inputs, rows.targets_N, entropy)
        values_N = None
        if value_head is not None:
            values_N = value_head(head_inputs if runs_trunk else self._trunk.hidden(rows))
        router_loss = None if self._router is None or not torch.is_grad_enabled() else self._router.take()
        return TokenScores(
            rows.scatter(logprobs_N),
            None if entropy_N is None else rows.scatter(entropy_N),
            rows.scatter(self._likeliest(head_inputs) == rows.targets_N) if correct else None,
            None if values_N is None else rows.scatter(values_N),
            router_loss,
        )

    def _token_scores(self, head_inputs: Tensor, targets_N: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        if self._transform is None:
            return plain_token_scores(head_inputs, targets_N, temperature=self.temperature, entropy=entropy)
        head = self.model.get_output_embeddings()
        if self._plain:
            raw_NV = head(head_inputs)
            logits_NV = self._transform(raw_NV.to(torch.promote_types(raw_NV.dtype, torch.float32)))
            return plain_token_scores(logits_NV, targets_N, temperature=self.temperature, entropy=entropy)
        return chunked_token_scores(
            head_inputs,
            head.weight,
            head.bias,
            targets_N,
            temperature=self.temperature,
            transform=self._transform,
            entropy=entropy,
            accumulate_in_place=True,
        )

    def _likeliest(self, head_inputs: Tensor) -> Tensor:
        if self._transform is None:
            return head_inputs.argmax(-1)
        head = self.model.get_output_embeddings()
        return likeliest_tokens(head_inputs, head.weight, head.bias)

    def split(self, batch: Batch, tokens_per_microbatch: int) -> Iterator[tuple[list[int], Batch]]:
        """(row numbers, those rows) of each micro-batch, cut as suits the way the model reads them."""
        return self._trunk.split(batch, tokens_per_microbatch)

    @torch.no_grad()
    def score_in_microbatches(
        self, batch: Batch, tokens_per_microbatch: int, *, entropy: bool = False, correct: bool = False
    ) -> TokenScores:
        """Scores of all rows without gradient, in the rows' order and the batch's width, on the batch's device."""
        shape = batch.response_tokens.shape
        logprobs_BT = torch.zeros(shape, device=batch.device)
        entropy_BT = torch.zeros(shape, device=batch.device) if entropy else None
        correct_BT = torch.zeros(shape, dtype=torch.bool, device=batch.device) if correct else None
        for rows, part in self.split(batch, tokens_per_microbatch):
            scores = self.score(part, entropy=entropy, correct=correct)
            width = part.response_tokens.shape[1]
            logprobs_BT[rows, :width] = scores.logprobs_BT.to(batch.device)
            if entropy_BT is not None and scores.entropy_BT is not None:
                entropy_BT[rows, :width] = scores.entropy_BT.to(batch.device)
            if correct_BT is not None and scores.correct_BT is not None:
                correct_BT[rows, :width] = scores.correct_BT.to(batch.device)
        return TokenScores(logprobs_BT, entropy_BT, correct_BT)


def light_tokens(model: PreTrainedModel) -> int:
    """Tokens in a micro-batch that the model takes lightly: at least `FULL_SPEED_TOKENS`, and as many more as keep what
    is stored for the backward pass below about 256 MiB. Small models are faster with many."""
    numbers = 3 * sum(weight.numel() for weight in model.parameters()) // hidden_width(model)
    return max(FULL_SPEED_TOKENS, (1 << 28) // (4 * max(1, numbers)))


def hidden_width(model: PreTrainedModel) -> int:
    """Numbers of a token between two layers."""
    return int(model.get_input_embeddings().weight.shape[1])


def _pick(tokens_BX: Tensor, index_BS: Tensor) -> Tensor:
    if tokens_BX.shape[1] == 0:
        return torch.zeros_like(index_BS)
    return tokens_BX.gather(1, index_BS.clamp(0, tokens_BX.shape[1] - 1))
