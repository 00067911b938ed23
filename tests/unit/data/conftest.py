"""A tiny byte-level tokenizer (one token a byte) made on the spot, and data files in a temporary folder."""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from burnish.data.sft import SftExample

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer(
    *,
    bos: bool = False,
    eos: bool = False,
    template: str | None = None,
    eos_token: str | None = "</s>",
    specials: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Ids 0-4 are the specials, bytes follow. `bos`/`eos`: the tokenizer adds them to plain text by itself. specials:
    further special tokens."""
    vocab = {token: i for i, token in enumerate([*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *specials])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([*SPECIALS, *specials])
    if bos or eos:
        single = ("<s> " if bos else "") + "$A" + (" </s>" if eos else "")
        core.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token=eos_token, pad_token="<pad>", model_max_length=4096
    )
    tokenizer.chat_template = template
    return tokenizer


def pieces(example: SftExample, tokenizer: PreTrainedTokenizerFast) -> list[tuple[bool, str]]:
    """The example as runs of (trained, text)."""
    runs = groupby(zip(example.tokens, example.loss_mask, strict=True), key=itemgetter(1))
    return [(trained, tokenizer.decode([token for token, _ in run])) for trained, run in runs]


def trained_pieces(example: SftExample, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    return [text for trained, text in pieces(example, tokenizer) if trained]


@pytest.fixture(scope="session")
def new_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    return make_tokenizer


@pytest.fixture(scope="session")
def chatml() -> str:
    return CHATML


@pytest.fixture(scope="session")
def plain_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def chat_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(template=CHATML)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., str]:
    """jsonl(row, row, name="rows.jsonl") writes a file and gives its path."""

    def write(*rows: object, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write
