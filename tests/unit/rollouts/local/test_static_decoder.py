"""Steps of fixed shapes: the tokens of the other decoders, and what a CUDA graph needs, tried without a GPU."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
import torch

from burnish.errors import RolloutError
from burnish.forward.attention import set_packed_attention
from burnish.forward.fast_paths import FastPaths
from burnish.machine import processor
from burnish.rollouts.engine import Sampling, keeping
from burnish.rollouts.local import static_decoder, static_trial
from burnish.rollouts.local.choice import goes_on_alike
from burnish.rollouts.local.decoders import ModelDecoder
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.local.kernel_trial import DECODING, OWN
from burnish.rollouts.local.prefill import Prefiller
from burnish.rollouts.local.static_decoder import StaticDecoders
from burnish.rollouts.local.static_steps import BLOCK, Step, bucket
from burnish.rollouts.local.static_trial import GRAPHS, STEPS, choose_attention, choose_static, takes_static
from burnish.types import FinishReason, Rollout, RolloutRequest

from ..conftest import assert_alike, local_engine, paths_with

PROMPTS = ((2, 9, 4, 33, 8, 5, 21), (7,), (3, 3, 40) * 4, (2, 9, 4, 33, 8, 5, 21), (11, 12))
SAMPLINGS = {
    "filters": Sampling(13, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "greedy": Sampling(9, greedy=True),
    "stop ids": Sampling(21, stop_token_ids=tuple(range(9, 16))),
    "stop texts": Sampling(21, temperature=1.3, stop=("7", "&", "ab")),
    "one token": Sampling(1),
    "ignore_eos": Sampling(BLOCK, ignore_eos=True),
}


def requests(samples: int = 3) -> list[RolloutRequest]:
    return [RolloutRequest.of(f"p{i}", i, prompt, tuple(range(samples))) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture
def make(tokenizer: Any) -> Callable[..., LocalEngine]:
    """An engine with the model's own pass, or with static steps."""

    def made(model: Any, static: StaticDecoders | None = None, **fields: Any) -> LocalEngine:
        settings = {"eos_token_ids": (1, 2, 3), "max_batch_rows": 6, "kernels": "off"}
        engine = local_engine(model, tokenizer, **{**settings, **fields})
        if static is not None:
            engine._loop.make_decoder = static
        return engine

    return made


def static(model: Any, attention: Any) -> StaticDecoders:
    if attention != "masked":
        assert set_packed_attention(model, "merged")
    return StaticDecoders(attention, captures=False)


def flash_by_definition(query: Any, key: Any, value: Any, *given: Any, **named: Any) -> tuple[Any, Any, None]:
    """What the operation computes for sequences of any length; what nobody asked for is not a number."""
    query_ends, key_ends, longest, columns, *given = given
    assert given == [0.0, False, False]
    assert {ends.dtype for ends in (query_ends, key_ends, named["seqused_k"])} == {torch.int32}
    scale = named["scale"] if named["scale"] is not None else 1 / math.sqrt(query.shape[-1])
    output, sums = torch.full_like(query, math.nan), query.new_full(query.shape[:2], math.nan)
    spans = zip(pairwise(query_ends.tolist()), key_ends.tolist(), named["seqused_k"].tolist(), strict=False)
    for (start, stop), first, length in spans:
        assert stop - start <= longest
        assert 1 <= length <= columns
        seen = slice(first, first + length)
        scores = torch.einsum("qkd,ckd->qkc", query[start:stop], key[seen]) * scale
        output[start:stop] = torch.einsum("qkc,ckd->qkd", scores.softmax(-1), value[seen])
        sums[start:stop] = scores.logsumexp(-1)
    return output, sums.T, None


@pytest.fixture
def flash_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_by_definition)


@pytest.mark.slow_cases("*-ignore_eos", "*-greedy", "masked-stop*", "masked-filters", "flash-[sf]*")
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))
@pytest.mark.parametrize("attention", ["fused", "masked", "flash"])
def test_tokens_are_those_of_the_models_own_pass(
    make: Any, llama: Any, attention: Any, sampling: Sampling, flash_on_a_cpu: None
) -> None:
    """More rows than places, equal prompts, one of one token, and ids that are never drawn."""
    expected = make(llama, vocabulary=60).generate(requests(), sampling, seed=3, step=1)
    engine = make(llama, static(llama, attention), vocabulary=60)
    assert_alike(engine.generate(requests(), sampling, seed=3, step=1), expected)
    decoded = engine.take_metrics()["rollout/decoded_tokens"].result()
    assert decoded == sum(len(rollout.response_tokens) for rollout in expected)
    if sampling.stop:
        assert {rollout.finish_reason for rollout in expected} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.slow
