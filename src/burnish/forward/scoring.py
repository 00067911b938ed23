"""Log-probabilities and entropy of the response tokens of a batch, under one model."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from burnish.forward.attention import attention_over, packs_rows
from burnish.forward.batch import Batch, Bools, Ints, TokenScores, rows_by, upload
from burnish.forward.divergences import Compared, HeadInput
from burnish.forward.few_layers import telling_layers
from burnish.forward.gathering import embedding_gradient_in_place, gather_rows
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.logprobs import (
    KEPT_ELEMENTS,
    HeadTransform,
    LogitsBuffer,
    chunked_token_scores,
    likeliest_tokens,
    plain_token_scores,
)
from burnish.forward.microbatches import FULL_SPEED_TOKENS, microbatches_by_groups, microbatches_by_tokens
from burnish.forward.packing import Packing
from burnish.forward.router_loss import RouterLoss
from burnish.forward.row_rules import RowRules, padded_inputs, plain_inputs, row_rules, takes
from burnish.machine.matmul_precision import countable, rounded_down, rounded_up, rounds_up
from burnish.types import PreTrainedModel

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Root(Protocol):
    """Runner of a pass within a module that gathers the weights, of which each process has slices. Gradients are
    exchanged for the tensors that it returns, alone or in a tuple."""

    def __call__(self, work: Callable[[], Result], /) -> Result: ...


class Rooted:
    """A scorer, whose passes may have to be made within another module."""

    _root: Root = operator.call

    def run_in(self, root: Root) -> None:
        """Make all passes within this module from now on: the model's weights have been cut."""
        self._root = root


RootedT = TypeVar("RootedT", bound=Rooted)


def within_root(
    work: Callable[Concatenate[RootedT, Given], Result],
) -> Callable[Concatenate[RootedT, Given], Result]:
    """Make the passes of this method of a scorer within its root."""

    @wraps(work)
    def run(scorer: RootedT, /, *given: Given.args, **options: Given.kwargs) -> Result:
        return scorer._root(partial(work, scorer, *given, **options))

    return run


@dataclass(frozen=True, eq=False)
class ResponsePositions:
    """The N response positions of a batch that a pass is to score, row by row.

    rows_N, columns_N on the host; `shape` is (B, T), `device` the batch's.
    """

    rows_N: Ints
    columns_N: Ints
    shape: tuple[int, int]
    device: torch.device

    @staticmethod
    def of(batch: Batch, *, only_trained: bool = False) -> ResponsePositions:
        """Positions of all response tokens, or only of the tokens that are trained on."""
        columns_T = np.arange(batch.response_tokens.shape[1])
        chosen_BT = batch.host.loss_mask if only_trained else columns_T < batch.host.response_lengths[:, None]
        return ResponsePositions.where(chosen_BT, batch.device)

    @staticmethod
    def where(chosen_BT: Bools, device: torch.device) -> ResponsePositions:
        """Positions at which `chosen_BT` is True."""
        rows_N, columns_N = chosen_BT.nonzero()
        return ResponsePositions(rows_N, columns_N, chosen_BT.shape, device)

    def within(self, company: Sequence[int], batch: Batch) -> tuple[ResponsePositions, Ints]:
        """Positions within the rows `company`, as positions of a batch of these rows, and their numbers among the N."""
        number_B = np.full(self.shape[0], -1)
        number_B[list(company)] = np.arange(len(company))
        which = np.flatnonzero(number_B[self.rows_N] >= 0)
        which = which[np.argsort(number_B[self.rows_N[which]], kind="stable")]
        shape = (len(company), batch.response_tokens.shape[1])
        rows_N, columns_N = number_B[self.rows_N[which]], self.columns_N[which]
        return ResponsePositions(rows_N, columns_N, shape, self.device), which

    @cached_property
    def index_N(self) -> Tensor:
        """(N,): indices of the positions in a flattened (B, T), on the device."""
        return upload(self.rows_N * self.shape[1] + self.columns_N, self.device)

    def take(self, tokens_BT: Tensor) -> Tensor:
        """(N,): the tokens at these positions; not differentiable."""
        return tokens_BT.flatten().index_select(0, self.index_N)  # `take` is not there on every device

    def rounded(self) -> ResponsePositions:
        """Repeat the last position until their number is a rounded one (`rounded_up`), so that sizes recur."""
        more = rounded_up(len(self.rows_N)) - len(self.rows_N)
        rows_M, columns_M = np.pad(self.rows_N, (0, more), mode="edge"), np.pad(self.columns_N, (0, more), mode="edge")
        return ResponsePositions(rows_M, columns_M, self.shape, self.device) if more else self

    def scatter(self, values_M: Tensor) -> Tensor:
        """(B, T) where float64 is, 0 at all other positions. Values for more than the N positions, as after `rounded`,
        are left out."""
        flat = countable(values_M).new_zeros(self.shape[0] * self.shape[1])
        return flat.index_put((countable(self.index_N),), countable(values_M[: len(self.rows_N)])).view(self.shape)


