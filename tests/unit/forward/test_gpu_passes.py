"""What a micro-batch must not do on a GPU, tried without one: wait for the device, or add in an order that varies; and
on one of Apple's, compute in float64."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from burnish.algorithms.mismatch import correction_weights
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.config.schema_data import ModelConfig
from burnish.forward import logprobs
from burnish.forward.attention import WAYS, packing_way, set_packed_attention, ways_on
from burnish.forward.batch import Batch, TokenScores
from burnish.forward.gathering import deterministic, gather_rows
from burnish.forward.logprobs import chunked_token_scores, head_logits
from burnish.forward.scoring import ResponsePositions, ResponseScorer
from burnish.forward.varlen_attention import SequenceEnds, varlen_backward, varlen_forward
from burnish.forward.versions import key_sharing
from burnish.machine.matmul_precision import countable, gives_float32_sums
from burnish.models.loading import load_model
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Denominators, Objective, count_denominators
from burnish.models.value_head import ValueHead, ValueScorer
from burnish.observability.metrics import MetricStore
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.prefill import Prefiller
from burnish.rollouts.local.rows import RowsInProgress
from burnish.rollouts.local.static_decoder import StaticDecoders
from burnish.rollouts.local.static_steps import BLOCK, KEY
from burnish.trainers.rl.objective import (
    ActorCriticObjective,
    ClippedValueObjective,
    LikelihoodObjective,
    PolicyObjective,
)

META = torch.device("meta")
NOT_DETERMINISTIC = (
    "IndexSelectBackward",
    "IndexBackward",
    "IndexAddBackward",
    "TakeBackward",
    "GatherBackward",
    "ScatterAddBackward",
    "RepeatInterleaveBackward",
    "EmbeddingBackward",
    "EmbeddingBagBackward",
    "CumsumBackward",
    "ScaledDotProductFlashAttentionBackward",
    "ScaledDotProductEfficientAttentionBackward",
)
"""Nodes whose CUDA kernels add with atomics, or did in some release
(https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html). `IndexPutBackward` is not
among them: it only reads."""


def graph_of(output: torch.Tensor) -> set[str]:
    """Names of all nodes of the autograd graph behind `output`."""
    names, known, waiting = set(), set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in known:
            known.add(node)
            names.add(node.name())
            waiting.extend(previous for previous, _ in node.next_functions)
    return names


def shared_prompts(batch: Batch) -> Batch:
    """Seven rows on four prompts, with everything that an objective may ask for."""
    rows = torch.tensor([0, 0, 0, 3, 3, 5, 6])
    numbers = torch.linspace(-2.0, -0.1, batch.loss_mask.numel()).view(batch.loss_mask.shape)
    halves = (torch.arange(batch.loss_mask.shape[1]) >= batch.loss_mask.shape[1] // 2).long()
    return batch.replace(
        turn_index=torch.where(batch.loss_mask, halves, -1),
        prompt_tokens=batch.prompt_tokens[rows],
        prompt_lengths=batch.prompt_lengths[rows],
        advantages=numbers + 1.0,
        old_logprobs=numbers,
        ref_logprobs=numbers - 0.1,
        rollout_logprobs=numbers + 0.01,
    )


def on_pretended_gpu(load, family: str, way: str, dtype: torch.dtype, **fields: object) -> ResponseScorer:
    """A scorer that chose its ways on the CPU and then moved."""
    loaded = load(family, kernels="off", **fields)
    set_packed_attention(loaded.model.to(dtype), way)
    scorer = ResponseScorer(loaded.model)
    loaded.model.to(META)
    return scorer


def policy_objective(name: str, by: str | None = None) -> PolicyObjective:
    """With a KL and an entropy term; `by`: mean over such units, each of which is corrected for the sampler's drift."""
    row = POLICY_LOSSES[name]
    numbers = dict.fromkeys(row.required_options, 0.2)
    correction = partial(correction_weights, level=by, mode="truncate", low=0.5, high=2.0) if by else None
    terms = {"kl_coef": 0.1, "kl_times_ratio": by is not None, "entropy_coef": 0.01, "correction": correction}
    mean = f"{by}_mean_token_mean" if by else "token_mean"
    return PolicyObjective(row.function, numbers, mean, 9, takes=row.more_inputs, **terms)


