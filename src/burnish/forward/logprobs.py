"""Log-probabilities and entropy of chosen tokens without several (N, V) tensors.

Shapes: N positions, H hidden size, V vocabulary. Of the first K positions, as many as memory is set aside for, logits
are kept as the head gave them and processed a few rows at a time, so that a cache holds those rows meanwhile; the
backward pass overwrites them with their gradient. Over the other positions both passes walk in chunks of the
vocabulary: the forward pass with a running log-sum-exp per position (Milakov and Gimelshein 2018,
https://arxiv.org/abs/1805.02867), the backward pass computing each chunk's logits again. Peak extra memory is then
what is kept, one chunk and the gradients.

On other devices than a CPU, where large operations are fast and small ones are not, a chunk has whole rows, of as many
positions as `DEVICE_ELEMENTS` is enough for. From bfloat16 or float16, logits are the products' float32 sums, unrounded
(`burnish.machine.matmul_precision.gives_float32_sums`); their gradient is rounded once, for the products of the
backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import linear

from burnish.algorithms.ratios import entropy_from_logits
from burnish.machine.matmul_precision import gives_float32_sums

CHUNK_ELEMENTS = 1 << 22
"""Logits of one chunk: 16 MiB in float32, which may fit into a processor's last cache."""
TOKENS_PER_CHUNK = 1024
KEPT_ELEMENTS = 1 << 26
"""Up to this many logits of a call are kept for its backward pass: 256 MiB in float32, half of that in bfloat16."""
BLOCK_ELEMENTS = 1 << 19
"""Kept logits that are processed at a time: 2 MiB in float32, so that several passes in a row find them in a cache."""
DEVICE_ELEMENTS = 1 << 27
"""In place of these three on a GPU: logits that exist at a time, 512 MiB in float32, kept or computed again."""
DEVICE_BLOCK_ELEMENTS = 1 << 25
"""Of these, how many an operation takes at a time, so that its intermediate results are of 128 MiB each."""
LEAST_LOGPROB = -1e4
"""exp of this is 0 in every number type. Log-probabilities below it (-inf for a token that a head rules out) count as
this in entropies and their gradients: 0 times this is 0, where 0 times -inf is not a number."""


@dataclass(frozen=True, slots=True)
class HeadTransform:
    """Transform that a model applies to `hidden @ weight.T + bias` to get its logits.

    `scale` multiplies (Cohere, Granite); `softcap` c then maps x to c tanh(x / c) (Gemma); None leaves x as it is.
    """

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        scaled = logits if self.scale == 1.0 else logits * self.scale
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)