class Compare(Protocol):
    """Comparison of a student with a teacher, which reads the same batch, at some positions of it.

    `targets_N` are the tokens there. The result is differentiable in the student's part of `student`.
    """

    def __call__(
        self, batch: Batch, positions: ResponsePositions, student: HeadInput, targets_N: Tensor
    ) -> Compared: ...


def lay_out(batch: Batch) -> tuple[Tensor, Tensor]:
    """Rows `prompt|response|padding` on the batch's device: tokens (B, S), 0 in padding, and their mask (B, S) int64.

    Raises ValueError for an empty prompt (nothing predicts its first response token).
    """
    batch.host.check_prompts()
    width = int(batch.host.lengths.max())
    columns_S = torch.arange(width, device=batch.device)
    mask_BS = columns_S < (batch.prompt_lengths + batch.response_lengths)[:, None]
    in_prompt_BS = columns_S < batch.prompt_lengths[:, None]
    in_prompt = columns_S.expand_as(mask_BS).clamp(max=batch.prompt_tokens.shape[1] - 1)
    tokens_BS = batch.prompt_tokens.gather(1, in_prompt)
    if batch.response_tokens.shape[1]:
        in_response = (columns_S - batch.prompt_lengths[:, None]).clamp(0, batch.response_tokens.shape[1] - 1)
        tokens_BS = torch.where(in_prompt_BS, tokens_BS, batch.response_tokens.gather(1, in_response))
    tokens_BS = tokens_BS.where(mask_BS, 0)
    return tokens_BS, mask_BS.to(torch.int64)


def response_mask(batch: Batch) -> Tensor:
    """(B, T) bool, True where a response token is (trained on or not)."""
    return torch.arange(batch.response_tokens.shape[1], device=batch.device) < batch.response_lengths[:, None]


