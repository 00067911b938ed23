"""Tiny random models of three families, built in the process, and batches to score."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from burnish.config.schema_data import ModelConfig
from burnish.forward import verdicts
from burnish.forward.batch import Batch
from burnish.models.characters import character_tokenizer, tiny_llama
from burnish.models.loading import LoadedModel, load_model

VOCABULARY = 16
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "lift_fresh")
FAMILIES = ("llama", "qwen2", "gpt2")


def build_model(family: str) -> PreTrainedModel:
    if family == "llama":
        return tiny_llama(vocab_size=VOCABULARY, hidden_size=16, eos_token_id=1, pad_token_id=2, context_length=64)
    torch.manual_seed(0)
    shared = {"vocab_size": VOCABULARY, "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 2}
    if family == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **shared)).eval()
    return Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            **shared,
        )
    ).eval()


@pytest.fixture
def own_timings(tmp_path, monkeypatch) -> Iterator[None]:
    """Kept timings of this test alone."""
    monkeypatch.setattr(verdicts, "cache_folder", lambda: tmp_path / "cache" / "kernels")
    verdicts.own_cache.cache_clear()
    yield
    verdicts.own_cache.cache_clear()


@pytest.fixture(scope="session")
def tokenizer():
    """Ids: 0 S (bos), 1 E (eos), 2 P (pad), 3 U (unk), 4..13 digits, 14 comma, 15 colon."""
    return character_tokenizer("0123456789,:", bos="S", eos="E", pad="P", unk="U")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, tokenizer) -> Callable[[str], Path]:
    """Folder of a saved model of the family, made once."""
    root = tmp_path_factory.mktemp("models")

    def folder(family: str) -> Path:
        target = root / family
        if not target.exists():
            build_model(family).save_pretrained(target)
            tokenizer.save_pretrained(target)
        return target

    return folder


@pytest.fixture
def load(model_folder) -> Callable[..., LoadedModel]:
    def loaded(family: str = "llama", *, plain: bool = False, **fields) -> LoadedModel:
        return load_model(ModelConfig(path=str(model_folder(family)), device="cpu", **fields), plain=plain)

    return loaded


def make_batch(*, rows: int = 7, prompt_width: int = 6, width: int = 9, seed: int = 1) -> Batch:
    """Random rows of all lengths; every third token of row 1 is not trained on."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    response_lengths = draw(width + 1, rows, low=1)
    response_lengths[0] = width
    loss_mask = torch.arange(width) < response_lengths[:, None]
    loss_mask[1, ::3] = False
    return Batch(
        prompt_tokens=draw(VOCABULARY, rows, prompt_width),
        prompt_lengths=draw(prompt_width + 1, rows, low=1),
        response_tokens=draw(VOCABULARY, rows, width),
        response_lengths=response_lengths,
        loss_mask=loss_mask,
        group_ids=torch.arange(rows),
    )


@pytest.fixture
def batch() -> Batch:
    return make_batch()


@pytest.fixture
def make_batch_of() -> Callable[..., Batch]:
    return make_batch


@pytest.fixture(scope="session")
def waits() -> Callable[[Counter[str]], TorchDispatchMode]:
    """Counts operations for which the host needs a tensor's numbers, or hands numbers to it: each waits for a GPU."""

    class Counting(TorchDispatchMode):
        def __init__(self, counted: Counter[str]) -> None:
            super().__init__()
            self.counted = counted

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            by_mask = name == "index" and any(index is not None and index.dtype == torch.bool for index in args[1])
            if by_mask or name in WAITS:
                self.counted[name] += 1
            return func(*args, **(kwargs or {}))

    return Counting
