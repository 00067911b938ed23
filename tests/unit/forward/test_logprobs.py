import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.forward import logprobs as module
from burnish.forward.logprobs import (
    KEPT_ELEMENTS,
    HeadTransform,
    LogitsBuffer,
    chunked_token_scores,
    head_logits,
    likeliest_tokens,
    plain_token_scores,
)

BOTH_WAYS = pytest.mark.parametrize("kept", [KEPT_ELEMENTS, -1, 3 * 33], ids=["kept", "streamed", "kept in part"])
TRANSFORMS = (HeadTransform(), HeadTransform(scale=0.25), HeadTransform(scale=2.0, softcap=3.0))


def _inputs(num_tokens=7, hidden=8, vocabulary=33, *, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    targets = torch.randint(0, vocabulary, (num_tokens,), generator=generator)
    return draw(num_tokens, hidden), draw(vocabulary, hidden), draw(vocabulary), targets


def _loss(scores, weights):
    logprobs, entropy = scores
    loss = (logprobs * weights).sum()
    return loss if entropy is None else loss + (entropy * weights.flip(0)).sum()


def _assert_near(found, expected):
    """Log-probabilities, and entropies where they were asked for."""
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one - other).abs().max() <= 1e-5


def test_plain_by_hand():
    """Probabilities 1/4 and 3/4 at temperature 2, and a token that the head rules out."""
    logits = torch.tensor([[0.0, -math.inf, 2 * math.log(3.0)]], requires_grad=True)
    logprobs, entropy = plain_token_scores(logits, torch.tensor([2]), temperature=2.0, entropy=True)
    assert logprobs.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    (gradient,) = torch.autograd.grad(logprobs.sum() + entropy.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 1].item() == 0.0


@BOTH_WAYS
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_chunked_equals_plain_in_value_and_gradient(transform, with_bias, entropy, kept, monkeypatch):
    """Two rows at a time where logits are kept; a second backward pass through the same graph computes them again."""
    monkeypatch.setattr("burnish.forward.logprobs.BLOCK_ELEMENTS", 2 * 33)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    hidden, weight, bias, targets = _inputs()
    bias = bias if with_bias else None
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    weights = torch.linspace(-1, 2, len(targets))
    plain = plain_token_scores(transform(linear(hidden, weight, bias)), targets, temperature=0.7, entropy=entropy)
    options = {"temperature": 0.7, "transform": transform, "entropy": entropy, "chunk_elements": 70}
    chunked = chunked_token_scores(hidden, weight, bias, targets, **options, kept_elements=kept)
    _assert_near(chunked, plain)
    expected, loss = torch.autograd.grad(_loss(plain, weights), leaves), _loss(chunked, weights)
    for _ in range(2):
        for one, other in zip(torch.autograd.grad(loss, leaves, retain_graph=True), expected, strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm()


@BOTH_WAYS
def test_gradients_against_finite_differences_in_float64(kept):
    hidden, weight, bias, targets = _inputs(3, 4, 11, dtype=torch.float64)

    options = {"temperature": 0.9, "transform": TRANSFORMS[2], "entropy": True, "chunk_elements": 12}

    def scores(*leaves):
        return chunked_token_scores(*leaves, targets, **options, kept_elements=kept)

    assert torch.autograd.gradcheck(scores, (hidden, weight, bias))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_the_size_of_the_chunks_changes_nothing(chunk_elements, tokens_per_chunk, num_tokens, seed):
    hidden, weight, bias, targets = _inputs(num_tokens, seed=seed)
    factors, results = torch.linspace(-1, 2, num_tokens), []
    for options in ({}, {"chunk_elements": chunk_elements, "kept_elements": -1}):
        with pytest.MonkeyPatch.context() as patch:
            if options:
                patch.setattr("burnish.forward.logprobs.TOKENS_PER_CHUNK", tokens_per_chunk)
            scores = chunked_token_scores(hidden, weight, bias, targets, entropy=True, **options)
            results.append([*scores, *torch.autograd.grad(_loss(scores, factors), (hidden, weight, bias))])
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_in_place_accumulation_gives_the_gradient_of_two_microbatches():
    hidden, weight, _, targets = _inputs()
    logprobs, _ = chunked_token_scores(hidden, weight, None, targets)
    logprobs.sum().backward()
    expected = weight.grad.clone()
    weight.grad = None
    for rows in (slice(0, 3), slice(3, None)):
        part, _ = chunked_token_scores(hidden[rows], weight, None, targets[rows], accumulate_in_place=True)
        part.sum().backward()
    torch.testing.assert_close(weight.grad, expected, atol=1e-6, rtol=1e-6)


@BOTH_WAYS
def test_extreme_logits_stay_finite(kept):
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.5]])
    logprobs, entropy = chunked_token_scores(
        hidden, weight, None, torch.tensor([0, 0]), entropy=True, chunk_elements=2, kept_elements=kept
    )
    assert logprobs.tolist() == [0.0, -2e4]
    assert entropy.tolist() == [0.0, 0.0]
    (logprobs + entropy).sum().backward()
    assert torch.isfinite(hidden.grad).all()


