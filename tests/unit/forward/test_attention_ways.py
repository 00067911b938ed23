"""Every way to attend in a packed row against dense attention with a mask, outputs and gradients."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from batches import batch_of
from dense_attention import dense
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from burnish.forward import varlen_attention
from burnish.forward.attention import WAYS, packing_way, ways_on
from burnish.forward.fast_paths import FastPaths
from burnish.forward.flex_attention import BLOCK, FlexAttention
from burnish.forward.packing import Packing
from burnish.forward.probe import use_packed_rows
from burnish.forward.race import Contender, RaceResult
from burnish.forward.varlen_attention import SequenceEnds, VarlenAttention
from burnish.forward.verdicts import VerdictCache

CPU = torch.device("cpu")


def packing_of(prompts: list[int], prompt_lengths: list[int], response_lengths: list[int]) -> Packing:
    """Rows of these lengths; equal numbers in `prompts` share one."""
    texts = [[prompt] * prompt_lengths[prompt] for prompt in prompts]
    return Packing.of(batch_of(texts, [[0] * length for length in response_lengths]).host)


def visible(packing: Packing) -> Tensor:
    """(S, S) bool, by the definition: own sequence causally, the prompt of a response whole."""
    sees = torch.zeros(packing.size, packing.size, dtype=torch.bool)
    responses = packing.response_spans()
    for group, prompt in zip(packing.groups, packing.prompt_spans(), strict=True):
        for span in (prompt, *(responses[row] for row in group)):
            sees[span, span] = torch.ones(span.stop - span.start, span.stop - span.start, dtype=torch.bool).tril()
        for row in group:
            sees[responses[row], prompt] = True
    return sees


def sees_of(ends: SequenceEnds, queries: int, keys: int) -> Tensor:
    sees = torch.zeros(queries, keys, dtype=torch.bool)
    spans = zip(pairwise(ends.queries.tolist()), pairwise(ends.keys.tolist()), strict=True)
    for (query, query_end), (key, key_end) in spans:
        assert query_end - query <= ends.longest_query
        assert key_end - key <= ends.longest_key
        block = torch.ones(query_end - query, key_end - key, dtype=torch.bool)
        sees[query:query_end, key:key_end] = block.tril() if ends.is_causal else block
    return sees


def plain_forward(query, key, value, ends: SequenceEnds, scaling: float) -> tuple[Tensor, Tensor]:
    """In place of the kernel: `varlen_forward` by the definition."""
    assert ends.queries.dtype == ends.keys.dtype == torch.int32
    output, sums = dense(query, key, value, sees_of(ends, len(query), len(key)), scaling)
    return output.contiguous(), sums


def plain_backward(grad, query, key, value, output, sums_HQ, ends: SequenceEnds, scaling: float) -> tuple[Tensor, ...]:
    """In place of the kernel: algorithm 4 of FlashAttention, from the output and log-sum-exps it is given."""
    heads, shared = key.shape[1], query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scaling
    p = (scores - sums_HQ[..., None]).exp().masked_fill(~sees_of(ends, len(query), len(key)), 0.0)
    grad_p = torch.einsum("qhd,khd->hqk", grad, values)
    grad_scores = p * (grad_p - (grad * output).sum(-1).T[..., None]) * scaling
    grad_key = torch.einsum("hqk,qhd->khd", grad_scores, query).unflatten(1, (heads, shared)).sum(2)
    grad_value = torch.einsum("hqk,qhd->khd", p, grad).unflatten(1, (heads, shared)).sum(2)
    return torch.einsum("hqk,khd->qhd", grad_scores, keys), grad_key, grad_value


@pytest.fixture(scope="module", autouse=True)
def no_gpu_needed():
    """On a CPU the kernel is replaced; on a GPU it is itself."""
    kernels = {name: getattr(varlen_attention, name) for name in ("varlen_forward", "varlen_backward")}
    by_definition = {"varlen_forward": plain_forward, "varlen_backward": plain_backward}

    def on_any_device(name: str):
        return lambda first, *others: (kernels if first.is_cuda else by_definition)[name](first, *others)

    with pytest.MonkeyPatch.context() as patch:
        for name in kernels:
            patch.setattr(varlen_attention, name, on_any_device(name))
        yield


def drawn(packing: Packing, heads: int = 4, key_heads: int = 2, *, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(packing.size, n, 8) for n in (heads, key_heads, key_heads, heads)]
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def outputs_and_gradients(run, inputs: list[Tensor]) -> list[Tensor]:
    *leaves, outer = inputs
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    output = run(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, outer)]


def assert_right(way: str, packing: Packing) -> None:
    inputs = drawn(packing)
    attention = WAYS[way](packing, CPU, torch.float64)
    found = outputs_and_gradients(lambda q, k, v: attention.attend(q, k, v, 0.3), inputs)
    sees = visible(packing)
    wanted = outputs_and_gradients(lambda q, k, v: dense(q, k, v, sees, 0.3)[0], inputs)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


rows = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=9)


@pytest.mark.parametrize("way", ["merged", "varlen", "copied"])
@settings(max_examples=30, deadline=None)
@given(rows=rows, prompt_lengths=st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_any_layout_is_dense_attention(way: str, rows: list[tuple[int, int]], prompt_lengths: list[int]) -> None:
    assert_right(way, packing_of([prompt for prompt, _ in rows], prompt_lengths, [length for _, length in rows]))


def test_where_each_sequence_ends() -> None:
    """Prompts of 3 and 2 tokens; responses of 3, 1 and 4 tokens, whose last ones have no slot."""
    attention = VarlenAttention(packing_of([0, 0, 1], [3, 2], [3, 1, 4]), CPU)
    own = attention.itself
    assert own.queries.tolist() == own.keys.tolist() == [0, 3, 5, 7, 10]
    assert (own.longest_query, own.longest_key, own.is_causal) == (3, 3, True)
    prompts = attention.prompts
    assert attention.first_response == 5
    assert prompts.queries.tolist() == [0, 2, 5]
    assert prompts.keys.tolist() == [0, 3, 5]
    assert (prompts.longest_query, prompts.longest_key, prompts.is_causal) == (3, 3, False)


def test_responses_of_one_token_have_no_second_part() -> None:
    packing = packing_of([0, 0], [3], [1, 1])
    assert VarlenAttention(packing, CPU).prompts is None
    assert_right("varlen", packing)


def test_a_backward_pass_from_the_parts_own_sums_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the joined output and sums are for: with its own sums the causal part counts too much."""
    packing = packing_of([0, 0], [3], [3, 4])
    monkeypatch.setattr(varlen_attention, "join", lambda output, sums, part, part_sums: output.add_(part))
    with pytest.raises(AssertionError):
        assert_right("varlen", packing)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_flex_attention_is_dense_attention(key_heads: int) -> None:
    """Over several blocks of the mask. Outputs only: FlexAttention has no backward pass on a CPU."""
    packing = packing_of([0, 0, 1, 2], [130, 5, 40], [140, 30, 90, 1])
    assert packing.size > 3 * BLOCK
    query, key, value, _ = drawn(packing, 4, key_heads, dtype=torch.float32)
    found = FlexAttention(packing, CPU).attend(query, key, value, 0.3)
    torch.testing.assert_close(found, dense(query, key, value, visible(packing), 0.3)[0], atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300)), min_size=1, max_size=5))
