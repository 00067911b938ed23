"""Rows that go on where they ended: what is read again, what is held, and that the numbers stay."""

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from echoing import Echo

from burnish.agents.conversation import Answer, ConversingEngine, Talk
from burnish.errors import RolloutError
from burnish.models.loading import LoadedModel
from burnish.models.weights import Weights
from burnish.rollouts.engine import Sampling, keeping
from burnish.rollouts.local import kernel_decoder, prefill
from burnish.rollouts.local.cache import Columns
from burnish.rollouts.local.choice import goes_on_alike
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.local.kernel_decoder import KernelDecoder
from burnish.rollouts.local.plain_decoders import EqualLengthDecoder
from burnish.rollouts.local.prefill import RowReader
from burnish.rollouts.local.reusable_rows import KeptRow, KeptRows
from burnish.types import FinishReason, Message, Prompt, Rollout, RolloutRequest, TokenPart

from ..conftest import assert_alike, local_engine

Make = Callable[..., LocalEngine]
compiler = pytest.mark.compiler
only_kernels = pytest.mark.parametrize("make_engine", [pytest.param("kernels", marks=compiler)], indirect=True)
only_plain = pytest.mark.parametrize("make_engine", ["plain"], indirect=True)
"""For what does not depend on how a decoder keeps its rows."""

PROMPTS = ((2, 9, 4, 33, 8, 5, 21), (7,), (3,) * 20)
SAID = ((40, 41, 42), (50,), (), (60,) * 9)
"""What follows a turn, by sample index: nothing at all, one token, several."""


def first_turn(samples: int = 4) -> list[RolloutRequest]:
    return [RolloutRequest.of(f"p{i}", i, prompt, tuple(range(samples))) for i, prompt in enumerate(PROMPTS)]


def text_of(rollout: Rollout) -> tuple[int, ...]:
    return rollout.prompt_tokens + rollout.response_tokens


def next_turn(rollouts: Sequence[Rollout], number: int) -> list[RolloutRequest]:
    """Every sample is a request of its own, with what was said to it."""
    return [
        RolloutRequest.of(
            f"{one.group_id}, turn {number}", one.group_id, text_of(one) + SAID[one.sample_index], (one.sample_index,)
        )
        for one in rollouts
    ]


def conversations(engine: LocalEngine, *, turns: int = 3, tokens: int = 6) -> list[Rollout]:
    """The rollouts of all turns."""
    found: list[Rollout] = []
    requests = first_turn()
    with keeping(engine):
        for number in range(turns):
            rollouts = engine.generate(requests, Sampling(tokens), seed=0, step=0)
            found += rollouts
            requests = next_turn(rollouts, number + 2)
    return found


def prefilled(engine: LocalEngine) -> Any:
    return engine.take_metrics()["rollout/prefilled_tokens"].result()


@pytest.mark.slow_cases("plain-gpt2-1")
@pytest.mark.parametrize(
    ("make_engine", "kind", "rows"),
    [pytest.param("kernels", "qwen3", 3, marks=compiler), ("plain", "gpt2", 1), ("plain", "mistral", 64)],
    indirect=["make_engine"],
)
def test_conversations_are_the_same_with_and_without(
    make_model: Callable[..., Any], make_engine: Make, kind: str, rows: int
) -> None:
    model = make_model(kind)
    keeps, plain = (make_engine(model, max_batch_rows=rows, keep_bytes=size) for size in (1 << 30, 0))
    assert_alike(conversations(keeps), conversations(plain))
    assert prefilled(keeps) < prefilled(plain) / 2