@BOTH_WAYS
def test_bfloat16_reduces_in_float32(kept):
    hidden, weight, _, targets = _inputs(dtype=torch.bfloat16)
    logprobs, entropy = chunked_token_scores(
        hidden, weight, None, targets, entropy=True, chunk_elements=70, kept_elements=kept
    )
    assert logprobs.dtype is entropy.dtype is torch.float32
    expected, _ = plain_token_scores(linear(hidden, weight), targets)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
    logprobs.sum().backward()
    expected_grad = torch.autograd.grad(expected.sum(), weight)[0]
    assert weight.grad.dtype is torch.bfloat16
    torch.testing.assert_close(weight.grad.float(), expected_grad.float(), atol=0.03, rtol=0.03)


@pytest.mark.parametrize(("kept", "rows"), [(8 * 50, 8), (8 * 50 - 1, 7), (3 * 50, 3), (49, 0), (-1, 0)])
def test_only_logits_that_are_not_kept_are_computed_twice(kept, rows, monkeypatch):
    """Rows of the products with the head: 8 of the forward pass, and those of the backward pass that are not kept."""
    hidden, weight, bias, targets = _inputs(8, 4, 50)
    products = []

    def noting(inputs, weights, bias=None):
        products.append(inputs.shape[0] * weights.shape[0])
        return linear(inputs, weights, bias)

    monkeypatch.setattr("burnish.forward.logprobs.linear", noting)
    monkeypatch.setattr(LogitsBuffer, "linear", lambda buffer, *given: noting(*given))
    chunked_token_scores(hidden, weight, bias, targets, chunk_elements=70, kept_elements=kept)[0].sum().backward()
    assert sum(products) == 8 * 50 + (8 - rows) * 50


def test_full_logits_never_exist_where_they_are_too_many():
    """No operation, forward or backward, makes a tensor larger than a chunk, what is kept, or the weight itself."""
    hidden, weight, bias, targets = _inputs(64, 4, 500)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return result

    with Watch():
        scores = chunked_token_scores(
            hidden, weight, bias, targets, entropy=True, chunk_elements=64 * 20, kept_elements=3 * 500
        )
        _loss(scores, torch.ones(64)).backward()
    assert largest == weight.numel() == 2000
    assert largest < 64 * 500


@BOTH_WAYS
def test_no_tokens_at_all(kept):
    hidden, weight, _, targets = _inputs()
    logprobs, _ = chunked_token_scores(hidden[:0], weight, None, targets[:0], kept_elements=kept)
    assert logprobs.shape == (0,)
    logprobs.sum().backward()
    assert not weight.grad.any()


def test_temperature_must_be_positive():
    hidden, weight, _, targets = _inputs()
    with pytest.raises(ValueError, match="temperature"):
        chunked_token_scores(hidden, weight, None, targets, temperature=0.0)