@pytest.mark.matrix_cases("*-3-fused", "*-64-masked", "*-64-flash", "mistral-3-*", "qwen2-3-*", "gpt2-3-masked")
@pytest.mark.parametrize("attention", ["fused", "masked", "flash"])
@pytest.mark.parametrize("rows", [3, 64])
def test_every_family_and_number_of_rows(
    make: Any, model: Any, attention: Any, rows: int, flash_on_a_cpu: None
) -> None:
    """Past the first bucket, and up to the last position of the model."""
    sampling = Sampling(200, top_p=0.95)
    expected = make(model, eos_token_ids=()).generate(requests(2), sampling, seed=1, step=2)
    assert max(len(rollout.response_tokens) for rollout in expected) > 70
    engine = make(model, static(model, attention), eos_token_ids=(), max_batch_rows=rows)
    assert_alike(engine.generate(requests(2), sampling, seed=1, step=2), expected)


@pytest.mark.parametrize("attention", ["fused", "masked"])
def test_a_trial_finds_that_logits_are_the_models_own(make_model: Any, attention: Any) -> None:
    model = make_model("qwen3").eval()
    assert choose_attention(model, 64) == "masked"
    decoders = static(model, attention)
    assert choose_attention(model, 64) == "fused" if attention == "fused" else "masked"
    assert goes_on_alike(model, decoders)


@pytest.mark.slow_cases("masked")
@pytest.mark.parametrize("attention", ["fused", "masked"])
def test_conversations_go_on_from_kept_rows(make: Any, llama: Any, attention: Any) -> None:
    """Also from rows that had ended within a block, by a token and by a text."""
    found = []
    for decoders in (None, static(llama, attention)):
        engine, asked = make(llama, decoders), requests(2)
        sampling = Sampling(11, stop=("7", "&"), stop_token_ids=tuple(range(9, 13)))
        with keeping(engine):
            for turn in range(2):
                rollouts = engine.generate(asked, sampling, seed=0, step=turn)
                found.append(rollouts)
                texts = [one.prompt_tokens + one.response_tokens for one in rollouts]
                asked = [RolloutRequest.of(f"{i}", i, (*t, *range(40, 40 + i % 4)), (0,)) for i, t in enumerate(texts)]
        assert engine.take_metrics()["rollout/reused_tokens"].result() > 50
    for own, others in zip(found[:2], found[2:], strict=True):
        assert_alike(others, own)


def test_a_response_that_was_stopped_goes_on(make: Any, llama: Any) -> None:
    """Begun by one kind of decoder, ended by the other; the static one is asked once per block."""
    whole = make(llama, eos_token_ids=()).generate(requests(1), Sampling(20), seed=1, step=2)
    fixed = make(llama, static(llama, "fused"), eos_token_ids=())
    for first, second in ((fixed, make(llama, eos_token_ids=())), (make(llama, eos_token_ids=()), fixed)):
        asked = count()
        stopped = lambda asked=asked: next(asked) >= 2  # noqa: E731
        done, rest = first.generate_until(requests(1), Sampling(20), seed=1, step=2, stopped=stopped)
        assert done == []
        tokens = 2 * (BLOCK if first is fixed else 1)
        assert {len(begun.response_tokens) for one in rest for begun in one.begun} == {tokens}
        assert_alike(second.generate(rest, Sampling(20), seed=1, step=2), whole)


def test_prompts_are_kept_once(llama: Any) -> None:
    decoder = static(llama, "fused")(llama.eval(), 8)
    cache: Any = decoder._cache
    prompts = [PROMPTS[0]] * 5 + [PROMPTS[2]] * 2
    for chunk in Prefiller(llama, pad_token_id=0).prefill(prompts, keep=None):
        decoder.join([len(prompts[row]) for row in chunk.rows], chunk.prompts, chunk.sources)
    assert len({id(row.prompt) for row in cache._rows}) == 2
    assert {keys.shape[0] for keys, _ in cache._prompts} == {4}  # number 0 is the empty prompt
    shape = cache.fit(8, [len(prompt) - 1 for prompt in prompts], BLOCK)
    assert (shape.prompts, shape.rows, shape.columns, shape.prompt_columns) == (4, 8, 64, 64)


