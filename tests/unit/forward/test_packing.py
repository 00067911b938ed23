"""Rows packed with each prompt once against the same rows one by one, padded."""

import math

import numpy as np
import pytest
import torch
from batches import batch_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, BambaConfig, LlamaConfig, LlamaForCausalLM, StableLmConfig

from burnish.forward import scoring
from burnish.forward.attention import packs_rows, set_packed_attention
from burnish.forward.batch import Batch
from burnish.forward.copied_prompts import CopiedPrompts
from burnish.forward.kernel_layers import uses_layer_kernels
from burnish.forward.matmul_choice import NARROW_WIDTH
from burnish.forward.merged_attention import MergedAttention
from burnish.forward.packing import Packing
from burnish.forward.probe import use_packed_rows
from burnish.forward.scoring import ResponseScorer
from burnish.machine.matmul_precision import matmul_precision

A, B = [4, 5, 6], [7, 8]


def packing_of(prompts: list[list[int]], responses: list[list[int]]) -> Packing:
    return Packing.of(batch_of(prompts, responses).host)


def test_the_layout_of_the_page() -> None:
    """The example in the module's docstring."""
    batch = batch_of([[1, 2, 3], [4, 5], [1, 2, 3]], [[11, 12, 13], [15, 16], [14]])
    packing = Packing.of(batch.host)
    assert packing.groups == [[0, 2], [1]]
    assert packing.tokens(batch).tolist() == [[1, 2, 3, 4, 5, 11, 12, 15]]
    assert packing.positions(batch.device).tolist() == [[0, 1, 2, 0, 1, 3, 4, 2]]
    assert packing.times_shared(batch.device).tolist() == [[2, 2, 2, 1, 1, 1, 1, 1]]
    assert packing.size == 8
    assert packing.prompt_spans() == [slice(0, 3), slice(3, 5)]
    assert packing.response_spans() == [slice(5, 7), slice(7, 8), slice(7, 7)]
    assert packing.answer_spans() == [slice(5, 7), slice(7, 8)]
    # predicted by the end of the prompt, then by the response token before
    rows, columns = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 2, 0, 1, 0])
    assert packing.sources(rows, columns).tolist() == [2, 5, 6, 4, 7, 2]


def test_padding_belongs_to_no_row(monkeypatch) -> None:
    """As above, with 8 slots rounded up to 10."""
    batch = batch_of([[1, 2, 3], [4, 5], [1, 2, 3]], [[11, 12, 13], [15, 16], [14]])
    monkeypatch.setattr("burnish.forward.packing.rounded_up", lambda size: size + 2)
    packing, rounded = Packing.of(batch.host), Packing.of(batch.host, rounded=True)
    assert (rounded.size, rounded.padding, rounded.padding_span) == (10, 2, slice(8, 10))
    assert rounded.tokens(batch).tolist() == [[1, 2, 3, 4, 5, 11, 12, 15, 0, 0]]
    assert rounded.positions(batch.device).tolist() == [[0, 1, 2, 0, 1, 3, 4, 2, 0, 0]]
    assert rounded.times_shared(batch.device).tolist() == [[2, 2, 2, 1, 1, 1, 1, 1, 0, 0]]
    assert rounded.response_spans() == packing.response_spans()
    seen, unpadded = seen_when_merged(MergedAttention(rounded)), seen_when_merged(MergedAttention(packing))
    assert seen == unpadded | {8: {8}, 9: {8, 9}}
    assert packing.padding == 0


def test_responses_of_a_prompt_are_next_to_each_other() -> None:
    packing = packing_of([A, B, A, B], [[9] * 3, [9] * 4, [9] * 2, [9] * 2])
    assert packing.order.tolist() == [0, 2, 1, 3]
    assert packing.response_spans() == [slice(5, 7), slice(8, 11), slice(7, 8), slice(11, 12)]
    assert packing.answer_spans() == [slice(5, 8), slice(8, 12)]


@pytest.mark.parametrize("way", ["merged", "copied"])
def test_each_token_sees_its_prompt_and_what_came_before_it(way: str) -> None:
    packing = packing_of([A, B, A], [[9, 10, 1], [11, 13, 1], [12]])
    seen = seen_when_merged(MergedAttention(packing)) if way == "merged" else seen_when_copied(packing)
    p, q, r, s = {0, 1, 2}, {3, 4}, {5, 6}, {7, 8}
    assert seen == {0: {0}, 1: {0, 1}, 2: p, 3: {3}, 4: q, 5: p | {5}, 6: p | r, 7: q | {7}, 8: q | s}


def seen_when_merged(attention: MergedAttention) -> dict[int, set[int]]:
    seen: dict[int, set[int]] = {}
    for rows in attention.causal:
        width = rows.slots_NQ.shape[1]
        for place in rows.real_M.tolist():
            row, query = divmod(place, width)
            slot = int(rows.slots_NQ[row, query])
            assert slot not in seen
            seen[slot] = set(rows.slots_NQ[row, : query + 1].tolist())
    for queries, keys in attention.shared:
        for slot in range(queries.start, queries.stop):
            seen[slot] |= set(range(keys.start, keys.stop))
    return seen


