"""Random models that never end a response by themselves, their tokenizers, and prompts; all a function of the seed.

Every embedding has the same value 1 in dimension 0, and no layer writes there, so that after the last norm that
dimension is nearly the same number at every token. The head's rows of the special tokens read this dimension alone, so
that padding, unknown and end are never sampled. All peers run the same ordinary model, and each response ends where
`workloads.response_lengths` says.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from workloads import (
    AROUND_PROMPT,
    EOS,
    FIRST_SPOKEN_WORD,
    FIRST_WORD,
    MODELS,
    PAD,
    UNKNOWN,
    ModelShape,
    Workload,
)

NEVER = -40.0
"""Logit of a token that is not to be sampled."""


def write_model(name: str, folder: Path, seed: int = 0) -> None:
    """Model and tokenizer in the Hugging Face layout."""
    shape = MODELS[name]
    torch.manual_seed(seed)
    model = build_model(shape)
    silence_special_tokens(model)
    model.save_pretrained(folder)
    build_tokenizer(shape.vocabulary).save_pretrained(folder)


def build_model(shape: ModelShape) -> Any:
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
        tie_word_embeddings=shape.tied,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            for matrix in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                matrix.mul_(0.1)  # layers add little, so that the last norm divides every token by about the same
                matrix[0] = 0.0
    return model


@torch.no_grad()
def silence_special_tokens(model: Any) -> None:
    """Point the head's rows of the special tokens at dimension 0, so that their logits are NEVER."""
    head = model.lm_head.weight
    tokens = torch.randint(FIRST_WORD, head.shape[0], (16, 64))
    level = model.model(input_ids=tokens)[0][..., 0].mean()  # after the last norm
    head[[PAD, EOS, UNKNOWN]] = 0.0
    head[[PAD, EOS, UNKNOWN], 0] = NEVER / level


def build_tokenizer(vocabulary: int, signs: Mapping[str, int] | None = None) -> PreTrainedTokenizerFast:
    """Words `w3 w4 ...` apart by blanks, one token each. `signs` are words that stand in the place of some of them."""
    words = {"<pad>": PAD, "<eos>": EOS, "<unk>": UNKNOWN} | dict(signs or {})
    taken = set(words.values())
    words |= {f"w{n}": n for n in range(FIRST_WORD, vocabulary) if n not in taken}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=2048,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def write_prompts(workload: Workload, count: int, questions: Sequence[str], file: Path, seed: int = 0) -> None:
    """`count` prompts, one JSON object {"prompt": text} a line."""
    rows = _numbers(workload, count, questions, random.Random(seed))
    texts = (" ".join(f"w{number}" for number in row) for row in rows)
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")


def _numbers(workload: Workload, count: int, questions: Sequence[str], generator: random.Random) -> Iterator[list[int]]:
    vocabulary = MODELS[workload.model].vocabulary
    first = FIRST_WORD if workload.turns is None else FIRST_SPOKEN_WORD
    for index in range(count):
        if workload.prompt_tokens is not None:
            length = workload.prompt_tokens - (0 if workload.turns is None else AROUND_PROMPT)
        else:  # one token for each word, number and sign of the question
            length = len(re.findall(r"\w+|[^\w\s]", questions[index % len(questions)]))
        yield [generator.randrange(first, vocabulary) for _ in range(length)]


def read_questions(file: Path | None) -> list[str]:
    """The column `question` of a JSONL file; empty without a file."""
    if file is None:
        return []
    return [json.loads(line)["question"] for line in file.read_text(encoding="utf-8").splitlines() if line]
