"""Tiny random models of five families, a letter tokenizer, and short ways to ask an engine."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from burnish.forward.fast_paths import FastPaths
from burnish.forward.race import Contender, RaceResult
from burnish.forward.verdicts import VerdictCache
from burnish.rollouts.local.engine import LocalEngine
from burnish.types import Rollout

LETTERS = [chr(code) for code in range(ord("!"), ord("!") + 62)]
PAD, EOS = 0, 1


def build_model(kind: str, *, seed: int = 0, positions: int = 128) -> Any:
    torch.manual_seed(seed)
    special = {"bos_token_id": None, "eos_token_id": EOS, "pad_token_id": PAD}
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": positions,
        "initializer_range": 0.3,
    }
    if kind != "gpt2":
        sizes |= {"intermediate_size": 48, "num_key_value_heads": 2}
    own = {"qwen3": {"head_dim": 16}, "mistral": {"sliding_window": None}}.get(kind, {})
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **own, **special))


@pytest.fixture(params=["llama", "qwen2", "qwen3", "mistral", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    return build_model(request.param)


@pytest.fixture
def llama() -> Any:
    return build_model("llama")


@pytest.fixture
def make_model() -> Callable[..., Any]:
    return build_model


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """One visible character per token: id 2 is '!', id 3 is '"' and so on."""
    vocabulary = {text: index for index, text in enumerate(["<pad>", "<eos>", *LETTERS])}
    inner = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def assert_alike(found: Sequence[Rollout], expected: Sequence[Rollout], within: float = 3e-5) -> None:
    """The same in everything but the last digits of log-probabilities."""
    assert [replace(one, rollout_logprobs=()) for one in found] == [
        replace(one, rollout_logprobs=()) for one in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.rollout_logprobs == pytest.approx(other.rollout_logprobs, abs=within)


def local_engine(model: Any, tokenizer: Any, **given: Any) -> LocalEngine:
    settings = {"eos_token_ids": (EOS,), "pad_token_id": PAD, "context_length": 128, "max_batch_rows": 64}
    return LocalEngine(model, tokenizer=tokenizer, **{**settings, **given})


def paths_with(
    fastest: Sequence[str], recorded: dict[str, str] | None = None, *, raced: list[str] | None = None
) -> FastPaths:
    """Paths by made-up times: names, or beginnings of names, in the order of their speed; others are slower still.
    raced: gets the names of what is timed."""
    names = [] if raced is None else raced

    def run_race(ways: Sequence[Contender]) -> RaceResult:
        names.extend(way.name for way in ways)
        places = [[way.name.startswith(name) for name in (*fastest, "")].index(True) for way in ways]
        seconds = {way.name: 1.0 + place for way, place in zip(ways, places, strict=True)}
        return RaceResult(min(seconds, key=seconds.__getitem__), seconds)

    return FastPaths(recorded, cache=VerdictCache(None), timed=True, run_race=run_race)


@pytest.fixture(params=[pytest.param("kernels", marks=pytest.mark.compiler), "plain"])
def make_engine(tokenizer: Any, request: pytest.FixtureRequest) -> Callable[..., LocalEngine]:
    """Every test runs with kernels and with the model's own steps."""

    def make(model: Any, *, eos: Sequence[int] = (EOS,), **given: Any) -> LocalEngine:
        kernels = "auto" if request.param == "kernels" else "off"
        return local_engine(model, tokenizer, eos_token_ids=eos, kernels=kernels, **given)

    return make