@pytest.mark.parametrize(
    ("make_engine", "rows"), [pytest.param("kernels", 64, marks=compiler), ("plain", 3)], indirect=["make_engine"]
)
def test_only_what_is_new_is_read(llama: Any, make_engine: Make, rows: int) -> None:
    """Of the second turn: the last token sampled, and what was said, but for the token that decoding feeds."""
    engine = make_engine(llama, max_batch_rows=rows, eos=())
    conversations(engine, turns=1)
    first = 6 + 0 + 19
    assert prefilled(engine) == first
    conversations(engine, turns=2)
    metrics = engine.take_metrics()
    assert metrics["rollout/prefilled_tokens"].result() == first + 3 * sum(len(said) for said in SAID)
    assert metrics["rollout/reused_tokens"].result() == sum(4 * (len(prompt) + 6 - 1) for prompt in PROMPTS)


@pytest.mark.slow_cases("plain-2-8", "plain-64-0.1")
@pytest.mark.parametrize(
    ("make_engine", "rows", "kilobytes"),
    [pytest.param("kernels", 64, 200, marks=compiler), ("plain", 2, 8), ("plain", 64, 0.1)],
    indirect=["make_engine"],
)
def test_rows_that_had_to_leave_are_read_again(llama: Any, make_engine: Make, rows: int, kilobytes: float) -> None:
    """A token of this model has 512 bytes, a row in kernels twice 64 of them: a few rows fit, one, or nothing."""
    engine = make_engine(llama, max_batch_rows=rows, keep_bytes=int(kilobytes * 1024))
    plain, all_kept = (make_engine(llama, max_batch_rows=rows, keep_bytes=size) for size in (0, 1 << 30))
    found, expected, _ = (conversations(one) for one in (engine, plain, all_kept))
    assert_alike(found, expected, within=1e-5)
    fewest, some, most = (prefilled(one) for one in (all_kept, engine, plain))
    assert fewest < some <= most if kilobytes > 1 else some == most


@only_kernels
def test_bfloat16_goes_on_with_the_same_keys(llama: Any, make_engine: Make) -> None:
    """Decoders may hold other types than the model's; what they give out is exact."""
    model = llama.to(torch.bfloat16)
    keeps, plain = (make_engine(model, keep_bytes=size) for size in (1 << 30, 0))
    pairs = list(zip(conversations(keeps, turns=2), conversations(plain, turns=2), strict=True))
    alike = [one.response_tokens == other.response_tokens for one, other in pairs]
    assert sum(alike) > 0.7 * len(alike)  # rounding decides a token now and then
    for (one, other), same in zip(pairs, alike, strict=True):
        assert not same or one.rollout_logprobs == pytest.approx(other.rollout_logprobs, abs=0.2)


@only_plain
def test_learned_positions_have_no_room_beyond_the_context(make_model: Callable[..., Any], make_engine: Make) -> None:
    """A short row is read on next to one that ends at the last position of the model."""
    model = make_model("gpt2", positions=24)
    turns = [RolloutRequest.of("long", 0, (5,) * 12, (0,)), RolloutRequest.of("short", 1, (6, 7), (0,))]
    results = []
    for size in (1 << 30, 0):
        engine = make_engine(model, context_length=24, eos=(), keep_bytes=size)
        with keeping(engine):
            first = engine.generate(turns, Sampling(3), seed=0, step=0)
            more = [
                replace(turn, parts=(*turn.parts, TokenPart((*rollout.response_tokens, *said))))
                for turn, rollout, said in zip(turns, first, ((8,) * 2, (9,) * 8), strict=True)
            ]
            results.append(engine.generate(more, Sampling(7), seed=0, step=0))
    assert [r.response_tokens for r in results[0]] == [r.response_tokens for r in results[1]]