class TrunkRunner:
    """Runs a model, with or without output head, over the rows of a batch.

    Rows are packed, with each distinct prompt once, if the model can take them and this saves tokens; else each row is
    padded. Both give the numbers that a row has alone: rows that would affect each other go through the model
    separately (`burnish.forward.row_rules`). `plain`: gradients of picked rows and of the embedding are PyTorch's own.

    Raises ModelError for models whose rows have no such numbers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        plain: bool = False,
        router: RouterLoss | None = None,
        shared_responses: int | None = None,
    ) -> None:
        """router: receives the logits of the model's routers in passes with a gradient. shared_responses: most tokens
        of responses to several prompts in a micro-batch."""
        self._model = model
        self._plain = plain
        self._router = router
        self._rules: RowRules = row_rules(model)
        self.packs = takes(model, "position_ids") and packs_rows(model)
        self._by_groups = partial(
            microbatches_by_groups, shared_tokens=light_tokens(model), shared_responses=shared_responses
        )

    def split(self, batch: Batch, tokens_per_microbatch: int) -> Iterator[tuple[list[int], Batch]]:
        """(row numbers, those rows) of each micro-batch: rows of one prompt stay together where each distinct prompt of
        a micro-batch is read once, and rows that are compared (`Batch.pairs`) always do."""
        if batch.pairs is not None:
            yield from self._whole_pairs(batch, batch.pairs, tokens_per_microbatch)
            return
        for company in self._rules.groups(batch.host.lengths.tolist()):
            own = batch.host.select(np.array(company))
            if self.packs:
                prompts, responses = own.prompt_lengths.tolist(), own.response_lengths.tolist()
                cuts = self._by_groups(prompts, responses, own.groups(), tokens_per_microbatch)
            else:
                cuts = microbatches_by_tokens(own.lengths.tolist(), tokens_per_microbatch)
            for cut in cuts:
                rows = [company[row] for row in cut]
                yield rows, batch.select(rows)

    def _whole_pairs(
        self, batch: Batch, pairs_B: Tensor, tokens_per_microbatch: int
    ) -> Iterator[tuple[list[int], Batch]]:
        prompts, responses = batch.host.prompt_lengths, batch.host.response_lengths
        once, rest = (prompts, responses) if self.packs else (np.zeros_like(prompts), prompts + responses)
        pairs = list(rows_by(pairs_B.tolist()).values())
        for rows in self._by_groups(once.tolist(), rest.tolist(), pairs, tokens_per_microbatch, whole=True):
            yield rows, batch.select(rows)

    def hidden(self, batch: Batch, positions: ResponsePositions) -> Tensor:
        """First output at these positions (the state *before* each token): hidden states (N, H) of a trunk, logits
        (N, V) of a whole model."""
        # Rows beyond a length may get other positions or windows, so they cannot share a pass with shorter ones.
        companies = self._rules.groups(batch.host.lengths.tolist())
        with nullcontext() if self._plain else embedding_gradient_in_place(self._model):
            if len(companies) == 1:
                return self._pass(batch, positions)
            parts, places = [], []
            for company in companies:
                rows = batch.select(company)
                inside, which = positions.within(company, rows)
                parts.append(self._pass(rows, inside))
                places.append(which)
        return self._read(torch.cat(parts), np.concatenate(places).argsort())

    def _pass(self, batch: Batch, positions: ResponsePositions) -> Tensor:
        if self._may_pack(batch):
            packing = Packing.of(batch.host, rounded=rounds_up(self._model))
            if packing.pays:
                return self.packed(batch, positions, packing)
        return self.padded(batch, positions)

    def _may_pack(self, batch: Batch) -> bool:
        """Return whether all rows are too short for a window, which packed rows and rows without a mask do not have."""
        return self.packs and int(batch.host.lengths.max()) <= (self._rules.packed_up_to or math.inf)

    def packed(self, batch: Batch, positions: ResponsePositions, packing: Packing) -> Tensor:
        """`hidden` with all rows packed like this; the model must have been set to packed attention."""
        tokens_1S = packing.tokens(batch)
        inputs = plain_inputs(self._model, tokens_1S) | {
            "position_ids": packing.positions(batch.device),
            "attention_mask": tokens_1S.new_zeros(1, 1, 1, 1),  # four dimensions: no mask is to be made
            "packed": attention_over(packing, self._model, batch.device),
        }
        outputs_1SX = self._first_output(inputs, lambda: packing.times_shared(batch.device))
        return self._read(outputs_1SX[0], packing.sources(positions.rows_N, positions.columns_N))

    def padded(self, batch: Batch, positions: ResponsePositions) -> Tensor:
        """`hidden` with each row by itself, padded on the right."""
        tokens_BS, mask_BS = lay_out(batch)
        if self._rules.beside != "padded":  # rows of one length: there is no padding
            inputs = plain_inputs(self._model, tokens_BS)
        elif self._may_pack(batch):  # causal: padding on the right is seen by no token and needs no mask
            columns = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)[None]
            inputs = plain_inputs(self._model, tokens_BS) | {"position_ids": columns}
        else:
            inputs = padded_inputs(self._model, tokens_BS, mask_BS)
        # As in packed rows, the last token of each row, which predicts nothing, does not count.
        outputs_BSX = self._first_output(inputs, lambda: torch.nn.functional.pad(mask_BS[:, 1:], (0, 1)))
        prompt_lengths_N = batch.host.prompt_lengths[positions.rows_N]
        sources_N = positions.rows_N * tokens_BS.shape[1] + prompt_lengths_N - 1 + positions.columns_N
        return self._read(outputs_BSX.flatten(0, 1), sources_N)

    def _read(self, outputs_SX: Tensor, sources_N: Ints) -> Tensor:
        index_N = upload(sources_N, outputs_SX.device)
        return outputs_SX[index_N] if self._plain else gather_rows(outputs_SX, index_N)

    def _first_output(self, inputs: dict[str, object], weights_BS: Callable[[], Tensor]) -> Tensor:
        """Hidden states or logits of every slot; `weights_BS` says how often its token counts for the router's loss."""
        if self._router is None or not torch.is_grad_enabled():
            return self._model(**inputs)[0]
        outputs = self._model(**inputs | {"output_router_logits": True})
        self._router.add(outputs.router_logits, weights_BS())
        return outputs[0]


