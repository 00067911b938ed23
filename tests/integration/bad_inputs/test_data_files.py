"""Data sets that cannot be read or mean nothing, and what is said about each."""

import gzip
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Refuse, Row, lines, pairs, row

GOOD = '{"prompt": "1+2=", "answer": "03"}\n'
CHECK = ("check", "run.yaml")
OBJECT = "column 'answer' (answer) holds dict {'value': '3'}, with which the reward math", "such as answer.value"
GOLD: Row = {"second": '{"prompt": "1", "answer": {"value": "3"}}', "also": ["rewards=math"]}


def train(
    name: str, *says: str, content: str | bytes, file: str = "train.jsonl", command: Any = CHECK, **how: Any
) -> Row:
    """The training data of an RL run hold `content`, read by `check`, which needs no model."""
    also = list(how.pop("also", ()))
    words = also if any(word.startswith("data.train=") for word in also) else [f"data.train={file}", *also]
    return row(name, file, *says, files={file: content, **how.pop("files", {})}, words=words, command=command, **how)


def line(name: str, *says: str, second: str | bytes, **how: Any) -> Row:
    """The second line of the training data is `second`."""
    content = GOOD.encode() + (second if isinstance(second, bytes) else second.encode()) + b"\n"
    return train(name, "train.jsonl:2", *says, content=content, **how)


def sft(name: str, *says: str, rows: list[Any], **how: Any) -> Row:
    return row(name, *says, base="sft", files={"sft.jsonl": lines(rows)}, **how)


def placed(make: Callable[[Path], None], name: str = "other.jsonl") -> dict[str, Any]:
    return {"make": lambda folder: make(folder / name), "words": [f"data.train={name}"], "command": CHECK}