def seen_when_copied(packing: Packing) -> dict[int, set[int]]:
    seen: dict[int, set[int]] = {}
    for block in CopiedPrompts(packing, torch.device("cpu"), torch.float32)._blocks:
        rows, width = block.queries_NQ.shape
        for row in range(rows):
            for query in range(width):
                slot = int(block.queries_NQ[row, query])
                if block.mask is None:
                    keys = block.keys_NK[row, : query + 1]
                else:
                    mask = block.mask.expand(rows, -1, -1, -1)[row, 0, query]
                    keys = block.keys_NK[row][mask == 0]
                seen.setdefault(slot, set(keys.tolist()))
    return seen


def test_only_what_saves_tokens_is_packed() -> None:
    assert not packing_of([A, [*B, 9]], [[9] * 10, [11] * 10]).pays  # 24 of 26 tokens
    assert packing_of([A, A, A], [[9, 10], [11, 12], [9, 1]]).pays  # 6 of 15 tokens


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        packing_of([[], A], [[9], [9]])


def gradients(scorer: ResponseScorer, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    scorer.model.zero_grad()
    scores = scorer.score(batch, entropy=True)
    # Of one sign, or the gradients of equal rows could cancel, and rounding be all that is left of them.
    weights = torch.linspace(0.5, 1.5, scores.logprobs_BT.numel()).view_as(scores.logprobs_BT)
    (weights * (scores.logprobs_BT + 0.1 * scores.entropy_BT)).sum().backward()
    named = scorer.model.named_parameters()
    return scores.logprobs_BT.detach(), {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_like_plain(loaded, plain, batch: Batch, monkeypatch: pytest.MonkeyPatch, *, rounded: bool) -> None:
    monkeypatch.setattr("burnish.forward.packing.PAYS", math.inf)
    monkeypatch.setattr("burnish.forward.scoring.rounds_up", lambda model: rounded and packs_rows(model))
    for module in ("packing", "scoring"):  # so that even these few slots are rounded
        monkeypatch.setattr(f"burnish.forward.{module}.rounded_up", lambda size: -(-size // 16) * 16)
    scorer = ResponseScorer(loaded.model)
    assert packs_rows(loaded.model)
    found, gradient = gradients(scorer, batch)
    expected, yardstick = gradients(ResponseScorer(plain.model), batch)
    assert not packs_rows(plain.model)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    whole = torch.cat([value.flatten() for value in yardstick.values()])
    difference = torch.cat([(gradient[name] - value).flatten() for name, value in yardstick.items()])
    assert difference.norm() <= 1e-5 * whole.norm()


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("fields", [{}, {"gradient_checkpointing": True}], ids=["", "checkpointing"])
@pytest.mark.parametrize("way", [pytest.param("kernels", marks=pytest.mark.compiler), "merged", "copied"])
@pytest.mark.parametrize("rounded", [False, True])
def test_packed_rows_score_like_padded_ones(load, family, fields, way, rounded, monkeypatch) -> None:
    loaded = load(family, kernels="auto" if way == "kernels" else "off", **fields)
    assert uses_layer_kernels(loaded.model) is (way == "kernels" and family != "gpt2")
    if fields:
        loaded.model.train()
    if way == "copied":
        set_packed_attention(loaded.model, way)
    batch = batch_of([A, B, A, B + A], [[9, 10, 14, 4, 1], [11, 1], [12], [4, 4, 4]])
    assert_like_plain(loaded, load(family, plain=True), batch, monkeypatch, rounded=rounded)


def test_a_narrow_model_meets_few_shapes_through_onednn(monkeypatch) -> None:
    settings = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 16}
    model = LlamaForCausalLM(LlamaConfig(hidden_size=NARROW_WIDTH, **settings))
    assert use_packed_rows(model)
    batch = batch_of([A, B], [[9] * 70, [11] * 80])  # packing does not pay
    scorer, slots, positions = ResponseScorer(model), [], []
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda _, given, __: slots.append(given[0].shape[-2]))
    unwatched = scoring.chunked_token_scores

    def watched(hidden, *given, **options):
        positions.append(len(hidden))
        return unwatched(hidden, *given, **options)

    monkeypatch.setattr(scoring, "chunked_token_scores", watched)
    usual = scorer.score(batch).logprobs_BT
    with matmul_precision("medium"):
        found = scorer.score(batch).logprobs_BT
    assert (slots, positions) == ([82, 160], [150, 160])
    torch.testing.assert_close(found, usual, atol=1e-2, rtol=0)  # medium may be bfloat16's precision


tokens = st.integers(4, 15)
prompt = st.lists(tokens, min_size=1, max_size=9)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.lists(tokens, min_size=1, max_size=12)), min_size=1, max_size=8),
    prompts=st.tuples(prompt, prompt, prompt),
    rounded=st.booleans(),
)
def test_any_mix_of_prompts_and_lengths(load_once, rows, prompts, rounded) -> None:
    batch = batch_of([prompts[number] for number, _ in rows], [response for _, response in rows])
    with pytest.MonkeyPatch.context() as patch:
        assert_like_plain(*load_once, batch, patch, rounded=rounded)