def micro_batch(scorer: ResponseScorer, batch: Batch, objective: Objective) -> torch.Tensor:
    """As in an update: scores of the trained tokens, the loss, its gradient."""
    scores = scorer.score(batch, only_trained=True, entropy=objective.needs_entropy)
    loss = objective(scores, batch, Denominators(30, 7, 9)).loss
    loss.backward()
    return loss


def value_micro_batch(scorer: ResponseScorer, batch: Batch) -> None:
    """As in an update of a critic with a trunk of its own."""
    head = ValueHead(16, device=META)
    values_BT = ValueScorer(scorer.model.base_model, head).score(batch, only_trained=True)
    batch = batch.replace(values=batch.old_logprobs, returns=batch.advantages)
    ClippedValueObjective(0.2, "token_mean", 9)(values_BT, batch, Denominators(30, 7, 9)).loss.backward()


PASSES: dict[str, Callable[[ResponseScorer, Batch], object]] = {
    "supervised": lambda scorer, batch: micro_batch(scorer, batch, LikelihoodObjective()),
    "policy": lambda scorer, batch: micro_batch(scorer, batch, policy_objective("ppo_clip")),
    "turns": lambda scorer, batch: micro_batch(scorer, batch, policy_objective("turn_gspo", "turn")),
    "values alone": lambda scorer, batch: value_micro_batch(scorer, batch),
}
"""What is done with one micro-batch. Whatever else goes over micro-batches belongs in here."""


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize(("way", "dtype"), [("varlen", torch.bfloat16), ("copied", torch.float32)])
@pytest.mark.parametrize("fields", [{}, {"gradient_checkpointing": True}], ids=["", "checkpointing"])
@pytest.mark.parametrize("run", PASSES.values(), ids=list(PASSES))
def test_a_packed_micro_batch_waits_for_nothing(load, batch, gpu, family, way, dtype, fields, run) -> None:
    scorer = on_pretended_gpu(load, family, way, dtype, **fields)
    whole = shared_prompts(batch)
    with gpu:
        parts = list(scorer.trunk.split(whole.to(META), 40))
        assert len(parts) > 1
        for _, part in parts:
            run(scorer, part)
    assert ("torch_attn::_varlen_attn_backward" in gpu.seen) is (way == "varlen")
    for name, weight in scorer.model.base_model.named_parameters():
        assert weight.grad is not None, name


@pytest.mark.slow
def test_a_policy_accumulates_without_waiting(load, batch, gpu) -> None:
    """All micro-batches of a minibatch, up to the step itself."""
    loaded = load("llama", kernels="off", dtype="bfloat16")
    set_packed_attention(loaded.model, "varlen")
    policy = LocalPolicy(loaded, OptimizerSettings(1e-3, 10), tokens_per_microbatch=40)
    loaded.model.to(META)
    objective = policy_objective("ppo_clip")
    with gpu:
        minibatch = shared_prompts(batch).to(META)
        policy.accumulate(minibatch, objective, count_denominators(minibatch))
    assert "torch_attn::_varlen_attn_backward" in gpu.seen


@pytest.mark.parametrize("by", ["sequence", "turn"])
@pytest.mark.parametrize("name", [*POLICY_LOSSES, "supervised"])
def test_objectives_and_their_metrics_wait_for_nothing(batch, gpu, name, by) -> None:
    whole = shared_prompts(batch)
    whole = whole.replace(selection=whole.loss_mask, values=whole.old_logprobs, returns=whole.advantages).to(META)
    value_loss = ClippedValueObjective(0.2, "token_mean", 9)
    with gpu:
        fresh = (whole.old_logprobs + 0.1).requires_grad_()
        scores = TokenScores(fresh, entropy_BT=(-fresh * 2).detach(), values_BT=fresh * 0.5)
        if name == "supervised":
            objective = LikelihoodObjective()
        else:
            objective = ActorCriticObjective(policy_objective(name, by), value_loss, coef=0.5)
        value = objective(scores, whole, Denominators(30, 7, 9))
        value.loss.backward()
        store = MetricStore.of([value.metrics])
        with pytest.raises((gpu.Waited, RuntimeError)):
            store.row()