@BOTH_WAYS
@pytest.mark.parametrize(
    "ruled_out", [slice(0, 12), slice(21, 33), slice(0, 33, 2)], ids=["first", "last", "every other"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tokens_that_the_head_rules_out_have_no_part_in_entropy_and_gradient(ruled_out, dtype, kept):
    """Logits of -inf: as if the vocabulary were without them. Whole chunks may be ruled out."""
    hidden, weight, bias, targets = _inputs(dtype=dtype)
    allowed = torch.ones(33, dtype=torch.bool)
    allowed[ruled_out] = False
    targets = torch.where(allowed[targets], targets, int(allowed.nonzero()[3]))
    few = [t.detach().requires_grad_() for t in (hidden, weight[allowed], bias[allowed])]
    ruled = [hidden, weight, torch.where(allowed, bias, -math.inf).detach().requires_grad_()]
    factors = torch.linspace(0.5, 2.0, len(targets))
    scores, gradients = [], []
    for tensors, chosen in ((few, (allowed.cumsum(0) - 1)[targets]), (ruled, targets)):
        found = chunked_token_scores(
            *tensors, chosen, entropy=True, temperature=0.7, chunk_elements=28, kept_elements=kept
        )
        scores.append(found)
        gradients.append(torch.autograd.grad(_loss(found, factors), tensors))
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(scores[1], scores[0], **tolerance)
    hidden_gradient, weight_gradient, bias_gradient = gradients[1]
    torch.testing.assert_close(hidden_gradient, gradients[0][0], **tolerance)
    torch.testing.assert_close(weight_gradient[allowed], gradients[0][1], **tolerance)
    assert not weight_gradient[~allowed].any()
    assert not bias_gradient[~allowed].any()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_buffers_product_is_pytorchs(dtype, with_bias):
    hidden, weight, bias, _ = (tensor.detach() for tensor in _inputs(dtype=dtype))
    bias = bias if with_bias else None
    assert LogitsBuffer().linear(hidden, weight, bias).equal(linear(hidden, weight, bias))


def test_a_buffer_hands_out_memory_that_was_given_back_if_it_is_enough():
    hidden, weight, _, _ = (tensor.detach() for tensor in _inputs())
    buffer = LogitsBuffer()
    first = buffer.linear(hidden, weight, None)
    beside = buffer.linear(hidden, weight, None)
    assert beside.data_ptr() != first.data_ptr()  # which is in use
    buffer.give_back(first)
    smaller = buffer.linear(hidden[:2], weight, None)
    assert smaller.data_ptr() == first.data_ptr()
    assert smaller.equal(linear(hidden[:2], weight))
    buffer.give_back(smaller)
    assert buffer.linear(hidden, weight, None).data_ptr() == first.data_ptr()  # the whole block, not two rows of it
    buffer.give_back(first)
    wide = torch.cat((hidden, hidden))
    assert buffer.linear(wide, weight, None).equal(linear(wide, weight))
    assert buffer.linear(hidden.double(), weight.double(), None).dtype == torch.float64


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_microbatches_with_one_buffer_have_their_own_gradients(order):
    """Scored one after the other, then gone through backwards in either order, one of them twice: a buffer that both
    had at once would give the logits of the other one."""
    hidden, weight, bias, targets = _inputs()
    halves, buffer = (slice(0, 3), slice(3, None)), LogitsBuffer()

    def loss(rows, **options):
        logprobs, entropy = chunked_token_scores(hidden[rows], weight, bias, targets[rows], entropy=True, **options)
        return logprobs.sum() + entropy.sum()

    expected = [torch.autograd.grad(loss(rows), (hidden, weight, bias)) for rows in halves]
    for _ in range(2):
        losses = [loss(rows, buffer=buffer) for rows in halves]
        for half in (*order, order[0]):
            found = torch.autograd.grad(losses[half], (hidden, weight, bias), retain_graph=True)
            for one, other in zip(found, expected[half], strict=True):
                assert one.equal(other)


def test_likeliest_tokens_in_chunks_are_the_argmax_of_the_full_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(37, 8, generator=generator), torch.randn(50, 8, generator=generator)
    bias = torch.randn(50, generator=generator)
    expected = (hidden @ weight.T + bias).argmax(-1)
    for chunk_elements in (1, 120, 1 << 20):
        assert torch.equal(likeliest_tokens(hidden, weight, bias, chunk_elements=chunk_elements), expected)
    assert likeliest_tokens(hidden[:0], weight, None).shape == (0,)


def _with_float32_sums(monkeypatch) -> None:
    """Products of bfloat16 on this CPU give their sums, as a GPU's do."""
    mm, addmm = torch.mm, torch.addmm

    def wide_mm(left, right, *, out_dtype=None, **others):
        return mm(left, right, **others) if out_dtype is None else mm(left.float(), right.float())

    def wide_addmm(total, left, right, *, out_dtype=None, **others):
        if out_dtype is None:
            return addmm(total, left, right, **others)
        assert left.dtype == right.dtype == torch.bfloat16
        return addmm(total, left.float(), right.float(), **others)

    monkeypatch.setattr(torch, "mm", wide_mm)
    monkeypatch.setattr(torch, "addmm", wide_addmm)
    monkeypatch.setattr(module, "gives_float32_sums", lambda device, dtype: dtype == torch.bfloat16)
    monkeypatch.setattr(LogitsBuffer, "linear", lambda buffer, *given: head_logits(*given))


@pytest.mark.parametrize("kept", [KEPT_ELEMENTS, 0, 9 * 500], ids=["kept", "again", "kept in part"])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_bfloat16_with_float32_sums_is_as_exact_as_its_inputs(transform, with_bias, kept, monkeypatch):
    """Against float64: scores at float32's rounding, gradients at that of the products' bfloat16 factors. Logits
    rounded to bfloat16 would be off by up to 0.03."""
    _with_float32_sums(monkeypatch)
    hidden, weight, bias, targets = _inputs(40, 16, 500, dtype=torch.bfloat16)
    leaves = [hidden, weight, bias] if with_bias else [hidden, weight]
    factors = torch.linspace(-1, 2, len(targets))
    options = {"temperature": 0.7, "transform": transform, "entropy": True, "by_rows": True}
    found = chunked_token_scores(
        hidden, weight, bias if with_bias else None, targets, **options, kept_elements=kept, chunk_elements=3 * 500
    )
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    logits = transform(linear(*exact))
    wanted = plain_token_scores(logits, targets, temperature=0.7, entropy=True)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=0)
    gradients = torch.autograd.grad(_loss(found, factors), leaves)
    for one, other in zip(gradients, torch.autograd.grad(_loss(wanted, factors), exact), strict=True):
        assert (one.double() - other).norm() <= 4e-3 * other.norm()