def test_flex_attention_visits_exactly_the_blocks_that_are_seen(lengths: list[tuple[int, int]]) -> None:
    packing = packing_of([prompt for prompt, _ in lengths], [100, 128, 260], [length for _, length in lengths])
    mask = FlexAttention(packing, CPU).mask
    sees = visible(packing)
    count = -(-packing.size // BLOCK)
    padded = torch.zeros(count * BLOCK, count * BLOCK, dtype=torch.bool)
    padded[: packing.size, : packing.size] = sees
    wanted = padded.view(count, BLOCK, count, BLOCK).any(3).any(1)
    found = torch.zeros_like(wanted)
    for block, number in enumerate(mask.kv_num_blocks[0, 0].tolist()):
        found[block, mask.kv_indices[0, 0, block, :number].long()] = True
    assert torch.equal(found, wanted)
    slots = torch.arange(packing.size)
    assert torch.equal(mask.mask_mod(None, None, slots[:, None], slots), sees)


def test_which_ways_are_tried_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BURNISH_WITHOUT", raising=False)
    cuda = torch.device("cuda")
    assert ways_on(CPU, torch.bfloat16) == ("merged",)
    assert ways_on(torch.device("mps"), torch.bfloat16) == ("copied",)
    assert ways_on(cuda, torch.bfloat16) == ("varlen", "flex", "copied")
    assert ways_on(cuda, torch.float32) == ("flex", "copied")
    monkeypatch.setenv("BURNISH_WITHOUT", "varlen_attention")
    assert ways_on(cuda, torch.bfloat16) == ("flex", "copied")
    monkeypatch.setenv("BURNISH_WITHOUT", "flex_attention, varlen_attention")
    assert ways_on(cuda, torch.bfloat16) == ("copied",)


@pytest.mark.slow
@pytest.mark.parametrize("winner", ["copied", "merged"])
def test_of_the_ways_that_pass_the_fastest_is_taken(load, monkeypatch: pytest.MonkeyPatch, winner: str) -> None:
    """Both run on a CPU, so that the trial and the timing are the real ones."""
    monkeypatch.setattr("burnish.forward.probe.ways_on", lambda device, dtype: ("flex", "copied", "merged"))
    raced: list[str] = []

    def race(ways: Sequence[Contender]) -> RaceResult:
        raced.extend(way.name for way in ways)
        return RaceResult(winner, {way.name: 1.0 for way in ways})

    paths = FastPaths(cache=VerdictCache(None), timed=True, run_race=race)
    model = load(plain=True).model
    broken = FlexAttention.attend
    monkeypatch.setattr(FlexAttention, "attend", lambda *given: broken(*given) * 1.01)  # a way whose numbers are off
    assert use_packed_rows(model, paths)
    assert raced == ["copied", "merged"]
    assert packing_way(model.config) == winner
    assert list(paths.record().values()) == [winner]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (docs/gpu.md)")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)])
@pytest.mark.parametrize("way", ["varlen", "flex", "copied"])
@pytest.mark.parametrize("key_heads", [1, 4])
def test_ways_on_a_real_gpu(way: str, dtype: torch.dtype, tolerance: float, key_heads: int) -> None:
    """Against dense attention in float64; and twice, for the same bits."""
    if way not in ways_on(torch.device("cuda"), dtype):
        pytest.skip("flash attention has no float32")
    packing, cuda = packing_of([0, 0, 1, 2, 2], [130, 5, 40], [140, 30, 90, 1, 1]), torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    shapes = [(packing.size, heads, 64) for heads in (4, key_heads, key_heads, 4)]
    inputs = [torch.randn(shape, generator=generator).to(cuda, dtype) for shape in shapes]
    attention, sees = WAYS[way](packing, cuda, dtype), visible(packing).to(cuda)
    found, again = (outputs_and_gradients(lambda q, k, v: attention.attend(q, k, v, 0.125), inputs) for _ in range(2))
    doubles = [tensor.double() for tensor in inputs]
    exact = outputs_and_gradients(lambda q, k, v: dense(q, k, v, sees, 0.125)[0], doubles)
    for tensor, repeated, wanted in zip(found, again, exact, strict=True):
        assert torch.equal(tensor, repeated)
        assert (tensor.double() - wanted).norm() <= tolerance * wanted.norm()