def bomb(num_bytes: int) -> bytes:
    """So many zeros in a thousandth of the bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(num_bytes >> 20)) + packer.flush()


def parquet(values: list[Any], **options: Any) -> bytes:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values), buffer, **options)
    return buffer.getvalue()


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


JSON = [
    line("JSON nested 100,000 deep", "nested", second='{"prompt": "1", "answer": ' + deep(100_000) + "}"),
    line("JSON nested 900 deep", "recursion", second='{"prompt": "1", "answer": ' + deep(900) + "}"),
    line("JSON that opens 100,000 brackets", "nested", second="[" * 100_000),
    line("number of 5,000 digits", "digits", second='{"prompt": "1", "answer": ' + "9" * 5_000 + "}"),
    line("gold that is an object", *OBJECT, **GOLD),
    line("gold that is an object, rl", *OBJECT, **GOLD, command=("rl", "run.yaml")),
    line("a gold is an object", OBJECT[0], second='{"prompt": "1", "answer": [{"value": "3"}]}', also=["rewards=math"]),
    line("NaN", "NaN", second='{"prompt": "1", "answer": NaN}'),
    line("Infinity", "Infinity", second='{"prompt": "1", "answer": Infinity}'),
    line("number that no float holds", "1e999", second='{"prompt": "1", "answer": 1e999}'),
    line("lone surrogate", "surrogate", second='{"prompt": "1\\ud800", "answer": "1"}'),
    line("lone surrogate in an unused column", "surrogate", second='{"prompt": "1", "answer": "1", "x": ["\\udc80"]}'),
    line("key given twice", "'prompt'", "twice", second='{"prompt": "1", "prompt": "2", "answer": "1"}'),
    line("comma at the end", "malformed JSON", second='{"prompt": "1",}'),
    line("two objects", "malformed JSON", "Extra data", second='{"prompt": "1"} {"prompt": "2"}'),
    line("NUL byte", "malformed JSON", second=b'{"prompt": "1\0", "answer": "1"}'),
    line("byte that ends a text too early", "UTF-8", second=b'{"prompt": "\xe2\x82", "answer": "1"}'),
    line("surrogates written as UTF-8", "UTF-8", second=b'{"prompt": "\xed\xa0\x80", "answer": "1"}'),
    line("prompt that is an object", "prompt", second='{"prompt": {"a": 1}, "answer": "1"}'),
    train("keys of another language", "columns", content='{"вопрос": "1", "ответ": "2"}\n'),
    train("byte order mark alone", "is empty", content=b"\xef\xbb\xbf"),
    train("byte order mark and a wrong byte", "train.jsonl:2", "0xff",
        content=b"\xef\xbb\xbf" + GOOD.encode() + b"\xff\n"),
    train("first row without columns", "columns", content="{}\n" + GOOD),
    train("empty list as .json", "is empty", file="a.json", content="[]"),
    train("empty .json", "malformed", file="a.json", content=""),
    train(".json nested deeply", "nested", file="a.json", content="[" * 100_000),
    train("number of 5,000 digits in .json", "digits", file="a.json", content="[" + "1" * 5_000 + "]"),
]  # fmt: skip

PLACES = [
    row("data that are a pipe", "'other.jsonl' is a pipe", **placed(os.mkfifo)),
    row("data that are a link to a pipe", "is a pipe", **placed(
        lambda path: (os.mkfifo(path.with_name("p")), path.symlink_to("p")))),
    row("data that are a link to itself", "points back to itself", **placed(lambda path: path.symlink_to(path.name))),
    row("data that are a device", "/dev/zero", "device", words="data.train=/dev/zero", command=CHECK),
    row("data that are a terminal's input", "/dev/stdin", words="data.train=/dev/stdin", command=CHECK),
    row("data inside of a file", "reward.py/a.jsonl", words="data.train=reward.py/a.jsonl", command=CHECK),
    row("folder with a pipe as data", "pipe", **placed(
        lambda path: (path.mkdir(), os.mkfifo(path / "train.jsonl")), "other")),
    row("folder of the model as data", "model", words="data.train=./model", command=CHECK),
    row("saved data set that is damaged", "cannot be read", command=CHECK, words="data.train=./other",
        files={"other/dataset_info.json": "{", "other/state.json": "["}),
    row("saved data set of an empty state", "other", command=CHECK, words="data.train=./other",
        files={"other/dataset_info.json": "{}", "other/state.json": "{}"}),
    row("data for planning that are a pipe", "pipe", **{**placed(os.mkfifo), "command": ("plan", "run.yaml")}),
    row("supervised data that are a pipe", "pipe", base="sft", words="data.train=p.jsonl",
        make=lambda folder: os.mkfifo(folder / "p.jsonl")),
    row("comparisons that are a device", "/dev/zero", base="rm", words="data.train=/dev/zero"),
]  # fmt: skip

FORMATS = [
    train("gzip cut short", "a.jsonl.gz", file="a.jsonl.gz", content=gzip.compress(GOOD.encode() * 99)[:40]),
    train("gzip with a wrong sum", "gzip", file="a.jsonl.gz",
          content=gzip.compress(GOOD.encode())[:-8] + struct.pack("<II", 1, 2)),
    train("empty gzip", "empty", file="a.jsonl.gz", content=b""),
    train("more bytes than allowed, packed", "max_bytes (1,000,000 bytes)", file="a.jsonl.gz", content=bomb(1 << 24),
          also=["data.train=[{path: a.jsonl.gz, max_bytes: 1000000}]"]),
    train("more bytes than allowed", "max_bytes (100 bytes)", content=GOOD * 99,
          also=["data.train.0.max_bytes=100"]),
    train("more bytes than allowed, text", "max_bytes", file="a.txt", content="1\n\n" * 99,
          also=["data.train.0.max_bytes=100"]),
    train("more bytes than allowed, Parquet", "max_bytes", file="a.parquet",
          content=parquet([{"prompt": "1" * 1_000, "answer": "1"}] * 1_000), also=["data.train.0.max_bytes=9999"]),
    train("Parquet with a damaged middle", "a.parquet", file="a.parquet",
          content=(lambda b: b[:8] + b"\xff" * 60 + b[68:])(parquet([{"prompt": "1" * 99, "answer": "1"}] * 99))),
    train("Parquet with a null prompt", "row 1", "nothing (null)", file="a.parquet",
          content=parquet([{"prompt": "1", "answer": "1"}, {"prompt": None, "answer": "1"}])),
    train("CSV with a quote that never ends", "a.csv", "malformed", file="a.csv", content='prompt,answer\n"1,2\n3,4\n'),
    train("CSV of semicolons", "prompt;answer", file="a.csv", content="prompt;answer\n1;2\n"),
    train("CSV with NUL", "a.csv:2", file="a.csv", content="prompt,answer\n1\0,2\n"),
    train("CSV without a header", "columns", file="a.csv", content="1+1=,2\n3+4=,7\n"),
    train("text of blanks", "empty", file="a.txt", content=" \n\n \n"),
    train("separator that matches nothing at all", "document_separator", file="a.txt", content="1\n",
          also=["data.train.0.document_separator=x*"]),
    train("separator that never ends", "document_separator", file="a.txt", content="1" * 60 + "!\n",
          also=["data.train.0.document_separator=(1+)+$"]),
]  # fmt: skip

MEANING = [
    row("rows without an answer for a reward that reads it", "data.train", "gold answer", command=CHECK,
        files={"train.jsonl": '{"prompt": "1+1="}\n' * 3}),
    row("columns that are a list", "data.train.0.columns is ['a']", words="data.train.0.columns=[a]"),
    train("messages nested in text", "messages",
          content=json.dumps({"messages": "[" * 50_000, "answer": "1"}) + "\n"),
    train("role that is a number", "role",
          content='{"messages": [{"role": 1, "content": "1"}], "answer": "1"}\n'),
    sft("empty completion", "sft.jsonl:2", "completion", rows=[{"prompt": "1", "completion": "1"}, {"prompt": "1",
        "completion": ""}]),
    sft("text that is empty", "sft.jsonl:1", "empty", rows=[{"text": ""}]),
    sft("example longer than a batch", "rows can be used", rows=[{"prompt": "1" * 10, "completion": "2"}],
        words="optimization.tokens_per_batch=4"),
    pairs("prompt that is an object", "prompt", rows=[{"prompt": {}, "chosen": "5", "rejected": "6"}]),
    pairs("margin that is text", "margin", rows=[{"prompt": "1", "chosen": "5", "rejected": "6", "margin": "big"}],
        words="margins=true"),
    pairs("tie that is text", "tie", rows=[{"prompt": "1", "chosen": "5", "rejected": "6", "tie": "perhaps"}]),
    pairs("candidates that are text", "responses", rows=[{"prompt": "1", "responses": "56", "best": 0}],
        words="loss=best_of"),
]  # fmt: skip


def prompts(name: str, *says: str, rows: list[Any], **how: Any) -> Row:
    return row(name, *says, files={"train.jsonl": lines(rows)}, **how)


HUGE = "1" * 4_000_001
LONG = [
    prompts("text of millions of letters", "4,000,001 characters", rows=[{"prompt": HUGE, "answer": "2"}]),
    prompts("the same, to be cut", "train.jsonl:1", "4,000,001", rows=[{"prompt": HUGE}],
        words="data.over_long=truncate"),
    sft("completion of millions of letters", "sft.jsonl:1", "characters", rows=[{"prompt": "1", "completion": HUGE}]),
    sft("conversation of millions of letters", "sft.jsonl:1", "characters", words=[
        "model.chat_template='{% for m in messages %}{{ m.content }}{% endfor %}'"],
        rows=[{"messages": [{"role": "user", "content": HUGE}, {"role": "assistant", "content": "2"}]}]),
    pairs("response of millions of letters", "characters", rows=[{"prompt": "1", "chosen": HUGE, "rejected": "6"}]),
]  # fmt: skip
PARTS_OF_A_FILE = [
    row("split of a file", "split is 'validation'", "single file",
        words=["data.train={path: train.jsonl, split: validation}"]),
    row("subset of a file", "subset is 'main'", "single file", words=["data.train={path: train.jsonl, subset: main}"]),
]  # fmt: skip

ROWS = [*JSON, *PLACES, *FORMATS, *MEANING, *LONG, *PARTS_OF_A_FILE]


@pytest.mark.slow_cases(
    "conversation of millions of letters",
    "separator that never ends",
    "text of millions of letters",
    "the same, to be cut",
)
@pytest.mark.parametrize("case", ROWS, ids=[case["name"] for case in ROWS])
def test_is_refused_in_one_message(case: Row, refuse: Refuse) -> None:
    refuse(case)
