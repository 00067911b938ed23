"""`rollout.engine: vllm` on vLLM itself: the same numbers as the local engine, weights that arrive, runs that learn.

Needs an interpreter that has vLLM (its CPU build will do): BURNISH_VLLM_PYTHON=envs/vllm/bin/python.
"""

import itertools
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import BuildRl, trained, trained_rows
from scripts import load_script
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from burnish.cli import main
from burnish.config.loading import load_run_file
from burnish.config.schema_data import LoraConfig
from burnish.config.schema_rollout import VllmConfig
from burnish.demo import DemoFolder
from burnish.models.characters import character_tokenizer
from burnish.models.lora import Adapter
from burnish.models.weights import Weights
from burnish.observability.history import read_history
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.sampling import filter_logits
from burnish.rollouts.vllm.engine import VllmEngine
from burnish.types import FinishReason, Rollout, RolloutRequest

pytestmark = pytest.mark.slow

STORIES = Path(__file__).resolve().parents[2] / "examples" / "stories_sentiment"
LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789"
CONTEXT = 96
Pair = tuple[Any, VllmEngine, LocalEngine]
REQUESTS = [
    RolloutRequest.of(f"data/{i}", i, tuple(range(3 + i % 20, 9 + i % 20 + i % 5)), (0, 1, 2)) for i in range(12)
]
TOLERANCE = 1e-4
"""Between the log-probabilities of two engines in float32; 3e-5 is the most that was seen."""


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("BURNISH_VLLM_PYTHON")
    if not found:
        pytest.skip("no vLLM (set BURNISH_VLLM_PYTHON to an interpreter that has it)")
    return found


@pytest.fixture(scope="module", autouse=True)
def small_cache() -> Iterator[None]:
    """vLLM's CPU build would else set a good part of the machine's memory aside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


def build_model(kind: str) -> tuple[Any, Any]:
    tokenizer = character_tokenizer(LETTERS, eos="$", pad="_")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2 if kind in ("wide", "qwen2") else 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "tie_word_embeddings": kind == "tied",
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    model = Qwen2ForCausalLM(Qwen2Config(**sizes)) if kind == "qwen2" else LlamaForCausalLM(LlamaConfig(**sizes))
    return model.eval(), tokenizer


def build_engines(model: Any, tokenizer: Any, python: str, log: Path) -> tuple[VllmEngine, LocalEngine]:
    arguments: dict[str, Any] = {
        "tokenizer": tokenizer,
        "eos_token_ids": [tokenizer.eos_token_id],
        "pad_token_id": tokenizer.pad_token_id,
        "context_length": CONTEXT,
        "max_batch_rows": 8,
    }
    settings = VllmConfig(python=python, options={"enforce_eager": True})
    return VllmEngine(model, **arguments, settings=settings, log=log), LocalEngine(model, **arguments)


@pytest.fixture(scope="module", params=["wide", "small", "tied", "qwen2"])
def pair(request: pytest.FixtureRequest, python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two models with heads of 32 dimensions and two with heads of 8, which vLLM's CPU build cannot compute as they
    are; both engines on each."""
    model, tokenizer = build_model(request.param)
    vllm, local = build_engines(model, tokenizer, python, tmp_path_factory.mktemp("vllm") / "log")
    with vllm:
        yield model, vllm, local


def largest_gap(first: Sequence[Any], second: Sequence[Any]) -> float:
    pairs = zip(first, second, strict=True)
    return max(abs(p - q) for a, b in pairs for p, q in zip(a.rollout_logprobs, b.rollout_logprobs, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_greedy_responses_are_those_of_the_local_engine(pair: Pair, temperature: float) -> None:
    _, vllm, local = pair
    greedy = Sampling(24, temperature=temperature, greedy=True)
    ours, theirs = (e.generate(REQUESTS, greedy, seed=0, step=1) for e in (local, vllm))
    assert [r.response_tokens for r in theirs] == [r.response_tokens for r in ours]
    assert [(r.response, r.finish_reason) for r in theirs] == [(r.response, r.finish_reason) for r in ours]
    assert largest_gap(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 10, "top_p": 0.8}])
def test_logprobs_are_those_of_the_filtered_distribution(pair: Pair, filters: dict[str, Any]) -> None:
    """Computed here from the logits of the model's plain forward pass over prompt and response."""
    model, vllm, _ = pair
    rollouts = vllm.generate(REQUESTS, Sampling(24, temperature=0.8, **filters), seed=3, step=1)
    for rollout in rollouts[::5]:
        tokens = torch.tensor([[*rollout.prompt_tokens, *rollout.response_tokens]])
        with torch.no_grad():
            logits = model(tokens).logits[0, len(rollout.prompt_tokens) - 1 : -1].float() / 0.8
        expected = filter_logits(logits, **filters).log_softmax(-1)
        expected = expected.gather(-1, torch.tensor(rollout.response_tokens)[:, None])[:, 0]
        assert torch.tensor(rollout.rollout_logprobs) == pytest.approx(expected, abs=TOLERANCE)


def test_stop_texts_end_a_response_and_stay_in_it(pair: Pair) -> None:
    _, vllm, local = pair
    greedy = Sampling(24, greedy=True, ignore_eos=True)
    free = local.generate(REQUESTS, greedy, seed=0, step=0)
    text = free[0].response[5:7]
    stopped = Sampling(24, greedy=True, ignore_eos=True, stop=(text, "$$$"))
    ours, theirs = (e.generate(REQUESTS, stopped, seed=0, step=0) for e in (local, vllm))
    assert [(r.response, r.finish_reason) for r in theirs] == [(r.response, r.finish_reason) for r in ours]
    assert theirs[0].finish_reason is FinishReason.STOP
    assert theirs[0].response.endswith(text)