def test_logprobs_that_are_not_finite_are_an_error(make: Any, llama: Any) -> None:
    with torch.no_grad():
        llama.lm_head.weight[3] = float("nan")
    with pytest.raises(RolloutError, match="log-probability nan at response token 0 of prompt 'p0'"):
        make(llama, static(llama, "fused")).generate(requests(1)[:1], Sampling(4), seed=0, step=0)


class FakeGraphs:
    """Captures by remembering. `replays` counts by graph; what a step may find moved would be seen."""

    def __init__(self, device: torch.device) -> None:
        self.replays: list[int] = []

    def __call__(self, step: Step) -> Step:
        step()
        number = len(self.replays)
        self.replays.append(0)

        def replay() -> None:
            self.replays[number] += 1
            step()

        return replay


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraphs]:
    """Those of each decoder that is made."""
    made: list[FakeGraphs] = []

    def make_graphs(device: torch.device) -> FakeGraphs:
        made.append(FakeGraphs(device))
        return made[-1]

    monkeypatch.setattr(static_decoder, "CudaGraphs", make_graphs)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["fused", "masked"])
def test_graphs_are_kept_by_shape_and_used_again(make: Any, llama: Any, attention: Any, graphs: Any) -> None:
    static(llama, attention)
    decoders = StaticDecoders(attention, captures=True)
    engine, own = make(llama, decoders), make(llama)
    sampling, asked = Sampling(17), requests(2)
    expected, captured = own.generate(asked, sampling, seed=0, step=0), []
    for _ in range(3):
        assert_alike(engine.generate(asked, sampling, seed=0, step=0), expected)
        captured.append([len(one.replays) for one in graphs])
    assert captured[1] == captured[2]  # in the first call the cache may have grown, and so moved
    captured = captured[2]
    assert sum(graphs[0].replays) > 5 * len(graphs[0].replays)
    assert len(graphs) == 1
    engine.generate(asked[:1], replace(sampling, top_k=5), seed=0, step=0)
    assert [len(one.replays) for one in graphs] > captured  # a graph holds for one kind of sampling


def addresses(decoder: Any) -> list[int]:
    slots = decoder.steps._slots
    state = (slots.numbers_5S, slots.is_done_S, slots.step_1, slots.tokens_BS, slots.logprobs_BS)
    return [tensor.data_ptr() for tensor in (*state, *decoder._rows.tensors())]


def test_nothing_moves_between_calls_and_moved_weights_are_captured_anew(make: Any, llama: Any, graphs: Any) -> None:
    static(llama, "fused")
    decoders = StaticDecoders("fused", captures=True)
    engine = make(llama, decoders)
    engine.generate(requests(1), Sampling(9), seed=0, step=0)
    before, captured = addresses(decoders._held), len(graphs[0].replays)
    with torch.no_grad():
        llama.lm_head.weight.neg_()  # an update in place
    changed = engine.generate(requests(1), Sampling(9, greedy=True), seed=0, step=0)
    engine.generate(requests(1), Sampling(9), seed=0, step=0)
    assert addresses(decoders._held) == before
    once = len(graphs[0].replays)
    engine.generate(requests(1), Sampling(9), seed=0, step=0)
    assert len(graphs[0].replays) == once
    llama.lm_head.weight.data = llama.lm_head.weight.data.clone()
    assert_alike(engine.generate(requests(1), Sampling(9, greedy=True), seed=0, step=0), changed)
    assert len(graphs[0].replays) > once > captured


@pytest.mark.parametrize("wrong", ["raises", "draws others"])
def test_what_cannot_be_captured_runs_by_itself(
    make: Any, llama: Any, graphs: Any, wrong: str, monkeypatch: Any
) -> None:
    """Or is an error where ways are compared."""

    def capture(self: FakeGraphs, step: Step) -> Step:
        if wrong == "raises":
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: None

    monkeypatch.setattr(FakeGraphs, "__call__", capture)
    static(llama, "fused")

    def sampled(decoders: StaticDecoders | None = None) -> list[Rollout]:
        return make(llama, decoders).generate(requests(), Sampling(12), seed=0, step=0)

    message = "not permitted" if wrong == "raises" else r"draws \d of \d tokens differently"
    with pytest.warns(RuntimeWarning, match=message):
        found = sampled(StaticDecoders("fused", captures=True))
    assert_alike(found, sampled())
    with pytest.raises((RuntimeError, RolloutError), match=message):
        sampled(StaticDecoders("fused", captures=True, must_capture=True))


