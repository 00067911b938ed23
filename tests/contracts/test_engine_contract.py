"""What every RolloutEngine must keep. Add an engine to ENGINES to hold it to the same rules."""

import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.config.schema_rollout import RolloutConfig, VllmConfig
from burnish.errors import RolloutError
from burnish.models.characters import character_tokenizer
from burnish.models.loading import LoadedModel
from burnish.models.weights import Weights
from burnish.rollouts.engine import RolloutEngine, Sampling, StoppableEngine
from burnish.rollouts.registry import build_engine
from burnish.types import FinishReason, Rollout, RolloutRequest

ENGINES = ["local", pytest.param("vllm", marks=pytest.mark.slow)]
EOS, CONTEXT = 1, 32
REQUESTS = [
    RolloutRequest.of("data/7", 4, (5, 9, 2), (0, 1, 2)),
    RolloutRequest.of("data/1", 2, (8,), (3,)),
    RolloutRequest.of("data/3", 9, (11, 12, 13, 14, 15, 16, 17), (0, 5)),
]
SAMPLING = Sampling(8, temperature=0.9)


class Letters:
    """The least that an engine may ask of a tokenizer; one may hand it on as files."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(ord("a") + t) for t in tokens if not (skip_special_tokens and t <= EOS))

    def save_pretrained(self, folder: str) -> None:
        letters = [chr(ord("a") + token) for token in range(24)]
        character_tokenizer(letters[2:], eos="a", pad="b").save_pretrained(folder)


def new_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=24,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=0,
        )
    )


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutEngine]:
    """vLLM has an interpreter of its own, named by BURNISH_VLLM_PYTHON."""
    python = os.environ.get("BURNISH_VLLM_PYTHON")
    if request.param == "vllm" and not python:
        pytest.skip("no vLLM (set BURNISH_VLLM_PYTHON to an interpreter that has it)")
    vllm = VllmConfig(python=python, options={"enforce_eager": True, "kv_cache_memory_bytes": 1 << 28})
    built = build_engine(
        RolloutConfig(engine=request.param, max_batch_rows=4, vllm=vllm),
        LoadedModel(new_model(), Letters(), (EOS,), 0, CONTEXT),  # type: ignore[arg-type]
        context_length=CONTEXT,
        folder=tmp_path_factory.mktemp("engine"),
    )
    with built if isinstance(built, AbstractContextManager) else nullcontext():
        yield built


def contents(rollouts: list[Rollout]) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(r.prompt_id, r.sample_index): r.response_tokens for r in rollouts}


def test_finished_responses_are_told_once_and_are_those_returned(engine: RolloutEngine) -> None:
    """An engine that learns of all at once tells none; each call may bring several or none."""
    told: list[Rollout] = []
    rollouts = engine.generate(REQUESTS, SAMPLING, seed=3, step=1, on_finished=told.extend)
    assert len({id(rollout) for rollout in told}) == len(told)
    assert {id(rollout) for rollout in told} in (set(), {id(rollout) for rollout in rollouts})
    assert rollouts == engine.generate(REQUESTS, SAMPLING, seed=3, step=1)


def test_one_rollout_per_request_and_index_in_their_order(engine: RolloutEngine) -> None:
    rollouts = engine.generate(REQUESTS, SAMPLING, seed=0, step=0)
    asked = [(r.prompt_id, r.group_id, i, r.prompt_tokens) for r in REQUESTS for i in r.sample_indices]
    assert [(r.prompt_id, r.group_id, r.sample_index, r.prompt_tokens) for r in rollouts] == asked


def test_tokens_logprobs_reason_and_text_agree(engine: RolloutEngine) -> None:
    for rollout in engine.generate(REQUESTS, SAMPLING, seed=0, step=0):
        tokens = rollout.response_tokens
        assert 1 <= len(tokens) == len(rollout.rollout_logprobs) <= 8
        assert all(math.isfinite(value) and value <= 0 for value in rollout.rollout_logprobs)
        assert EOS not in tokens[:-1]
        assert rollout.finish_reason is (FinishReason.STOP if tokens[-1] == EOS else FinishReason.LENGTH)
        shown = [token for token in tokens if token != EOS]
        assert rollout.response == Letters().decode(shown, skip_special_tokens=False)
        assert rollout.reward is None


def test_the_same_call_gives_the_same_rollouts(engine: RolloutEngine) -> None:
    first = engine.generate(REQUESTS, SAMPLING, seed=2, step=3)
    assert contents(engine.generate(REQUESTS, SAMPLING, seed=2, step=3)) == contents(first)
    assert contents(engine.generate(REQUESTS, SAMPLING, seed=2, step=4)) != contents(first)
    assert contents(engine.generate(REQUESTS, SAMPLING, seed=3, step=3)) != contents(first)


def test_how_requests_are_batched_changes_nothing(engine: RolloutEngine) -> None:
    together = contents(engine.generate(REQUESTS, SAMPLING, seed=2, step=3))
    assert contents(engine.generate(REQUESTS[::-1], SAMPLING, seed=2, step=3)) == together
    apart = [engine.generate([request], SAMPLING, seed=2, step=3) for request in REQUESTS]
    assert contents([rollout for part in apart for rollout in part]) == together


def test_greedy_ignores_the_noise(engine: RolloutEngine) -> None:
    greedy = Sampling(8, greedy=True)
    first = engine.generate(REQUESTS, greedy, seed=0, step=0)
    assert contents(engine.generate(REQUESTS, greedy, seed=5, step=6)) == contents(first)
    assert len({r.response_tokens for r in first if r.prompt_id == "data/7"}) == 1


def test_sampling_that_ignores_eos_goes_on_through_it_to_the_full_length(engine: RolloutEngine) -> None:
    """Up to its first end-of-sequence token each response is the one that stops there, so "sample all, then cut"
    and "stop" are the same."""
    many = [RolloutRequest.of("data/7", 4, (5, 9, 2), tuple(range(40)))]
    fixed = engine.generate(many, Sampling(12, ignore_eos=True), seed=0, step=0)
    stopped = engine.generate(many, Sampling(12), seed=0, step=0)
    assert {(len(r.response_tokens), r.finish_reason) for r in fixed} == {(12, FinishReason.LENGTH)}
    assert sum(EOS in r.response_tokens[:-1] for r in fixed) > 5
    for whole, cut in zip(fixed, stopped, strict=True):
        assert whole.response_tokens[: len(cut.response_tokens)] == cut.response_tokens
        assert whole.rollout_logprobs[: len(cut.response_tokens)] == pytest.approx(cut.rollout_logprobs, abs=1e-5)
        assert len(cut.response_tokens) == 12 or cut.response_tokens[-1] == EOS


def test_a_stop_id_of_the_sampling_still_ends_a_response(engine: RolloutEngine) -> None:
    asked = Sampling(12, ignore_eos=True, stop_token_ids=(5, 6, 7, 8, 9, 10))
    rollouts = engine.generate(REQUESTS, asked, seed=0, step=0)
    assert any(r.finish_reason is FinishReason.STOP for r in rollouts)


def test_weights_of_the_last_sync_are_sampled_with_and_rollouts_carry_their_version(engine: RolloutEngine) -> None:
    """They come without a module here, as those of a policy in another process do."""
    first = contents(engine.generate(REQUESTS, SAMPLING, seed=0, step=0))
    engine.sync(Weights(17, Weights.of(new_model(seed=1)).tensors))
    other = engine.generate(REQUESTS, SAMPLING, seed=0, step=0)
    assert {r.policy_version for r in other} == {17}
    assert contents(other) != first
    engine.sync(Weights(18, Weights.of(new_model()).tensors))
    again = engine.generate(REQUESTS, SAMPLING, seed=0, step=0)
    assert {r.policy_version for r in again} == {18}
    assert contents(again) == first


@pytest.mark.parametrize(
    ("requests", "sampling"),
    [
        (REQUESTS, Sampling(0)),
        (REQUESTS, Sampling(4, temperature=-1.0)),
        ([RolloutRequest.of("p", 0, (5,) * CONTEXT, (0,))], SAMPLING),
        ([RolloutRequest("p", 0, (), (0,))], SAMPLING),
        (REQUESTS, Sampling(CONTEXT - 4, ignore_eos=True)),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    engine: RolloutEngine, requests: list[RolloutRequest], sampling: Sampling
) -> None:
    with pytest.raises(RolloutError):
        engine.generate(requests, sampling, seed=0, step=0)


@pytest.mark.parametrize("tokens", [0, 1, 3, 7])
def test_an_engine_that_stops_goes_on_where_it_was(tokens: int, engine: RolloutEngine) -> None:
    if not isinstance(engine, StoppableEngine):
        pytest.skip("it cannot stop in the middle of a response, and does not say that it can")
    asked = iter(range(100))
    whole = engine.generate(REQUESTS, SAMPLING, seed=3, step=1)
    done, rest = engine.generate_until(REQUESTS, SAMPLING, seed=3, step=1, stopped=lambda: next(asked) >= tokens)
    assert all(begun.versions for request in rest for _, begun in request.samples() if begun.response_tokens)
    assert contents([*done, *engine.generate(rest, SAMPLING, seed=3, step=1)]) == contents(whole)