def test_pushed_weights_are_sampled_from(pair: Pair) -> None:
    """Also those of a head that is tied to the embedding, and none is left of the cached prompts."""
    model, vllm, local = pair
    greedy = Sampling(24, greedy=True)
    before = vllm.generate(REQUESTS, greedy, seed=0, step=0)
    for version in (1, 2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
        vllm.sync(Weights.of(model, version))
        ours, theirs = (e.generate(REQUESTS, greedy, seed=0, step=0) for e in (local, vllm))
        assert [r.response_tokens for r in theirs] == [r.response_tokens for r in ours]
        assert largest_gap(ours, theirs) < TOLERANCE
        assert {r.policy_version for r in theirs} == {version}
    assert [r.response_tokens for r in theirs] != [r.response_tokens for r in before]


def test_adapters_are_sampled_with(python: str, tmp_path: Path) -> None:
    model, tokenizer = build_model("wide")
    Adapter(model, LoraConfig(rank=4))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    vllm, local = build_engines(model, tokenizer, python, tmp_path / "log")
    with vllm:
        ours, theirs = (e.generate(REQUESTS, Sampling(24, greedy=True), seed=0, step=0) for e in (local, vllm))
    assert [r.response_tokens for r in theirs] == [r.response_tokens for r in ours]
    assert largest_gap(ours, theirs) < 3 * TOLERANCE  # vLLM adds what adapters say to the outputs of layers


def test_bfloat16_is_sampled_in_bfloat16(python: str, tmp_path: Path) -> None:
    model, tokenizer = build_model("wide")
    vllm, local = build_engines(model.to(torch.bfloat16), tokenizer, python, tmp_path / "log")
    one = Sampling(1, greedy=True)
    with vllm:
        ours, theirs = (e.generate(REQUESTS, one, seed=0, step=0) for e in (local, vllm))
    same = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.response_tokens == b.response_tokens]
    assert len(same) > 0.8 * len(ours)
    assert largest_gap([a for a, _ in same], [b for _, b in same]) < 0.2


def test_a_run_whose_worker_is_killed_ends_as_an_undisturbed_one(
    tiny_run: BuildRl, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str) -> list[dict[str, float]]:
        return trained_rows(tiny_run(*on_vllm(python), f"output={tmp_path / name}", "steps=6"))

    generate, calls = VllmEngine.generate, itertools.count(1)

    def killed_before_the_third(engine: VllmEngine, *arguments: Any, **more: Any) -> list[Rollout]:
        if next(calls) == 3:
            (worker,) = workers_of(os.getpid()) - other_workers
            os.kill(worker, signal.SIGKILL)
        return generate(engine, *arguments, **more)

    calm = run("calm")
    other_workers = workers_of(os.getpid())  # of engines that other tests keep
    monkeypatch.setattr(VllmEngine, "generate", killed_before_the_third)
    killed = run("killed")
    assert sum(row.get("rollout/engine_restarts", 0) for row in killed) == 1
    assert [row["reward/mean"] for row in killed if "reward/mean" in row] == [
        row["reward/mean"] for row in calm if "reward/mean" in row
    ]


def workers_of(parent: int) -> set[int]:
    """The process ids of the vLLM workers that this process has started and that live."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            stat = (folder / "stat").read_text(encoding="utf-8")
        except OSError:
            continue
        ours = int(stat.rpartition(")")[2].split()[1]) == parent
        if ours and any(word.endswith(b"vllm/worker.py") for word in command):
            found.add(int(folder.name))
    return found


def test_the_demo_learns(python: str, tmp_path: Path) -> None:
    """Its first half is supervised; of the second twenty of sixty steps are enough to see it."""
    assert main(["demo", "--output", str(tmp_path / "demo")]) == 0
    folder = DemoFolder(tmp_path / "demo")
    config = load_run_file(folder.rl_file, [*on_vllm(python), "steps=20", f"output={tmp_path / 'rl'}"]).config
    trained(config)
    history = read_history(tmp_path / "rl")
    accuracy = history["eval/accuracy"][1]
    assert accuracy[0] <= 0.65
    assert accuracy[-1] >= 0.9
    assert max(history["rollout/logprob_diff_max"][1]) < TOLERANCE


def test_stories_become_happy(
    python: str, stories_model: Path, stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STORIES.parents[1])  # from which its run file names the reward
    load_script(STORIES / "prepare.py").write_prompts(stories, tmp_path)
    given = [
        f"model.path={stories_model}",
        f"data.train={tmp_path / 'train.jsonl'}",
        f"data.eval={tmp_path / 'heldout.jsonl'}",
        f"output={tmp_path / 'run'}",
        "logging.sinks=[]",
    ]
    config = load_run_file(STORIES / "run.yaml", [*given, *on_vllm(python)]).config
    trained(config)
    history = read_history(tmp_path / "run")
    curve = history["eval/sampled_reward_mean"][1]
    assert curve[-1] - curve[0] >= 0.4, curve
    assert max(history["rollout/logprob_diff_max"][1]) < TOLERANCE


def on_vllm(python: str) -> list[str]:
    return ["rollout.engine=vllm", f"rollout.vllm.python={python}", "rollout.vllm.options={enforce_eager: true}"]