@pytest.mark.slow_cases("plain")
def test_many_rows_are_read_on_in_several_passes(
    llama: Any, make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = conversations(make_engine(llama))
    monkeypatch.setattr(prefill, "tokens_per_forward", lambda _: 10)
    monkeypatch.setattr(kernel_decoder, "_TOKENS_PER_ROW", 2)
    monkeypatch.setattr(kernel_decoder, "_ROWS_PER_PASS", 3)
    in_parts = conversations(make_engine(llama))
    assert_alike(in_parts, at_once)


def test_a_pass_reads_some_tokens_of_some_rows(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that share a prompt and others; rows without anything new are in no pass."""
    passes: list[int] = []
    forward = RowReader._forward

    def counted(self: RowReader, begun: Any, *arguments: Any) -> Any:
        passes.append(len(begun.rows))
        return forward(self, begun, *arguments)

    monkeypatch.setattr(RowReader, "_forward", counted)
    engine = local_engine(llama, NoText(), eos_token_ids=(), kernels="off")
    conversations(engine, turns=2)
    assert passes[1:] == [6, 3]  # after the trial's: of four samples three hear something
    assert list(kernel_decoder._passes([5, 9, 3], [40, 9, 5])) == [[(0, 5, 37), (2, 3, 5)], [(0, 37, 40)]]
    monkeypatch.setattr(kernel_decoder, "_ROWS_PER_PASS", 1)
    assert list(kernel_decoder._passes([5, 3], [7, 5])) == [[(0, 5, 7)], [(1, 3, 5)]]


class NoText:
    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return ""


def test_plain_runs_keep_nothing(llama: Any, tokenizer: Any) -> None:
    for plain in (True, False):
        engine = LocalEngine.of(LoadedModel(llama, tokenizer, (1,), 0, 99, plain=plain), max_batch_rows=4)
        conversations(engine)  # type: ignore[arg-type]
        assert ("rollout/reused_tokens" in engine.take_metrics()) is not plain


def test_several_rows_go_on_from_one(llama: Any, make_engine: Make) -> None:
    engine = make_engine(llama, eos=())
    with keeping(engine):
        (first,) = engine.generate([RolloutRequest.of("p", 0, PROMPTS[0], (0,))], Sampling(5), seed=0, step=0)
        text = text_of(first)
        engine.take_metrics()
        more = RolloutRequest.of("more", 0, (*text, 5, 6), (0, 1, 2))
        found = engine.generate([more], Sampling(5), seed=0, step=0)
        assert engine.take_metrics()["rollout/reused_tokens"].result() == 3 * (len(text) - 1)
    assert_alike(found, engine.generate([more], Sampling(5), seed=0, step=0), within=1e-5)


@only_plain
def test_a_text_that_only_resembles_a_kept_one_is_read_whole(llama: Any, make_engine: Make) -> None:
    engine = make_engine(llama, eos=())
    with keeping(engine):
        (first,) = engine.generate([RolloutRequest.of("p", 0, PROMPTS[0], (0,))], Sampling(5), seed=0, step=0)
        text = [*text_of(first), 5, 6]
        text[3] += 1
        engine.take_metrics()
        engine.generate([RolloutRequest.of("p", 0, tuple(text), (0,))], Sampling(5), seed=0, step=0)
        assert prefilled(engine) == len(text) - 1


@only_kernels
def test_new_weights_forget_everything(llama: Any, make_engine: Make) -> None:
    """Keys and values, and the decoder, which has a copy of the weights."""
    engine = make_engine(llama, eos=())
    with keeping(engine):
        requests = next_turn(engine.generate(first_turn(), Sampling(5), seed=0, step=0), 2)
        with torch.no_grad():
            for parameter in llama.parameters():
                parameter.mul_(-1.1)
        engine.sync(Weights.of(llama, 3))
        engine.take_metrics()
        found = engine.generate(requests, Sampling(5), seed=0, step=0)
        assert "rollout/reused_tokens" not in engine.take_metrics()
    expected = engine.generate(requests, Sampling(5), seed=0, step=0)
    assert [r.response_tokens for r in found] == [r.response_tokens for r in expected]


@pytest.mark.slow
@only_kernels
def test_nothing_is_held_afterwards_and_no_more_over_time(llama: Any, make_engine: Make) -> None:
    engine = make_engine(llama)
    conversations(engine)
    before = tensors_alive()
    for _ in range(3):
        conversations(engine)
        assert tensors_alive() == before
    with pytest.raises(ZeroDivisionError):
        fail_while_keeping(engine)
    assert tensors_alive() == before


def fail_while_keeping(engine: LocalEngine) -> None:
    before = tensors_alive()
    with keeping(engine):
        engine.generate(first_turn(), Sampling(5), seed=0, step=0)
        assert tensors_alive() > before
        with pytest.raises(RolloutError, match="keeping rows already"), keeping(engine):
            pass
        raise ZeroDivisionError


def test_a_row_that_went_on_is_held_once(llama: Any, make_engine: Make) -> None:
    """What a conversation holds after its third turn is what its third turn has seen."""
    engine = make_engine(llama, eos=())
    requests = first_turn()
    with keeping(engine):
        for number in range(3):
            rollouts = engine.generate(requests, Sampling(5), seed=0, step=0)
            requests = next_turn(rollouts, number + 2)
        assert engine._loop.session is not None
        held = engine._loop.session.rows
        shared = sum(len(prompt) - 1 for prompt in PROMPTS)
        own = sum(len(r.prompt_tokens) + 4 - (len(PROMPTS[r.group_id]) - 1) for r in rollouts)
        per_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, head size, bytes
        assert len(held) == 12
        if isinstance(engine._loop.session.decoder, KernelDecoder):  # its stores have room for 64 tokens, twice as wide
            assert held.num_bytes == 2 * per_token * (12 * 64 + 16 + 0 + 32)
        else:
            assert held.num_bytes == (shared + own) * per_token


@only_plain
def test_a_call_that_is_stopped_keeps_what_has_finished(llama: Any, make_engine: Make) -> None:
    """And leaves no row behind in the decoder."""
    engine = make_engine(llama, eos=())
    asked = iter([False, False, True])
    with keeping(engine):
        done, rest = engine.generate_until(
            [RolloutRequest.of("p", 0, PROMPTS[0], (0, 1))], Sampling(5), seed=0, step=0, stopped=lambda: next(asked)
        )
        assert (done, len(rest[0].begun[0].response_tokens)) == ([], 2)
        found = engine.generate(rest, Sampling(5), seed=0, step=0)
        requests = next_turn(found, 2)
        engine.take_metrics()
        engine.generate(requests, Sampling(5), seed=0, step=0)
        assert prefilled(engine) == sum(len(said) for said in SAID[:2])
    whole = engine.generate([RolloutRequest.of("p", 0, PROMPTS[0], (0, 1))], Sampling(5), seed=0, step=0)
    assert [r.response_tokens for r in found] == [r.response_tokens for r in whole]


@only_plain
def test_what_cannot_go_on_is_read_again(make_model: Callable[..., Any], make_engine: Make) -> None:
    """Models with a window, and decoders that read texts."""
    model = make_model("mistral")
    model.config.sliding_window = 16
    engine = make_engine(model)
    conversations(engine)
    assert "rollout/reused_tokens" not in engine.take_metrics()
    assert not goes_on_alike(make_model("llama"), EqualLengthDecoder)


@only_kernels
def test_a_decoder_that_goes_on_otherwise_is_found_out(
    make_model: Callable[..., Any], make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of the new tokens is read as another one."""
    model = make_model("llama").eval()
    engine = make_engine(model)
    maker = engine._loop.make_decoder.func  # type: ignore[attr-defined]
    assert goes_on_alike(model, engine._loop.make_decoder)
    go_on = maker.go_on
    monkeypatch.setattr(
        maker, "go_on", lambda self, kept, texts: go_on(self, kept, [(*text[:-2], 3, text[-1]) for text in texts])
    )
    assert not goes_on_alike(model, engine._loop.make_decoder)
    conversations(engine, turns=2)
    assert "rollout/reused_tokens" not in engine.take_metrics()


class Guesser(Echo):
    """Ends what begins with an even token, and says a few tokens to the rest."""

    def begin(self, key: tuple[int, int], turn: Rollout, number: int) -> None:
        first = turn.response_tokens[0]
        ends = FinishReason.STOP if first % 2 == 0 else None
        tokens = () if ends else tuple(range(50, 51 + first % 5))
        said = (Message("tool", str(number)),)
        self.put(key, Answer(Message("assistant", turn.response), tokens, messages=said, ends=ends))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_engine", "rows", "slow"),
    [pytest.param("kernels", 3, True, marks=compiler), ("plain", 64, False)],
    indirect=["make_engine"],
)
def test_trajectories_are_the_same_with_and_without(llama: Any, make_engine: Make, rows: int, slow: bool) -> None:
    def trajectories(keep_bytes: int) -> tuple[list[Rollout], float]:
        engine = make_engine(llama, max_batch_rows=rows, eos=tuple(range(1, 12)), keep_bytes=keep_bytes)
        talk = Talk(Guesser(slow=(1, 3, 5) if slow else ()), turns=5, turn_tokens=40)
        talks = {f"p{i}": (talk, Prompt(f"p{i}", text="p")) for i in range(2)}  # the third prompt has no conversation
        conversing = ConversingEngine(engine, talks, context_length=128, decode=str)
        found = conversing.generate(first_turn(samples=6), Sampling(90), seed=0, step=0)
        assert engine._loop.session is None
        return found, prefilled(engine)

    kept, few = trajectories(1 << 30)
    again, many = trajectories(0)
    some_kept, some = trajectories(20_000)
    assert max(len(rollout.turns) for rollout in kept) >= 5
    assert_alike(kept, again)
    assert_alike(some_kept, again)
    assert few < many / 2
    assert few <= some <= many


def tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def columns(tokens: int) -> Columns:
    """Of one layer and head of size 2: 16 bytes a token."""
    return Columns([torch.zeros(1, tokens, 2)], [torch.zeros(1, tokens, 2)])


def test_the_oldest_leave_and_what_is_shared_stays_while_a_row_needs_it() -> None:
    kept = KeptRows(160)  # 10 tokens
    shared = columns(3)
    seen = weakref.ref(shared.keys[0])
    kept.add(KeptRow((1, 2, 3, 4), shared, columns(1)))
    kept.add(KeptRow((1, 2, 3, 5, 6), shared, columns(2)))
    assert kept.num_bytes == 16 * (3 + 1 + 2)
    kept.add(KeptRow((9,) * 5, None, columns(5)))  # 11 tokens: the first has to leave
    assert (len(kept), kept.num_bytes) == (2, 16 * 10)
    kept.add(KeptRow((8, 8), None, columns(2)))
    assert (len(kept), kept.num_bytes) == (2, 16 * 7)
    del shared
    assert seen() is None
    kept.add(KeptRow((7,) * 11, None, columns(11)))  # fits nowhere
    assert (len(kept), kept.num_bytes) == (0, 0)


def test_the_longest_row_is_taken_once() -> None:
    kept = KeptRows(1 << 20)
    for text in ((1,), (1, 2, 3), (1, 2, 3, 4), (1, 5, 3), (2, 2)):
        kept.add(KeptRow(text, None, columns(len(text))))
    kept.add(KeptRow((2, 2), None, columns(2)))  # known already
    assert (len(kept), kept.num_bytes) == (5, 16 * 13)
    found = kept.take([(1, 2, 3, 4), (1, 2, 3, 9), (1, 5, 3, 2), (2, 2), (4,), (1, 2, 3, 4, 5)])
    assert [row and row.text for row in found] == [(1, 2, 3), (1, 2, 3), (1, 5, 3), None, None, (1, 2, 3, 4)]
    assert kept.take([(1, 2, 3, 4, 5)])[0].text == (1,)  # type: ignore[union-attr]
    assert (len(kept), kept.num_bytes) == (1, 16 * 2)