class ResponseScorer(Rooted):
    """Scores response tokens: base model without its head, then log-probabilities without (N, V) intermediates.

    Models whose head is not `Linear` with a known transform are scored from their own full logits; `is_chunked` tells.
    `plain`: all logits of the response tokens at once, gradients by PyTorch alone. `router_loss`: passes with a
    gradient also give the router's load-balancing loss; ModelError for models that have none. `vocabulary`: logits from
    this id on have no part in the distribution, as in sampling; None if all have. `runner`: has the arguments of
    `TrunkRunner`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float = 1.0,
        plain: bool = False,
        router_loss: bool = False,
        vocabulary: int | None = None,
        runner: Callable[..., TrunkRunner] = TrunkRunner,
    ) -> None:
        self.model = model
        self._vocabulary = vocabulary
        self.temperature = temperature
        self._plain = plain
        self._transform: HeadTransform | None = find_head_transform(model)
        self._router = RouterLoss(model) if router_loss else None
        # On a CPU small micro-batches cost little, and logits that are not kept are computed twice.
        most = kept_tokens(model) if self.is_chunked and model.device.type == "cpu" and not plain else None
        self.trunk = runner(model.base_model, plain=plain, router=self._router, shared_responses=most)
        self._logits_buffer = LogitsBuffer()
        self._below_head = self.trunk if self.is_chunked else runner(model, plain=plain, router=self._router)

    def release(self) -> None:
        """Free the memory of the logits, so that sampling can use it."""
        self._logits_buffer = LogitsBuffer()

    @property
    def is_chunked(self) -> bool:
        return self._transform is not None

    @within_root
    def score(
        self,
        batch: Batch,
        *,
        only_trained: bool = False,
        entropy: bool = False,
        correct: bool = False,
        value_head: nn.Module | None = None,
        compare: Compare | None = None,
    ) -> TokenScores:
        """Score every response token (`only_trained`: only the ones in the loss mask) in one forward pass; 0 elsewhere;
        differentiable.

        float32, (B, T), on the model's device. `value_head` reads values from the same hidden states (models that are
        not chunked show only their logits, and run their trunk once more for it). `compare` gives log-probabilities and
        the divergence from a teacher, and no entropy.
        """
        batch = batch.to(self.model.device)
        positions = ResponsePositions.of(batch, only_trained=only_trained)
        read = positions.rounded() if rounds_up(self.model) else positions
        targets_N = read.take(batch.response_tokens)
        head_inputs = self._below_head.hidden(batch, read)
        found: dict[str, Tensor | None] = {}
        if compare is not None:
            student = self._head_input(head_inputs)
            logprobs_N, found["divergence_BT"], found["agrees_BT"] = compare(batch, read, student, targets_N)
        else:
            logprobs_N, found["entropy_BT"] = self._token_scores(head_inputs, targets_N, entropy)
            if value_head is not None:
                found["values_BT"] = value_head(head_inputs if self.is_chunked else self.trunk.hidden(batch, read))
        if correct:
            found["correct_BT"] = self._likeliest(head_inputs) == targets_N
        router_loss = None if self._router is None or not torch.is_grad_enabled() else self._router.take()
        placed = {name: positions.scatter(values_N) for name, values_N in found.items() if values_N is not None}
        return TokenScores(positions.scatter(logprobs_N), router_loss=router_loss, **placed)

    @torch.no_grad()
    def below_head(self, batch: Batch, positions: ResponsePositions) -> HeadInput:
        """Read the rows up to the head, at these positions and without gradient; return this with the head."""
        return self._head_input(self._below_head.hidden(batch, positions))

    def _head_input(self, head_inputs: Tensor) -> HeadInput:
        if self._transform is None:
            return HeadInput(head_inputs, vocabulary=self._vocabulary)
        head = self.model.get_output_embeddings()
        return HeadInput(head_inputs, head.weight, head.bias, self._transform, self._vocabulary)

    def _token_scores(self, head_inputs: Tensor, targets_N: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        head, logits_NV = self.model.get_output_embeddings(), head_inputs
        if self._transform is None or self._plain:
            if self._transform is not None:
                raw_NV = head(head_inputs)
                logits_NV = self._transform(raw_NV.to(torch.promote_types(raw_NV.dtype, torch.float32)))
            known_NV = logits_NV[:, : self._vocabulary]
            return plain_token_scores(known_NV, targets_N, temperature=self.temperature, entropy=entropy)
        return chunked_token_scores(
            head_inputs,
            head.weight,
            head.bias,
            targets_N,
            temperature=self.temperature,
            transform=self._transform,
            entropy=entropy,
            accumulate_in_place=True,
            buffer=self._logits_buffer,
            vocabulary=self._vocabulary,
        )

    def _likeliest(self, head_inputs: Tensor) -> Tensor:
        if self._transform is None:
            return head_inputs[:, : self._vocabulary].argmax(-1)
        head = self.model.get_output_embeddings()
        return likeliest_tokens(head_inputs, head.weight, head.bias, vocabulary=self._vocabulary)

    @torch.no_grad()
    def score_in_microbatches(
        self,
        batch: Batch,
        tokens_per_microbatch: int,
        *,
        entropy: bool = False,
        correct: bool = False,
        compare: Compare | None = None,
        lanes: Lanes = ONE_LANE,
    ) -> TokenScores:
        """Score all rows without gradient, in the rows' order and the batch's width, on the batch's device."""
        cut = list(self.trunk.split(batch, lanes.budget(batch.num_tokens, tokens_per_microbatch)))
        score = partial(self.score, entropy=entropy, correct=correct, compare=compare)
        scored = lanes.map([part for _, part in cut], [part.num_tokens for _, part in cut], score)
        rows = [rows for rows, _ in cut]
        wanted = {"logprobs_BT": True, "entropy_BT": entropy, "correct_BT": correct}
        wanted |= dict.fromkeys(("divergence_BT", "agrees_BT"), compare is not None)
        parts = {name: [getattr(scores, name) for scores in scored] for name, is_wanted in wanted.items() if is_wanted}
        return TokenScores(**{name: put_back(batch, rows, values) for name, values in parts.items()})