@pytest.mark.parametrize("entropy", [False, True])
def test_logits_on_a_gpu_are_float32_sums_in_few_large_operations(gpu, entropy, monkeypatch) -> None:
    """Kept ones and, in chunks of whole rows, those that are computed again."""
    monkeypatch.setattr("burnish.forward.logprobs.DEVICE_ELEMENTS", 24 * 50)
    if not gives_float32_sums("meta", torch.bfloat16):
        pytest.skip("this PyTorch has no such product for meta")
    hidden = torch.zeros(64, 8, device=META, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(50, 8, device=META, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(64, device=META, dtype=torch.int64)
    weight.grad_dtype = torch.float32
    made = []
    monkeypatch.setattr(logprobs, "head_logits", lambda *given: made.append(head_logits(*given)) or made[-1])
    with gpu:
        scores, found = chunked_token_scores(hidden, weight, None, targets, entropy=entropy, accumulate_in_place=True)
        (scores.sum() + (found.sum() if entropy else 0)).backward()
    assert {logits.dtype for logits in made} == {torch.float32}
    assert [len(logits) for logits in made] == [24, 24, 16, 24, 16]
    assert weight.grad.dtype == torch.float32


def test_scores_without_a_gradient_wait_for_nothing(load, batch, gpu) -> None:
    scorer = on_pretended_gpu(load, "llama", "varlen", torch.bfloat16)
    with gpu:
        scores = scorer.score_in_microbatches(shared_prompts(batch).to(META), 40, entropy=True, correct=True)
    assert scores.logprobs_BT.device == META
    assert scores.logprobs_BT.shape == batch.loss_mask.shape


@pytest.mark.parametrize(
    ("attention", "dtype"), [("flash", torch.bfloat16), ("fused", torch.float32), ("masked", torch.bfloat16)]
)
def test_a_decoding_step_needs_no_number_and_no_memory_of_its_own(load, gpu, attention, dtype) -> None:
    """So that a CUDA graph can hold it. Rows of two prompts and one without, at several positions, every filter on."""
    model = load("qwen2", kernels="off").model.to(dtype)
    set_packed_attention(model, "varlen")
    decoder = StaticDecoders(attention, captures=False)(model.to(META), 8)
    texts = [(3, 4, 5, 6)] * 3 + [(5,), (7, 8)]
    for chunk in Prefiller(model, pad_token_id=0).prefill(texts, keep=None):
        decoder.join([len(texts[row]) for row in chunk.rows], chunk.prompts, chunk.sources)
    steps, shape = decoder.steps, decoder._rows.fit(8, [0, 3, 3, 3, 1], BLOCK)
    steps._slots.load(torch.zeros(5, 5, dtype=torch.int64, device=META))
    held = [id(tensor) for tensor in decoder._rows.tensors()]
    sampling = Sampling(9, temperature=0.7, top_k=3, top_p=0.9, min_p=0.1)
    stop_ids = torch.zeros(2, dtype=torch.int64, device=META)
    with gpu, torch.no_grad():
        for _ in range(2):
            steps._slots.draw(steps._logits(shape)[:, :15], sampling, stop_ids)
    assert ("aten::_flash_attention_forward" in gpu.seen) is (attention == "flash")
    assert ("aten::_scaled_dot_product_efficient_attention" in gpu.seen) is (attention == "fused")
    assert [id(tensor) for tensor in decoder._rows.tensors()] == held


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("way", ["merged", "copied"])
def test_no_node_of_a_packed_pass_adds_in_an_order_that_varies(load, batch, family, way, monkeypatch) -> None:
    loaded = load(family, kernels="off")
    set_packed_attention(loaded.model, way)
    packed = []
    own = WAYS[way]
    monkeypatch.setitem(WAYS, way, lambda *given: packed.append(own(*given)) or packed[-1])
    scores = ResponseScorer(loaded.model).score(shared_prompts(batch), entropy=True)
    assert len(packed) == 1
    names = graph_of(scores.logprobs_BT.sum() + scores.entropy_BT.sum())
    assert any("_GatherRows" in name for name in names)
    assert not [name for name in names if name.startswith(NOT_DETERMINISTIC)]
    assert packing_way(loaded.model.config) == way


def test_sums_in_an_order_that_varies_are_found(gpu) -> None:
    values, index = torch.zeros(4, 2, device=META, requires_grad=True), torch.zeros(3, dtype=torch.int64, device=META)
    assert any(name.startswith(NOT_DETERMINISTIC) for name in graph_of(values[index]))
    with gpu:
        with pytest.raises(gpu.NotDeterministic):
            values.index_select(0, index).sum().backward()
        gather_rows(values, index).sum().backward()
        torch.zeros(3).to(META, non_blocking=True)


@pytest.mark.parametrize(
    "wait",
    [
        lambda values: torch.zeros(3).to(values.device),
        lambda values: values.to("cpu"),
        lambda values: values[values > 0],
        lambda values: values[torch.tensor([0, 1])],
        lambda values: values.tolist(),
        lambda values: float(values.sum()),
        lambda values: bool((values > 0).any()),
        lambda values: values.nonzero(),
        lambda values: values.sum().item(),
    ],
)
def test_whoever_waits_is_found(gpu, wait) -> None:
    with gpu, pytest.raises((gpu.Waited, RuntimeError)):
        wait(torch.zeros(4, 2, device=META))


def test_determinism_is_asked_for_only_where_it_is_not_the_rule() -> None:
    for device, asked in (("cpu", False), ("mps", False), ("meta", True)):
        with deterministic(torch.device(device)):
            assert torch.are_deterministic_algorithms_enabled() is asked
        assert not torch.are_deterministic_algorithms_enabled()


def test_picked_rows_have_the_gradient_of_index_select() -> None:
    """Bit for bit, rows picked several times among them."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 5, (40,), generator=generator)
    outer = torch.randn(40, 3, generator=generator)
    gradients = []
    for pick in (gather_rows, lambda rows, index: rows.index_select(0, index)):
        rows = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
        pick(rows, index).backward(outer)
        gradients.append(rows.grad)
    first, second = gradients
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("can_be_asked", "shares", "seen"),
    [(True, False, [(1, True)]), (False, True, [(1, False)]), (False, False, [(2, False)])],
    ids=["PyTorch 2.12", "PyTorch 2.11", "a kernel that cannot"],
)
def test_key_heads_are_repeated_only_as_the_last_resort(can_be_asked, shares, seen, monkeypatch) -> None:
    from torch.nn.attention import varlen

    found = []

    def attend(query, key, value, *ends, enable_gqa=False, return_aux=None, **others):  # type: ignore[no-untyped-def]
        if key.shape[1] < query.shape[1] and not (enable_gqa or shares):
            raise RuntimeError("number of heads in key must be that in query")
        if return_aux is None:
            return query + key + value
        found.append((key.shape[1], enable_gqa))
        return query, torch.zeros(query.shape[1], len(query), device=META)

    def unaskable(*given, return_aux=None, scale=None, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
        return attend(*given, return_aux=return_aux)

    monkeypatch.setattr(varlen, "varlen_attn", attend if can_be_asked else unaskable)
    key_sharing.cache_clear()
    try:
        query, key = (torch.zeros(6, heads, 8, device=META, dtype=torch.bfloat16) for heads in (2, 1))
        ends = SequenceEnds(*[torch.zeros(2, dtype=torch.int32, device=META)] * 2, 6, 6, is_causal=True)
        output, sums = varlen_forward(query, key, key, ends, None)
        gradients = varlen_backward(query, query, key, key, output, sums, ends, None)
    finally:
        key_sharing.cache_clear()
    assert found == seen
    assert [gradient.shape[1] for gradient in gradients] == [2, 1, 1]


class OnMps(torch.Tensor):
    """A tensor on a GPU of Apple's, which a CPU plays: it and what is computed from it cannot be float64. `cpu()` gives
    an ordinary one."""

    @classmethod
    def __torch_function__(cls, function, types, given=(), named=None):  # type: ignore[no-untyped-def]
        if function is torch.Tensor.cpu:
            with torch._C.DisableTorchFunctionSubclass():
                return given[0].as_subclass(torch.Tensor)
        result = super().__torch_function__(function, types, given, named or {})
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, OnMps) and tensor.dtype == torch.float64:
                raise TypeError(f"MPS has no float64, which {function} gives")
        return result


def to_mps(model: torch.nn.Module) -> None:
    there = {weight: torch.nn.Parameter(weight.detach().as_subclass(OnMps)) for weight in model.parameters()}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            module._parameters[name] = there[weight]


@pytest.fixture
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.machine.matmul_precision.WITHOUT_FLOAT64", ("mps", "cpu"))
    monkeypatch.setattr("burnish.models.optimizers._in_one_pass", lambda settings, parameters: {"foreach": False})


@pytest.mark.parametrize("objective", ["ppo_clip", "turn_gspo"])
def test_an_update_needs_no_float64_of_the_device(load, batch, objective, without_float64) -> None:
    """Losses, norms and clipping, with the bits of a device that has it. Memory for Adam and gradients stays there."""
    found = []
    for move in (lambda model: None, to_mps):
        loaded = load("llama", kernels="off")
        set_packed_attention(loaded.model, "copied")
        move(loaded.model)
        policy = LocalPolicy(loaded, OptimizerSettings(1e-2, 10, max_grad_norm=0.1), tokens_per_microbatch=40)
        whole = shared_prompts(batch)
        update = policy.update(whole, policy_objective(objective))
        scores = policy.logprobs(whole, entropy=True)
        moved = {type(policy._scorer.trunk.hidden(whole, ResponsePositions.of(whole)))}
        assert moved == {OnMps if move is to_mps else torch.Tensor}
        found.append([update.metrics["policy/grad_norm"].value, scores.logprobs_BT, scores.entropy_BT])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_sampling_needs_no_float64_of_the_device(without_float64) -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    sampled = []
    for kind in (torch.Tensor, OnMps):

        class Fixed:
            def logits(self, tokens, positions, kind=kind):  # type: ignore[no-untyped-def]
                return logits.as_subclass(kind)

        rows = RowsInProgress(Fixed(), torch.device("cpu"), None, None)  # type: ignore[arg-type]
        rows._numbers_5R = torch.zeros(5, 5, dtype=torch.int64)
        rows._numbers_5R[KEY] = torch.arange(5)
        rows._numbers_5R = rows._numbers_5R.as_subclass(kind)
        rows._record = lambda *given: sampled.append(given[:2])  # type: ignore[method-assign]
        rows.advance(Sampling(8, temperature=0.7, top_p=0.9), None)  # type: ignore[arg-type]
    assert sampled[0] == sampled[1]


def test_whoever_needs_float64_is_found(without_float64) -> None:
    values = torch.ones(3).as_subclass(OnMps)
    with pytest.raises(TypeError, match="float64"):
        values.double()
    with pytest.raises(TypeError, match="float64"):
        values.sum(dtype=torch.float64)
    assert countable(values).double().sum() == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (docs/gpu.md)")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_a_real_gpu(model_folder, batch, dtype) -> None:
    """Loading chooses a way; a micro-batch never waits, gives the same bits twice, and a CPU's numbers."""
    gradients = []
    for device in ("cuda", "cuda", "cpu"):
        loaded = load_model(ModelConfig(path=str(model_folder("llama")), device=device, dtype=dtype, kernels="off"))
        assert packing_way(loaded.model.config) in ways_on(loaded.model.device, loaded.model.dtype)
        scorer, whole = ResponseScorer(loaded.model), shared_prompts(batch).to(loaded.model.device)
        micro_batch(scorer, whole, policy_objective("ppo_clip"))  # compiles, and fetches memory
        scorer.model.zero_grad()
        try:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            micro_batch(scorer, whole, policy_objective("ppo_clip"))
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        gradients.append(torch.cat([weight.grad.flatten().float().cpu() for weight in scorer.model.parameters()]))
    first, again, on_cpu = gradients
    assert torch.equal(first, again)
    assert (first - on_cpu).norm() <= (1e-4 if dtype == "float32" else 0.1) * on_cpu.norm()