def plain_token_scores(
    logits_NV: Tensor, targets_N: Tensor, *, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The definition: (log-probability of each target, entropy in nats or None), both (N,) in float32.

    For models whose head is not a plain linear layer, and as the reference for the chunked form.
    """
    scaled_NV = logits_NV.to(reduction_dtype(logits_NV)) / temperature
    log_normalizer_N = torch.logsumexp(scaled_NV, dim=-1)
    logprobs_N = scaled_NV.gather(-1, targets_N[:, None])[:, 0] - log_normalizer_N
    if not entropy:
        return logprobs_N, None
    return logprobs_N, entropy_from_logits(scaled_NV)


class LogitsBuffer:
    """Memory for the logits that calls keep for their backward passes: one micro-batch after another uses the same. It
    is free when the buffer is dropped.

    They are the largest tensors of a pass on a CPU, and glibc often cannot reuse the room of a freed block of the same
    size, because small blocks have been allocated in it. A step of 56 million parameters took up to a tenth more
    memory at its peak than with this buffer (docs/speed.md, "Memory").
    """

    _spare: Tensor | None = None
    """One-dimensional, used by no call."""

    def linear(self, hidden_KH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
        """`torch.nn.functional.linear` to the last bit, (K, V), in memory of its own until `give_back`; `head_logits`
        on other devices than a CPU, whose allocators keep freed memory by its size."""
        if hidden_KH.device.type != "cpu":
            return head_logits(hidden_KH, weight_VH, bias_V)
        rows, vocabulary = hidden_KH.shape[0], weight_VH.shape[0]
        spare, self._spare = self._spare, None
        if spare is None or spare.dtype != hidden_KH.dtype or spare.numel() < rows * vocabulary:
            del spare  # before there is another
            spare = hidden_KH.new_empty(rows * vocabulary)
        output_KV = spare[: rows * vocabulary].view(rows, vocabulary)
        if bias_V is None:
            return torch.mm(hidden_KH, weight_VH.T, out=output_KV)
        return torch.addmm(bias_V, hidden_KH, weight_VH.T, out=output_KV)

    def give_back(self, output_KV: Tensor) -> None:
        """Return the memory of a result of `linear` that nobody needs any more."""
        if output_KV.device.type == "cpu":
            whole = output_KV.untyped_storage().nbytes() // output_KV.element_size()
            self._spare = output_KV.as_strided((whole,), (1,), 0)


def head_logits(hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear`, not rounded from float32 to the inputs' type where the device can do without."""
    if not gives_float32_sums(hidden_NH.device.type, hidden_NH.dtype):
        return linear(hidden_NH, weight_VH, bias_V)
    logits_NV = torch.mm(hidden_NH, weight_VH.T, out_dtype=torch.float32)
    return logits_NV if bias_V is None else logits_NV.add_(bias_V)


def chunked_token_scores(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    transform: HeadTransform | None = None,
    entropy: bool = False,
    accumulate_in_place: bool = False,
    chunk_elements: int | None = None,
    kept_elements: int | None = None,
    buffer: LogitsBuffer | None = None,
    vocabulary: int | None = None,
    by_rows: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(log-probability of each target, entropy in nats or None) of softmax(transform(hidden @ weight.T + bias) / T).

    The softmax is over the first `vocabulary` rows of the weight (None: over all), and the others get no gradient.
    Results are (N,) float32 (float64 for float64 input) and differentiable in hidden, weight and bias.
    `accumulate_in_place` adds the weight's gradient straight into `weight.grad` when weight is a leaf without hooks,
    so that a second micro-batch needs no second (V, H) buffer; `torch.autograd.grad` for the weight then sees nothing.
    At most `kept_elements` logits are kept for the backward pass, of as many positions as that is enough for, in
    `buffer`'s memory. `by_rows`: the others are computed in chunks of whole rows. All three depend on the device.
    Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    on_cpu = hidden_NH.device.type == "cpu"
    # A GPU needs large operations to be busy; a CPU is fastest while a chunk stays in its cache.
    chunk, kept = (CHUNK_ELEMENTS, KEPT_ELEMENTS) if on_cpu else (DEVICE_ELEMENTS, DEVICE_ELEMENTS)
    sizes = chunk_elements or chunk, kept if kept_elements is None else kept_elements
    head, rows = transform or HeadTransform(), not on_cpu if by_rows is None else by_rows
    plan = _Plan(temperature, head, entropy, accumulate_in_place, *sizes, buffer or LogitsBuffer(), vocabulary, rows)
    logprobs_N, entropy_N = _ChunkedTokenScores.apply(hidden_NH, weight_VH, bias_V, targets_N, plan)
    return logprobs_N, entropy_N if entropy else None


@torch.no_grad()
def likeliest_tokens(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    *,
    vocabulary: int | None = None,
    chunk_elements: int | None = None,
) -> Tensor:
    """(N,) token ids of the largest logit, a few positions at a time; transform and temperature do not change it."""
    usual = CHUNK_ELEMENTS if hidden_NH.device.type == "cpu" else DEVICE_ELEMENTS
    rows = max(1, (chunk_elements or usual) // weight_VH.shape[0])
    parts = [head_logits(part, weight_VH, bias_V)[:, :vocabulary].argmax(-1) for part in hidden_NH.split(rows)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device=hidden_NH.device)


@dataclass(frozen=True, slots=True)
class _Plan:
    temperature: float
    head: HeadTransform
    entropy: bool
    accumulate_in_place: bool
    chunk_elements: int
    kept_elements: int
    buffer: LogitsBuffer
    vocabulary: int | None
    by_rows: bool

    def kept_logits(self, hidden_KH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
        """The head's output for the vocabulary, a view of its output for all rows of the weight: a product with fewer
        rows may be slower and round differently."""
        return self.buffer.linear(hidden_KH, weight_VH, bias_V)[:, : self.vocabulary]

    def logits(self, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
        """Like `kept_logits`, in memory that is freed as soon as nobody reads it."""
        return head_logits(hidden_NH, weight_VH, bias_V)[:, : self.vocabulary]

    def kept_rows(self, num_tokens: int, vocabulary: int) -> int:
        return max(0, min(num_tokens, self.kept_elements // max(1, vocabulary)))

    def token_chunks(self, num_tokens: int) -> Iterator[slice]:
        return slices(num_tokens, TOKENS_PER_CHUNK)

    def whole_rows(self, rows: slice, vocabulary: int) -> Iterator[slice]:
        """Split the positions `rows` into chunks of at most `chunk_elements` logits, at least one row each."""
        size = max(1, self.chunk_elements // max(1, vocabulary))
        return (slice(rows.start + part.start, rows.start + part.stop) for part in slices(rows.stop - rows.start, size))

    def vocabulary_chunks(self, num_tokens: int, weight_VH: Tensor) -> Iterator[slice]:
        rows = max(1, min(num_tokens, num_tokens if self.by_rows else TOKENS_PER_CHUNK))
        return slices(len(weight_VH[: self.vocabulary]), max(1, self.chunk_elements // rows))

    def row_blocks(self, raw_NV: Tensor) -> Iterator[slice]:
        """A few rows at a time: as many as a cache holds, at least one per thread; more on devices that need large
        operations."""
        on_cpu = raw_NV.device.type == "cpu"
        rows = (BLOCK_ELEMENTS if on_cpu else DEVICE_BLOCK_ELEMENTS) // max(1, raw_NV.shape[1])
        return slices(raw_NV.shape[0], max(torch.get_num_threads() if on_cpu else 1, rows))

    def tempered(self, raw: Tensor, *, overwrite: bool = False) -> Tensor:
        """The input of the softmax for the head's raw output, in the reduction dtype. May be `raw` itself, which is
        changed only with `overwrite`."""
        factor, softcap = self.head.scale / self.temperature, self.head.softcap
        changes = softcap is not None or factor != 1.0
        logits = raw.to(reduction_dtype(raw), copy=changes and not overwrite)
        if softcap is not None:
            return logits.mul_(self.head.scale / softcap).tanh_().mul_(softcap / self.temperature)
        return logits.mul_(factor) if changes else logits

    def slope(self, tempered: Tensor) -> Tensor | float:
        """d tempered / d raw."""
        factor, softcap = self.head.scale / self.temperature, self.head.softcap
        if softcap is None:
            return factor
        return (tempered * (self.temperature / softcap)).square_().neg_().add_(1.0).mul_(factor)


@dataclass(frozen=True, slots=True)
class _Outer:
    """Per-position inputs of the backward pass: targets, entropies and incoming gradients."""

    targets_N: Tensor
    entropy_N: Tensor
    grad_logprobs_N: Tensor
    grad_entropy_N: Tensor | None

    def of(self, rows: slice, first_column: int = 0) -> _Outer:
        """Select the positions `rows`, with targets counted from `first_column` on."""
        grad_entropy_N = None if self.grad_entropy_N is None else self.grad_entropy_N[rows]
        return _Outer(
            self.targets_N[rows] - first_column, self.entropy_N[rows], self.grad_logprobs_N[rows], grad_entropy_N
        )


class _Context(FunctionCtx):
    """Tensors kept for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    plan: _Plan
    weight: Tensor
    raw_KV: Tensor | None

    needs_input_grad: tuple[bool, bool, bool, bool, bool]


class _ChunkedTokenScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _Context, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, plan: _Plan
    ) -> tuple[Tensor, Tensor]:
        # With and without a gradient alike: equal weights then give equal numbers to the last bit.
        kept_rows = plan.kept_rows(hidden_NH.shape[0], weight_VH.shape[0])
        raw_KV = plan.kept_logits(hidden_NH[:kept_rows], weight_VH, bias_V)
        logprobs_K, entropy_K = _score_rows(raw_KV, targets_N[:kept_rows], plan)
        ctx.raw_KV = raw_KV
        logprobs_N, entropy_N, log_normalizer_R = logprobs_K, entropy_K, logprobs_K.new_zeros(0)
        if kept_rows < hidden_NH.shape[0]:
            rest = (hidden_NH[kept_rows:], weight_VH, bias_V, targets_N[kept_rows:], plan)
            logprobs_R, log_normalizer_R, entropy_R = _score_by_rows(*rest) if plan.by_rows else _stream(*rest)
            logprobs_N, entropy_N = torch.cat((logprobs_K, logprobs_R)), torch.cat((entropy_K, entropy_R))
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.weight = weight_VH  # the very leaf: its .grad is written when accumulate_in_place
        # Its stub does not know that None is allowed.
        ctx.save_for_backward(hidden_NH, bias_V, targets_N, log_normalizer_R, entropy_N)  # type: ignore[arg-type]
        if not plan.entropy:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _Context, grad_logprobs_N: Tensor | None, grad_entropy_N: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden_NH, bias_V, targets_N, log_normalizer_R, entropy_N = ctx.saved_tensors
        plan, kept_rows = ctx.plan, hidden_NH.shape[0] - log_normalizer_R.shape[0]
        # None if the loss reads only the entropies.
        if grad_logprobs_N is None:
            grad_logprobs_N = torch.zeros_like(entropy_N)
        outer = _Outer(targets_N, entropy_N, grad_logprobs_N, grad_entropy_N)
        needs, in_place = ctx.needs_input_grad[:3], plan.accumulate_in_place
        gradients = HeadGradients(hidden_NH, ctx.weight, bias_V, needs, in_place=in_place)
        raw_KV, ctx.raw_KV = ctx.raw_KV, None  # overwritten: a second backward pass computes them again
        if raw_KV is None:
            raw_KV = plan.kept_logits(hidden_NH[:kept_rows], ctx.weight, bias_V)
        _add_whole_rows(gradients, slice(0, kept_rows), raw_KV, outer, plan)
        plan.buffer.give_back(raw_KV)
        del raw_KV
        if plan.by_rows:
            for rows in plan.whole_rows(slice(kept_rows, hidden_NH.shape[0]), ctx.weight.shape[0]):
                _add_whole_rows(gradients, rows, plan.logits(hidden_NH[rows], ctx.weight, bias_V), outer, plan)
        elif kept_rows < hidden_NH.shape[0]:
            _add_streamed(gradients, bias_V, log_normalizer_R, outer, plan)
        return *gradients.finish(), None, None


def _score_rows(raw_NV: Tensor, targets_N: Tensor, plan: _Plan) -> tuple[Tensor, Tensor]:
    """(logprobs, entropy or zeros) from the head's whole output at these positions."""
    logprobs_N = raw_NV.new_zeros(raw_NV.shape[0], dtype=reduction_dtype(raw_NV))
    entropy_N = torch.zeros_like(logprobs_N)
    # A few rows at a time: what one operation writes is still in the cache when the next one reads it.
    for rows in plan.row_blocks(raw_NV):
        log_p = torch.log_softmax(plan.tempered(raw_NV[rows]), -1)
        logprobs_N[rows] = log_p.gather(1, targets_N[rows, None])[:, 0]
        if plan.entropy:
            entropy_N[rows] = -log_p.exp().mul_(log_p.clamp_(min=LEAST_LOGPROB)).sum(-1)
    return logprobs_N, entropy_N


def _score_by_rows(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs, their shape in zeros, entropy or zeros): nothing but the logits is needed to compute them again."""
    logprobs_N = hidden_NH.new_zeros(hidden_NH.shape[0], dtype=reduction_dtype(hidden_NH))
    entropy_N, unused_N = torch.zeros_like(logprobs_N), torch.zeros_like(logprobs_N)
    for rows in plan.whole_rows(slice(0, hidden_NH.shape[0]), weight_VH.shape[0]):
        raw = plan.logits(hidden_NH[rows], weight_VH, bias_V)
        logprobs_N[rows], entropy_N[rows] = _score_rows(raw, targets_N[rows], plan)
    return logprobs_N, unused_N, entropy_N


def _add_whole_rows(gradients: HeadGradients, positions: slice, raw_KV: Tensor, outer: _Outer, plan: _Plan) -> None:
    """Add the gradients from the head's whole output at these positions, which is overwritten."""
    # The output itself becomes its gradient, so that there is never a second tensor of its size.
    outer = outer.of(positions)
    for rows in plan.row_blocks(raw_KV):
        tempered = plan.tempered(raw_KV[rows])
        slope = plan.slope(tempered)
        if outer.grad_entropy_N is None:
            raw_KV[rows] = _raw_gradient(torch.softmax(tempered, -1), None, slope, outer.of(rows))
        else:
            log_p = torch.log_softmax(tempered, -1)
            raw_KV[rows] = _raw_gradient(log_p.exp(), log_p.clamp_(min=LEAST_LOGPROB), slope, outer.of(rows))
    for columns in plan.vocabulary_chunks(raw_KV.shape[0], gradients.weight_VH):
        gradients.add(positions, columns, raw_KV[:, columns])


def _add_streamed(
    gradients: HeadGradients, bias_V: Tensor | None, log_normalizer_R: Tensor, outer: _Outer, plan: _Plan
) -> None:
    """Add the gradients from each chunk of the head's output at the last R positions, computed again."""
    hidden_NH, weight_VH = gradients.hidden_NH, gradients.weight_VH
    kept_rows = hidden_NH.shape[0] - log_normalizer_R.shape[0]
    token_chunks = [
        slice(kept_rows + rows.start, kept_rows + rows.stop) for rows in plan.token_chunks(log_normalizer_R.shape[0])
    ]

    def gradient(rows: slice, columns: slice) -> Tensor:
        raw = linear(hidden_NH[rows], weight_VH[columns], None if bias_V is None else bias_V[columns])
        tempered = plan.tempered(raw, overwrite=True)
        slope = plan.slope(tempered)
        log_p = tempered.sub_(log_normalizer_R[rows.start - kept_rows : rows.stop - kept_rows, None])
        part = outer.of(rows, columns.start)
        if part.grad_entropy_N is None:
            return _raw_gradient(log_p.exp_(), None, slope, part).to(raw.dtype)
        return _raw_gradient(log_p.exp(), log_p.clamp_(min=LEAST_LOGPROB), slope, part).to(raw.dtype)

    for columns in plan.vocabulary_chunks(log_normalizer_R.shape[0], weight_VH):
        for rows in token_chunks:
            gradients.add(rows, columns, gradient(rows, columns))


def _raw_gradient(p: Tensor, log_p: Tensor | None, slope: Tensor | float, outer: _Outer) -> Tensor:
    """Gradient with respect to the head's raw output, written over `p`: some rows, and all columns or a chunk. `log_p`
    is given if entropies have a gradient.

    d logprob / d x_j = [j = target] - p_j and d entropy / d x_j = -p_j (log p_j + entropy).
    """
    columns_N, grad_logprobs_N = outer.targets_N, outer.grad_logprobs_N
    if log_p is None or outer.grad_entropy_N is None:
        p.mul_(-grad_logprobs_N[:, None])
    else:
        p.mul_((log_p + outer.entropy_N[:, None]).mul_(-outer.grad_entropy_N[:, None]).sub_(grad_logprobs_N[:, None]))
    inside_N = (columns_N >= 0) & (columns_N < p.shape[1])
    at_target_N = torch.where(inside_N, grad_logprobs_N, 0.0).to(p.dtype)
    index_N1 = columns_N.clamp(0, p.shape[1] - 1)[:, None]
    p.scatter_(1, index_N1, p.gather(1, index_N1) + at_target_N[:, None])  # scatter_add_ has no fixed order on a GPU
    return p if isinstance(slope, float) and slope == 1.0 else p.mul_(slope)


def _stream(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs, log normaliser, entropy or zeros), in walks over the vocabulary."""
    parts = [
        _stream_chunk(hidden_NH[rows], weight_VH, bias_V, targets_N[rows], plan)
        for rows in plan.token_chunks(hidden_NH.shape[0])
    ]
    logprobs_N, log_normalizer_N, entropy_N = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return logprobs_N, log_normalizer_N, entropy_N


def _stream_chunk(
    hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_N: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = reduction_dtype(hidden_NH)
    num_tokens = hidden_NH.shape[0]
    peak_N = hidden_NH.new_full((num_tokens,), -torch.inf, dtype=dtype)
    mass_N, moment_N, target_logits_N = (hidden_NH.new_zeros(num_tokens, dtype=dtype) for _ in range(3))
    for columns in plan.vocabulary_chunks(num_tokens, weight_VH):
        raw = linear(hidden_NH, weight_VH[columns], None if bias_V is None else bias_V[columns])
        logits = plan.tempered(raw, overwrite=True)
        _take_targets(logits, targets_N - columns.start, target_logits_N)
        new_peak_N = torch.maximum(peak_N, logits.amax(-1))
        # Until the first token that is not ruled out there is no peak to subtract: -inf minus -inf is not a number.
        origin_N = torch.where(torch.isneginf(new_peak_N), 0.0, new_peak_N)
        shrink_N = torch.exp(peak_N - origin_N)
        logits.sub_(origin_N[:, None])
        if plan.entropy:
            # moment = sum of exp(x - peak) (x - peak); moving the peak shifts every term of it
            shift_N = torch.where(mass_N > 0, (peak_N - new_peak_N) * mass_N, 0.0)
            weights = torch.exp(logits)
            moment_N = (moment_N + shift_N) * shrink_N
            mass_N = mass_N * shrink_N + weights.sum(-1)
            moment_N += weights.mul_(logits.clamp_(min=LEAST_LOGPROB)).sum(-1)
        else:
            mass_N = mass_N * shrink_N + logits.exp_().sum(-1)
        peak_N = new_peak_N
    log_mass_N = torch.log(mass_N)
    log_normalizer_N = peak_N + log_mass_N
    entropy_N = log_mass_N - moment_N / mass_N if plan.entropy else torch.zeros_like(log_mass_N)
    return target_logits_N - log_normalizer_N, log_normalizer_N, entropy_N


def _take_targets(logits: Tensor, columns_N: Tensor, out_N: Tensor) -> None:
    """Copy the logit at each position's column to `out_N` where the column lies inside this chunk."""
    inside_N = (columns_N >= 0) & (columns_N < logits.shape[1])
    taken_N = logits.gather(1, columns_N.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    out_N.copy_(torch.where(inside_N, taken_N, out_N))


class HeadGradients:
    """Buffers of the backward pass, None for gradients that are not needed. Sums over chunks are in float32, or in
    `weight.grad` itself and its dtype."""

    def __init__(
        self, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, needs: Sequence[bool], *, in_place: bool
    ) -> None:
        self.hidden_NH, self.weight_VH = hidden_NH, weight_VH
        self.grad_hidden_NH = _sums(hidden_NH) if needs[0] else None
        self.grad_bias_V = _sums(bias_V) if needs[2] and bias_V is not None else None
        # A hook has to see the gradient of each pass: none may be hidden in the sum of all.
        self.in_place = needs[1] and in_place and weight_VH.is_leaf and not weight_VH._backward_hooks
        if self.in_place and weight_VH.grad is None:
            weight_VH.grad = torch.zeros_like(weight_VH, dtype=weight_VH.grad_dtype)
        self.grad_weight_VH = weight_VH.grad if self.in_place else _sums(weight_VH) if needs[1] else None

    def add(self, rows: slice, columns: slice, gradient: Tensor) -> None:
        """Add the products with the gradient of these raw logits: a chunk of tokens, and of the vocabulary."""
        grad_logits = gradient.to(self.hidden_NH.dtype)
        if self.grad_hidden_NH is not None:
            _add_product(self.grad_hidden_NH[rows], grad_logits, self.weight_VH[columns])
        if self.grad_weight_VH is not None:
            _add_product(self.grad_weight_VH[columns], grad_logits.T, self.hidden_NH[rows])
        if self.grad_bias_V is not None:
            self.grad_bias_V[columns].add_(gradient.sum(0, dtype=reduction_dtype(gradient)))

    def finish(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(hidden, weight, bias) gradients for autograd; the weight's is None when it was added in place."""
        hidden = None if self.grad_hidden_NH is None else self.grad_hidden_NH.to(self.hidden_NH.dtype)
        return hidden, None if self.in_place else self.grad_weight_VH, self.grad_bias_V


def _sums(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=reduction_dtype(like))


def _add_product(sum_AB: Tensor, left: Tensor, right: Tensor) -> None:
    if sum_AB.dtype == left.dtype:
        sum_AB.addmm_(left, right)
    elif sum_AB.dtype == torch.float32 and gives_float32_sums(left.device.type, left.dtype):
        torch.addmm(sum_AB, left, right, out_dtype=torch.float32, out=sum_AB)
    else:
        sum_AB.add_(torch.mm(left, right))


def reduction_dtype(tensor: Tensor) -> torch.dtype:
    """Type that sums over the vocabulary are computed in: at least float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def slices(total: int, size: int) -> Iterator[slice]:
    """Cut the numbers from 0 to `total` into parts of `size`; the last one may be smaller."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