def put_back(batch: Batch, rows: Sequence[Sequence[int]], parts: Sequence[Tensor]) -> Tensor:
    """(B, T) on the batch's device from the row numbers of each micro-batch, and its values; 0 where there is none."""
    shape = batch.response_tokens.shape
    whole_BT = parts[0].new_zeros(shape) if parts else torch.zeros(shape)
    for numbers, values_RT in zip(rows, parts, strict=True):
        index_R = upload(np.asarray(numbers, dtype=np.int64), values_RT.device)
        whole_BT[:, : values_RT.shape[1]].index_copy_(0, index_R, values_RT)
    return whole_BT.to(batch.device)


def light_tokens(model: PreTrainedModel) -> int:
    """Tokens of a micro-batch that needs little memory: at least `FULL_SPEED_TOKENS`, and as many more as keep the
    tensors stored for the backward pass below about 256 MiB. Small models are faster with many."""
    numbers = 3 * sum(weight.numel() for weight in model.parameters()) // hidden_width(model)
    return max(FULL_SPEED_TOKENS, (1 << 28) // (4 * max(1, numbers)))


def kept_tokens(model: PreTrainedModel) -> int:
    """Number of tokens whose logits are kept from the forward to the backward pass, including any added by rounding."""
    most = KEPT_ELEMENTS // int(model.get_output_embeddings().weight.shape[0])
    return rounded_down(most) if rounds_up(model) else most


def hidden_width(model: PreTrainedModel) -> int:
    """Hidden size of the model: numbers of a token between two layers."""
    return int(model.get_input_embeddings().weight.shape[1])


PROBE_TOKENS = 4


def find_head_transform(model: PreTrainedModel) -> HeadTransform | None:
    """The transform from the logits of the output embedding to the model's own logits; None if there is none.

    Candidates come from the model's config (logit scale, soft cap), and a comparison on a few tokens decides. None
    means that scores must be taken from the model's own full logits.
    """
    base, output = model.base_model, model.get_output_embeddings()
    if output is None or base is model or type(output) is not nn.Linear:
        return None
    device = output.weight.device
    tokens = torch.arange(PROBE_TOKENS, device=device)[None] % output.weight.shape[0]
    with torch.no_grad(), telling_layers(model):
        expected = model(**plain_inputs(model, tokens)).logits.float()
        hidden = base(**plain_inputs(base, tokens))[0]
        if hidden.shape[-1] != output.weight.shape[1]:
            return None
        raw = nn.functional.linear(hidden, output.weight, output.bias)
        tolerance = 1e-5 if raw.dtype == torch.float32 else 2e-2
        for transform in _candidates(model.config.get_text_config()):
            if _agree(transform(raw.float()), expected, tolerance):
                return transform
    return None


def _agree(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1e-3))


def _candidates(config: object) -> list[HeadTransform]:
    # Foreign configs: each family names its scale differently (Cohere multiplies, Granite divides).
    scales = [1.0]
    logit_scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    multiplier = getattr(config, "lm_head_multiplier", None)
    scales += [float(value) for value in (logit_scale, multiplier) if isinstance(value, (int, float))]
    scales += [1.0 / value for value in (divisor,) if isinstance(value, (int, float)) and value]
    softcap = getattr(config, "final_logit_softcapping", None)
    caps = [float(softcap), None] if isinstance(softcap, (int, float)) else [None]
    return [HeadTransform(scale, cap) for cap in caps for scale in reversed(scales)]
