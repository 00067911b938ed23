from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.errors import RolloutError
from burnish.forward.row_rules import takes
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.noise import sample_key, uniforms
from burnish.types import FinishReason, Rollout, RolloutRequest

from ..conftest import assert_alike, local_engine

Make = Callable[..., LocalEngine]


def random_prompts(lengths: Sequence[int], *, seed: int = 0) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(2, 64, (length,), generator=generator).tolist()) for length in lengths]


def requests_for(prompts: Sequence[tuple[int, ...]], samples: int = 1) -> list[RolloutRequest]:
    return [RolloutRequest.of(f"p{i}", i, tokens, tuple(range(samples))) for i, tokens in enumerate(prompts)]


def reference_greedy(model: Any, prompt: tuple[int, ...], count: int, eos: int = 1) -> list[int]:
    model.eval()
    tokens = torch.tensor([prompt])
    mask = torch.ones_like(tokens)
    output = model.generate(
        tokens, attention_mask=mask, do_sample=False, max_new_tokens=count, eos_token_id=eos, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


@torch.no_grad()
def unpadded_logprobs(model: Any, rollout: Rollout, temperature: float = 1.0) -> torch.Tensor:
    model.eval()
    tokens = torch.tensor([rollout.prompt_tokens + rollout.response_tokens])
    logits = model(tokens).logits[0, len(rollout.prompt_tokens) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(rollout.response_tokens)[:, None])[:, 0]


def assert_unpadded(model: Any, rollouts: Sequence[Rollout], temperature: float = 1.0, within: float = 1e-5) -> None:
    for rollout in rollouts:
        expected = unpadded_logprobs(model, rollout, temperature)
        assert torch.allclose(torch.tensor(rollout.rollout_logprobs), expected, atol=within)


@pytest.mark.slow
@pytest.mark.parametrize("max_batch_rows", [1, 3, 64])
def test_greedy_equals_generate_for_prompts_of_all_lengths(model: Any, make_engine: Make, max_batch_rows: int) -> None:
    prompts = random_prompts([1, 5, 3, 9, 40, 5])
    engine = make_engine(model, max_batch_rows=max_batch_rows)
    rollouts = engine.generate(requests_for(prompts), Sampling(24, greedy=True), seed=0, step=0)
    for prompt, rollout in zip(prompts, rollouts, strict=True):
        assert list(rollout.response_tokens) == reference_greedy(model, prompt, 24)


@pytest.mark.slow
def test_greedy_equals_generate_on_a_real_model(stories_model: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(stories_model)
    tokenizer = AutoTokenizer.from_pretrained(stories_model)
    texts = ["Once upon a time", "Lily and Tom went to the big park to play", "The dog"]
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in texts]
    engine = local_engine(model, tokenizer, eos_token_ids=[2], context_length=512, max_batch_rows=2)
    rollouts = engine.generate(requests_for(prompts), Sampling(60, greedy=True), seed=0, step=0)
    for prompt, rollout in zip(prompts, rollouts, strict=True):
        expected = reference_greedy(model, prompt, 60, eos=2)
        assert list(rollout.response_tokens) == expected
        assert rollout.response == tokenizer.decode([t for t in expected if t != 2], skip_special_tokens=False)


@pytest.mark.slow_cases("*-0.7", "gpt2-kernels-*")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_the_unpadded_ones(model: Any, make_engine: Make, temperature: float) -> None:
    requests = requests_for(random_prompts([1, 7, 20, 3]), samples=3)
    sampling = Sampling(20, temperature=temperature)
    rollouts = make_engine(model, max_batch_rows=5).generate(requests, sampling, seed=1, step=2)
    assert_unpadded(model, rollouts, temperature)


def test_eager_attention_gives_the_same(make_model: Callable[..., Any], make_engine: Make) -> None:
    model = make_model("llama")
    requests = requests_for(random_prompts([2, 9, 5]), samples=2)
    expected = make_engine(model).generate(requests, Sampling(12), seed=0, step=0)
    model.set_attn_implementation("eager")
    rollouts = make_engine(model).generate(requests, Sampling(12), seed=0, step=0)
    assert [r.response_tokens for r in rollouts] == [r.response_tokens for r in expected]


@pytest.mark.slow
def test_a_sample_does_not_depend_on_batch_order_neighbours_or_rows(model: Any, make_engine: Make) -> None:
    requests = requests_for(random_prompts([4, 1, 12, 6, 30, 2, 9, 5]), samples=8)
    sampling = Sampling(16, top_p=0.9)
    together = make_engine(model).generate(requests, sampling, seed=3, step=5)
    by_sample = {(r.prompt_id, r.sample_index): r.response_tokens for r in together}
    assert len(by_sample) == len(together) == 64

    backwards = make_engine(model, max_batch_rows=7).generate(requests[::-1], sampling, seed=3, step=5)
    one = RolloutRequest.of("p2", 0, requests[2].prompt_tokens, (6,))
    alone = make_engine(model, max_batch_rows=1).generate([one], sampling, seed=3, step=5)
    strangers = [RolloutRequest.of("other", 9, (5, 6, 7), (0, 1, 2)), one]
    beside = make_engine(model).generate(strangers, sampling, seed=3, step=5)[3:]
    for rollout in [*backwards, *alone, *beside]:
        assert rollout.response_tokens == by_sample[rollout.prompt_id, rollout.sample_index]


def test_the_first_token_is_drawn_with_the_number_of_position_0(llama: Any, make_engine: Make) -> None:
    prompt = random_prompts([5])[0]
    rollout = make_engine(llama).generate([RolloutRequest.of("p", 0, prompt, (4,))], Sampling(1), seed=8, step=9)[0]
    number = uniforms(torch.tensor(sample_key(8, 9, "p", 4)), torch.tensor(0))
    with torch.no_grad():
        cumulative = llama(torch.tensor([prompt])).logits[0, -1].double().softmax(-1).cumsum(-1)
    assert rollout.response_tokens[0] == int((cumulative <= number).sum())


def test_equal_prompts_with_different_ids_stay_apart(llama: Any, make_engine: Make) -> None:
    prompt = random_prompts([6])[0]
    requests = [RolloutRequest.of(name, group, prompt, (0, 1)) for group, name in enumerate(["a", "b"])]
    rollouts = make_engine(llama, eos=()).generate(requests, Sampling(12), seed=0, step=0)
    order = [("a", 0, 0), ("a", 0, 1), ("b", 1, 0), ("b", 1, 1)]
    assert [(r.prompt_id, r.group_id, r.sample_index) for r in rollouts] == order
    assert len({r.response_tokens for r in rollouts}) == 4


@pytest.mark.parametrize("max_batch_rows", [3, 64])
def test_each_distinct_prompt_is_prefilled_once(llama: Any, make_engine: Make, max_batch_rows: int) -> None:
    prompts = random_prompts([10, 20])
    requests = requests_for([*prompts, prompts[0]], samples=8)
    engine = make_engine(llama, max_batch_rows=max_batch_rows, eos=())
    engine.generate(requests, Sampling(5), seed=0, step=0)
    metrics = engine.take_metrics()
    assert metrics["rollout/prefilled_tokens"].result() == 9 + 19  # the last token is the first that decoding feeds
    assert metrics["rollout/decoded_tokens"].result() == 3 * 8 * 5
    assert metrics["time/decode_seconds"].result() > 0  # type: ignore[operator]
    assert engine.take_metrics()["rollout/decoded_tokens"].result() == 0


def test_finished_rows_leave_and_waiting_rows_take_their_place(llama: Any, make_engine: Make) -> None:
    rows_per_forward: list[int] = []
    engine = make_engine(llama, max_batch_rows=8, eos=(1, 2, 3, 4, 5, 6))
    llama.get_input_embeddings().register_forward_pre_hook(lambda _, args: rows_per_forward.append(args[0].numel()))
    requests = requests_for(random_prompts([1] * 8), samples=4)  # prompts of one token: every forward is a decode
    rollouts = engine.generate(requests, Sampling(40), seed=0, step=0)
    assert len({len(r.response_tokens) for r in rollouts}) > 3
    assert max(rows_per_forward) == 8
    assert sum(rows_per_forward) == sum(len(r.response_tokens) for r in rollouts)


def test_finish_reasons_and_text(llama: Any, make_engine: Make, tokenizer: Any) -> None:
    requests = requests_for(random_prompts([3, 8, 5]), samples=6)
    sampling = Sampling(10, stop_token_ids=(9, 10), stop=("7", "&"))
    stop_letters = {tokenizer.convert_tokens_to_ids(letter) for letter in "7&"}
    reasons = set()
    for rollout in make_engine(llama, eos=(1, 4)).generate(requests, sampling, seed=0, step=0):
        *before, last = rollout.response_tokens
        reasons.add(rollout.finish_reason)
        ends = {1, 4, 9, 10} | stop_letters
        assert not ends & set(before)
        assert (rollout.finish_reason is FinishReason.STOP) == (last in ends)
        shown = before if last in {1, 4, 9, 10} else [*before, last]
        assert rollout.response == tokenizer.decode(shown, skip_special_tokens=False)
        assert len(rollout.rollout_logprobs) == len(rollout.response_tokens) <= 10
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def test_responses_end_at_the_end_of_the_context(make_model: Callable[..., Any], make_engine: Make) -> None:
    model = make_model("gpt2", positions=16)
    engine = make_engine(model, context_length=16, eos=())
    rollouts = engine.generate(requests_for(random_prompts([15, 10])), Sampling(40), seed=0, step=0)
    assert [len(r.response_tokens) for r in rollouts] == [1, 6]
    assert {r.finish_reason for r in rollouts} == {FinishReason.LENGTH}


def test_prompts_without_tokens_or_room_are_refused(llama: Any, make_engine: Make) -> None:
    engine = make_engine(llama, context_length=16)
    with pytest.raises(RolloutError, match=r"'long' has 16 tokens.*context of 16"):
        engine.generate([RolloutRequest.of("long", 0, (5,) * 16, (0,))], Sampling(4), seed=0, step=0)
    with pytest.raises(RolloutError, match="'empty' has no tokens"):
        engine.generate([RolloutRequest("empty", 0, (), (0,))], Sampling(4), seed=0, step=0)


def test_weights_that_are_not_finite_are_an_error_and_the_mode_is_restored(llama: Any, make_engine: Make) -> None:
    with torch.no_grad():
        llama.lm_head.weight[3] = float("nan")
    llama.train()
    with pytest.raises(RolloutError, match="log-probability nan at response token 0 of prompt 'p0'"):
        make_engine(llama).generate(requests_for([(5, 6)]), Sampling(4), seed=0, step=0)
    assert llama.training


def test_no_requests_give_no_rollouts(llama: Any, make_engine: Make) -> None:
    assert make_engine(llama).generate([], Sampling(4), seed=0, step=0) == []


def test_dropout_is_off_and_the_model_is_left_as_it_was(make_model: Callable[..., Any], make_engine: Make) -> None:
    model = make_model("gpt2")  # dropout 0.1 by default
    model.train()
    model.transformer.drop.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    requests = requests_for(random_prompts([4, 7]), samples=2)
    first = make_engine(model).generate(requests, Sampling(8), seed=0, step=0)
    assert make_engine(model).generate(requests, Sampling(8), seed=0, step=0) == first
    assert model.training
    assert model.transformer.h[0].training
    assert not model.transformer.drop.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_training_goes_on_after_sampling(llama: Any, make_engine: Make) -> None:
    rollout = make_engine(llama).generate(requests_for(random_prompts([4])), Sampling(6), seed=0, step=0)[0]
    llama.train()
    tokens = torch.tensor([rollout.prompt_tokens + rollout.response_tokens])
    llama(tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in llama.parameters())


def test_new_weights_are_seen_at_once(llama: Any, make_engine: Make) -> None:
    engine = make_engine(llama, eos=())
    requests = requests_for(random_prompts([4]))
    before = engine.generate(requests, Sampling(8, greedy=True), seed=0, step=0)[0]
    with torch.no_grad():
        llama.lm_head.weight.neg_()
    after = engine.generate(requests, Sampling(8, greedy=True), seed=0, step=0)[0]
    assert list(after.response_tokens) == reference_greedy(llama, requests[0].prompt_tokens, 8, eos=-1)
    assert before.response_tokens != after.response_tokens


def test_bf16_model_is_not_cast(llama: Any, make_engine: Make) -> None:
    model = llama.to(torch.bfloat16)
    rollouts = make_engine(model).generate(requests_for(random_prompts([4, 9])), Sampling(8), seed=0, step=0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert_unpadded(model, rollouts, within=0.2)


def test_bf16_rows_may_be_at_different_lengths(llama: Any, make_engine: Make) -> None:
    """Rows join when others have begun: a decoder with its own dtype still takes the model's keys."""
    engine = make_engine(llama.to(torch.bfloat16), max_batch_rows=2, eos=tuple(range(1, 9)))
    rollouts = engine.generate(requests_for(random_prompts([4, 9, 2]), samples=3), Sampling(12), seed=0, step=0)
    assert len({len(rollout.response_tokens) for rollout in rollouts}) > 2


def test_a_peft_model_samples_with_its_adapter(llama: Any, make_engine: Make) -> None:
    from peft import LoraConfig, get_peft_model

    requests = requests_for(random_prompts([4, 9]), samples=2)
    plain = make_engine(llama, eos=()).generate(requests, Sampling(8), seed=0, step=0)
    wrapped = get_peft_model(llama, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    assert takes(wrapped, "position_ids")  # which the pass of peft's wrapper does not name
    rollouts = make_engine(wrapped, eos=()).generate(requests, Sampling(8), seed=0, step=0)
    assert [r.response_tokens for r in rollouts] != [r.response_tokens for r in plain]
    assert_unpadded(wrapped, rollouts)


@pytest.mark.slow
def test_the_cache_grows_past_its_first_size(llama: Any, make_engine: Make) -> None:
    prompt = random_prompts([50])[0]
    rollout = make_engine(llama, eos=()).generate(requests_for([prompt]), Sampling(78, greedy=True), seed=0, step=0)[0]
    assert list(rollout.response_tokens) == reference_greedy(llama, prompt, 78, eos=-1)


@pytest.mark.slow_cases("plain")
def test_models_that_the_cache_cannot_serve_are_refused(make_model: Callable[..., Any], make_engine: Make) -> None:
    model = make_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(RolloutError, match="flash_attention_2"):
        make_engine(model)
    with pytest.raises(RolloutError, match="max_batch_rows is 0"):
        make_engine(make_model("llama"), max_batch_rows=0)


def test_rows_see_their_own_window_whatever_stands_beside_them(make_engine: Make) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    model = MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=8, initializer_range=0.2))
    prompts = random_prompts([3, 30, 9, 1])
    rollouts = make_engine(model).generate(requests_for(prompts), Sampling(20, greedy=True), seed=0, step=0)
    for prompt, rollout in zip(prompts, rollouts, strict=True):
        assert list(rollout.response_tokens) == reference_greedy(model, prompt, 20)
    assert_unpadded(model, rollouts)


def cut_after(tokens: int) -> Callable[[], bool]:
    """Stops an engine after that many tokens of every row."""
    asked = count()
    return lambda: next(asked) >= tokens


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_response_that_is_cut_goes_on_as_if_it_had_not_been(
    kind: str, greedy: bool, make_model: Callable[..., Any], make_engine: Make
) -> None:
    """Anywhere, several times, by other engines with other numbers of rows, and some not begun at all."""
    model = make_model(kind)
    requests = requests_for(random_prompts([1, 9, 4, 30, 4]), samples=3)
    sampling = Sampling(24, temperature=0.9, greedy=greedy)
    whole = make_engine(model).generate(requests, sampling, seed=1, step=2)
    for cuts in ((0, 3), (1, 1, 1), (7, 9), (23,)):
        finished: list[Rollout] = []
        rest = requests
        for rows, tokens in zip((3, 64, 5), cuts, strict=False):
            engine = make_engine(model, max_batch_rows=rows)
            done, rest = engine.generate_until(rest, sampling, seed=1, step=2, stopped=cut_after(tokens))
            finished += done
        finished += make_engine(model, max_batch_rows=4).generate(rest, sampling, seed=1, step=2)
        assert_alike(sorted(finished, key=lambda r: (r.group_id, r.sample_index)), whole, within=2e-5)


def test_the_versions_of_a_response_that_several_weights_sampled(make_engine: Make, llama: Any) -> None:
    """Two tokens of version 5, none of version 6, three of version 7, and the rest of version 8."""
    engine = make_engine(llama, eos=())
    rest, metrics = [RolloutRequest.of("p", 0, (5, 6), (0, 1))], []
    for version, tokens in ((5, 2), (6, 0), (7, 1), (7, 2)):
        engine.version = version
        done, rest = engine.generate_until(rest, Sampling(9), seed=0, step=0, stopped=cut_after(tokens))
        metrics.append(engine.take_metrics())
        assert done == []
    assert [len(begun.response_tokens) for _, begun in rest[0].samples()] == [5, 5]
    engine.version = 8
    rollouts = engine.generate(rest, Sampling(9), seed=0, step=0)
    assert {r.versions for r in rollouts} == {((0, 5), (2, 7), (5, 8))}
    assert rollouts[0].tokens_by_version() == {5: 2, 7: 3, 8: 4}
    assert {r.policy_version for r in rollouts} == {5}
    decoded = [*metrics, engine.take_metrics()]
    assert [m["rollout/decoded_tokens"].result() for m in decoded] == [4, 0, 2, 4, 8]


def test_samples_of_one_prompt_are_left_over_in_one_request(make_engine: Make, llama: Any) -> None:
    """The first of three rows is finished by its length, because the third prompt leaves it only two tokens."""
    long = RolloutRequest.of("long", 0, tuple(range(2, 8)) * 21, (0,))
    requests = [long, RolloutRequest.of("short", 1, (5, 6), (4, 7))]
    engine = make_engine(llama, eos=())
    done, rest = engine.generate_until(requests, Sampling(9), seed=0, step=0, stopped=cut_after(3))
    assert [(r.group_id, len(r.response_tokens)) for r in done] == [(0, 2)]
    assert [(r.group_id, r.sample_indices, len(r.begun)) for r in rest] == [(1, (4, 7), 2)]
