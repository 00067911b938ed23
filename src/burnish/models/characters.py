"""Character tokenizers and tiny random models, for the demo, for tests and for trying out an idea."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from burnish.errors import ModelError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


def character_tokenizer(
    alphabet: str | Sequence[str],
    *,
    eos: str,
    pad: str,
    bos: str | None = None,
    unk: str | None = None,
    context_length: int = 2048,
    chat_template: str | None = None,
) -> PreTrainedTokenizerFast:
    """One token per character of `alphabet`. No tokens are added around a text. Saves and loads with `save_pretrained`.

    Ids: first the special tokens that are given (bos, eos, pad, unk in this order), then the alphabet in its order. A
    character outside the alphabet becomes `unk`, or fails without one. Raises ModelError for duplicate tokens, and for
    an alphabet of longer texts.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"bos_token": bos, "eos_token": eos, "pad_token": pad, "unk_token": unk}
    tokens = [*(token for token in special.values() if token is not None), *alphabet]
    _check_tokens(alphabet, tokens)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    # "" is not a token: an unknown character then fails in encode instead of disappearing
    model = models.WordLevel(vocabulary, unk_token=unk if unk is not None else "")
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
        **{name: token for name, token in special.items() if token is not None},
    )


def _check_tokens(alphabet: str | Sequence[str], tokens: Sequence[str]) -> None:
    long = [token for token in alphabet if len(token) != 1]
    if long:
        raise ModelError(f"the alphabet holds {long[0]!r}, which is not one character", remedy="list single characters")
    doubled = sorted({token for token in tokens if tokens.count(token) > 1})
    if doubled:
        raise ModelError(f"token {doubled[0]!r} appears twice", remedy="list every token once, special or not")


def tiny_llama(
    *,
    vocab_size: int,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    intermediate_size: int | None = None,
    context_length: int = 128,
    eos_token_id: int,
    pad_token_id: int,
    bos_token_id: int | None = None,
    tie_embeddings: bool = True,
    initializer_range: float = 0.02,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A randomly initialised Llama, a pure function of its arguments. The global random state does not change."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if hidden_size % num_heads:
        raise ModelError(f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}")
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size or 4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=context_length,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        bos_token_id=bos_token_id,
        tie_word_embeddings=tie_embeddings,
        initializer_range=initializer_range,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()