@pytest.fixture(scope="module", params=["auto", "off"])
def load_once(model_folder, request):
    from burnish.config.schema_data import ModelConfig
    from burnish.models.loading import load_model

    config = ModelConfig(path=str(model_folder("qwen2")), device="cpu", kernels=request.param)
    return load_model(config), load_model(config, plain=True)


def test_models_with_other_attention_stay_as_they_are(load) -> None:
    eager = load(plain=True).model
    eager.set_attn_implementation("eager")
    window = load("qwen2", plain=True).model
    window.config.layer_types = ["full_attention", "sliding_attention"]
    for model in (eager, window):
        before = model.config._attn_implementation
        assert not use_packed_rows(model)
        assert model.config._attn_implementation == before


SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_d_head": 8, "mamba_chunk_size": 8}


@pytest.mark.parametrize(
    "config",
    [
        BambaConfig(**SMALL, **MAMBA, attn_layer_indices=[1]),
        StableLmConfig(**SMALL),
    ],
    ids=["recurrent", "drops the argument"],
)
def test_models_whose_numbers_would_change_are_not_packed(config) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert model.config._attn_implementation == "sdpa"
    assert not use_packed_rows(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_whose_rows_see_each_other_is_found_out(load, monkeypatch) -> None:
    """The probe itself, on a model that looks right: attention that forgets which rows belong together."""

    def forgetful(module, query, key, value, attention_mask, *, scaling=None, packed=None, **others):
        output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return output.transpose(1, 2), None

    model = load(plain=True).model
    monkeypatch.setattr("burnish.forward.attention.packed_attention", forgetful)
    assert not use_packed_rows(model)
    monkeypatch.undo()
    assert use_packed_rows(model)


def test_ordinary_models_pass_the_probe_in_bfloat16_too(load) -> None:
    for family in ("llama", "qwen2", "gpt2"):
        assert use_packed_rows(load(family, plain=True).model.bfloat16())


def test_padding_gives_nothing_back_however_large_its_scores_would_be() -> None:
    """A padding query is that of slot 0. With the keys of its row it has scores of 1,000, with its own key one of -50,
    whose exponential is nothing to divide by."""
    packing = packing_of([A, B], [[9, 10, 14, 4, 4, 4, 1], [11, 12, 4, 4, 4, 4, 1]])  # 9 and 8 tokens
    attention = MergedAttention(packing)
    assert not all(rows.is_full for rows in attention.causal)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(packing.size, 1, 8, generator=generator) for _ in range(3)]
    query, key, _ = tensors
    query[1:, :, 0] = 0.0
    query[0, :, 0], key[:, :, 0], key[0, :, 0] = 50.0, 20.0, -1.0
    leaves = [tensor.requires_grad_() for tensor in tensors]
    outer = torch.randn(packing.size, 1, 8, generator=generator)
    found = torch.autograd.grad(attention.attend(*leaves, 1.0), leaves, outer)
    exact = torch.zeros(packing.size, 1, 8, dtype=torch.float64)
    for group in attention.sequences:
        for slots in group:
            query, key, value = (leaf[slots, 0].double() for leaf in leaves)
            scores = (query @ key.T).masked_fill(torch.ones(len(slots), len(slots)).triu(1).bool(), -torch.inf)
            exact[slots, 0] = scores.softmax(-1) @ value
    wanted = torch.autograd.grad(exact, leaves, outer.double())
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)  # of numbers up to 50


@pytest.mark.parametrize("float32_keys", [0, 512])
def test_bfloat16_attention_has_the_gradients_of_float32(float32_keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through PyTorch's bfloat16 kernel, and the way round it for few keys: both within bfloat16's rounding."""
    monkeypatch.setattr("burnish.forward.merged_attention.FLOAT32_KEYS", float32_keys)
    packing = packing_of([A, A, A, B], [[9, 10, 14, 4, 1], [11, 1], [12] * 9, [4, 4, 4]])
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> torch.Tensor:
        return torch.randn(packing.size, heads, 8, generator=generator).bfloat16()

    inputs, outer = (draw(4), draw(2), draw(2)), draw(4)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        output = MergedAttention(packing).attend(*leaves, None)
        found.append([output, *torch.autograd.grad(output, leaves, outer.to(dtype))])
    for low, exact in zip(*found, strict=True):
        assert low.dtype is torch.bfloat16
        assert (low.float() - exact).norm() <= 0.02 * exact.norm()