def test_a_large_decoder_is_not_held(make: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decoders = static(llama, "masked")
    engine = make(llama, decoders)
    engine.generate(requests(), Sampling(4), seed=0, step=0)
    held = decoders._held
    assert held is not None
    assert decoders(llama, 8) is held
    assert decoders(llama, 9) is not held
    monkeypatch.setattr(static_decoder, "HELD_BYTES", 1000)
    engine.generate(requests(), Sampling(4), seed=0, step=0)
    assert decoders._held is None


@pytest.mark.parametrize("attention", ["fused", "masked"])
def test_the_calls_before_change_no_bit(make: Any, llama: Any, attention: Any) -> None:
    """Although they made the decoder's places and columns more."""
    decoders = static(llama, attention)
    asked, sampling = requests(1)[:3], Sampling(12)
    alone = make(llama, decoders).generate(asked, sampling, seed=0, step=0)
    engine = make(llama, static(llama, attention), max_batch_rows=16, eos_token_ids=())
    longer = RolloutRequest.of("longer", 0, (5, 6) * 30, tuple(range(9)))
    engine.generate([longer], Sampling(20), seed=0, step=0)
    again = make(llama, engine._loop.make_decoder)
    assert again.generate(asked, sampling, seed=0, step=0) == alone


@pytest.mark.parametrize("fastest", [GRAPHS, STEPS, OWN])
def test_the_fastest_is_taken_where_static_steps_are_tried(
    make: Any, llama: Any, graphs: Any, fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_trial, "_DEVICES", ("cpu",))
    set_packed_attention(llama, "merged")
    names: list[str] = []
    paths = paths_with([fastest], raced=names)
    maker = make(llama, paths=paths)._loop.make_decoder
    assert names == [f"{GRAPHS}, fused", f"{STEPS}, fused", OWN]
    assert (paths.way(DECODING) or "").startswith(fastest)
    assert paths.notes == []
    if fastest == OWN:
        assert maker.func is ModelDecoder
    else:
        assert (maker._captures, maker._held) == (fastest == GRAPHS, None)


def test_where_nothing_can_be_captured_the_record_says_so(make: Any, llama: Any, monkeypatch: Any) -> None:
    """This machine has no CUDA."""
    monkeypatch.setattr(static_trial, "_DEVICES", ("cpu",))
    paths = paths_with([STEPS])
    assert not make(llama, paths=paths)._loop.make_decoder._captures
    assert f"{DECODING} without {GRAPHS}, masked: the trial ended with" in paths.notes[0]
    assert set(paths.record().values()) == {f"{STEPS}, masked"}


def test_a_family_that_differs_falls_back(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = static_decoder.MaskedRows.logits
    monkeypatch.setattr(static_decoder.MaskedRows, "logits", lambda *given: logits(*given) * 1.01)
    own, paths = object(), FastPaths(timed=False)
    assert choose_static(llama.eval(), own, 64, paths) is own  # type: ignore[arg-type]
    assert list(paths.record().values()) == [OWN]


def test_only_gpus_try_them_and_one_variable_switches_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processor.WITHOUT, raising=False)
    assert [takes_static(torch.device(name)) for name in ("cpu", "mps", "cuda:1")] == [False, False, True]
    monkeypatch.setenv(processor.WITHOUT, "static_decoder")
    assert not takes_static(torch.device("cuda"))


def test_buckets_are_few() -> None:
    assert [bucket(columns) for columns in (0, 1, 64, 65, 200, 1024, 1025, 5000)] == [
        64, 64, 64, 128, 256, 1024, 2048, 5120,
    ]  # fmt: skip
    assert len({bucket(columns) for columns in range(32_768)}) <= 36


def distinct(tokens: Iterable[Rollout]) -> set[tuple[int, ...]]:
    return {rollout.response_tokens for rollout in tokens}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (docs/gpu.md)")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_real_gpu(make: Any, llama: Any, dtype: torch.dtype) -> None:
    """Graphs draw what the same steps draw by themselves; in float32 what the model's own pass draws."""
    model = llama.to("cuda", dtype).eval()
    set_packed_attention(model, "copied")
    attention = choose_attention(model, 128)
    assert attention == ("fused" if dtype == torch.float32 else "flash")
    by_graphs, by_steps = (
        make(model, StaticDecoders(attention, captures=captures, must_capture=True)) for captures in (True, False)
    )
    results = [engine.generate(requests(), Sampling(40), seed=0, step=0) for engine in (by_graphs, by_steps, by_graphs)]
    assert [distinct(one) for one in results[1:]] == [distinct(results[0])] * 2
    if dtype == torch.float32:
        own = make(model, plain=True).generate(requests(), Sampling(40), seed=0, step=0)
        assert distinct(own) == distinct(results[0])
