"""Model folders, tokenizers and chat templates that cannot be used, and what is said about each."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from .conftest import Refuse, Row, row

Make = Callable[[Path], Any]
CHAT = '{"messages": [{"role": "user", "content": "1+1="}], "answer": "2"}\n'


def file(name: str, content: str | bytes) -> Make:
    """The file of the model folder holds this."""
    return lambda folder: (folder / "model" / name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def missing(name: str) -> Make:
    return lambda folder: (folder / "model" / name).unlink()


def changed(name: str, **values: Any) -> Make:
    """The JSON file of the model folder has these values; it is made where there is none."""

    def change(folder: Path) -> None:
        path = folder / "model" / name
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | values))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Make:
    """The tensors of the model folder are changed in place."""

    def save(folder: Path) -> None:
        path = folder / "model" / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return save


def cut(num_bytes: int) -> Make:
    def shorten(folder: Path) -> None:
        path = folder / "model" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:num_bytes])

    return shorten


def replaced(name: str, make: Make) -> Make:
    def replace(folder: Path) -> None:
        (folder / "model" / name).unlink()
        make(folder / "model" / name)

    return replace


def several(*makes: Make) -> Make:
    return lambda folder: [make(folder) for make in makes]


NORM = "model.layers.0.input_layernorm.weight"
EMBEDDING = "model.embed_tokens.weight"


def spoilt(name: str, value: float) -> Make:
    return weights(lambda tensors: tensors[name].view(-1).__setitem__(0, value))


CONFIG = [
    row("config.json that is no JSON", "./model", "config.json", make=file("config.json", "{")),
    row("config.json that is empty", "./model", "config.json", make=file("config.json", "")),
    row("config.json that is a list", "./model", make=file("config.json", "[]")),
    row("config.json nested deeply", "./model", make=file("config.json", "[" * 100_000)),
    row("config.json that is a folder", "config.json", make=replaced("config.json", Path.mkdir)),
    row("config.json that is a pipe", "config.json is a pipe", make=replaced("config.json", os.mkfifo)),
    row("config.json that is a link to nothing", "config.json is a broken link",
        make=replaced("config.json", lambda path: path.symlink_to("nowhere"))),
    row("config.json of no kind", "./model", make=file("config.json", "{}")),
    row("config.json whose kind is a number", "./model", make=changed("config.json", model_type=5)),
    row("config.json of an encoder", "./model", make=changed("config.json", model_type="vit")),
    row("sizes that are text", "hidden_size is 'many'", make=changed("config.json", hidden_size="many")),
    row("sizes below zero", "num_hidden_layers is -1", make=changed("config.json", num_hidden_layers=-1)),
    row("sizes that are fractions", "hidden_size is 31.5", make=changed("config.json", hidden_size=31.5)),
    row("a billion layers", "num_hidden_layers is 1000000000", words="model.from_scratch=true",
        make=changed("config.json", num_hidden_layers=10**9)),
    row("a vocabulary of 10^400", "vocab_size is 1000", make=changed("config.json", vocab_size=10**400)),
    row("heads that do not divide", "./model", make=changed("config.json", num_attention_heads=7),
        words="model.from_scratch=true"),
    row("unknown activation", "./model", make=changed("config.json", hidden_act="silly")),
    row("odd number type", "./model", make=changed("config.json", torch_dtype="float99", dtype="float99")),
    row("end id that is text", "./model", "eos_token_id", make=changed("config.json", eos_token_id="end")),
    row("end id beyond the vocabulary", "end-of-sequence id 99999", "vocabulary",
        make=changed("config.json", eos_token_id=99_999)),
    row("adapter in place of a model", "adapter", "merge", make=several(
        missing("config.json"), file("adapter_config.json", "{}"))),
    row("damaged config, planned", "./model", make=file("config.json", "{"), command=("plan", "run.yaml")),
    row("damaged config for eval", "./model", make=file("config.json", "[]"), command=("eval", "run.yaml"),
        words=["data.eval=[{path: train.jsonl, limit: 2}]"]),
]  # fmt: skip

GENERATION = [
    row(f"generation_config.json: {name}", "generation_config.json", *says, make=file("generation_config.json",
        content))
    for name, content, *says in (
        ("no JSON", "{"),
        ("empty", ""),
        ("a list", "[]", "not a JSON object"),
        ("a number", "5", "not a JSON object"),
        ("nested deeply", "[" * 100_000),
        ("not UTF-8", b"\xff\xfe{}"),
        ("end id that is text", '{"eos_token_id": "</s>"}', "'</s>'"),
        ("end id that is a fraction", '{"eos_token_id": 1.5}', "1.5"),
        ("end id that is a boolean", '{"eos_token_id": true}', "True"),
        ("end id below zero", '{"eos_token_id": -1}', "-1"),
        ("end ids that are nested", '{"eos_token_id": [[1]]}', "[[1]]"),
        ("end ids that are an object", '{"eos_token_id": {"a": 1}}', "'a'"),
    )
] + [
    row("generation_config.json: end ids beyond the vocabulary", "end-of-sequence id 77", "vocabulary",
        make=changed("generation_config.json", eos_token_id=[0, 77])),
    row("generation_config.json that is a pipe", "generation_config.json is a pipe",
        make=several(lambda folder: (folder / "model/generation_config.json").unlink(missing_ok=True),
                     lambda folder: os.mkfifo(folder / "model/generation_config.json"))),
]  # fmt: skip

WEIGHTS = [
    row("weights with NaN", "hold NaN", NORM, make=spoilt(NORM, float("nan"))),
    row("weights with NaN, eval", "hold NaN", NORM, make=spoilt(NORM, float("nan")), command=("eval", "run.yaml"),
        words=["data.eval=[{path: train.jsonl, limit: 2}]"]),
    row("weights with infinity", "hold infinity", NORM, make=spoilt(NORM, float("inf"))),
    row("weights that bfloat16 cannot hold", "hold infinity", NORM, words="model.dtype=bfloat16",
        make=spoilt(NORM, 3.4028e38)),
    row("weights of another width", "shape", "config.json", make=changed("config.json", hidden_size=64)),
    row("one tensor of another shape", f"{NORM} has shape [7]", "[32]",
        make=weights(lambda tensors: tensors.update({NORM: torch.ones(7)}))),
    row("all tensors under other names", "lacks",
        make=weights(lambda tensors: [tensors.update({f"x.{name}": tensors.pop(name)}) for name in list(tensors)])),
    row("weights cut short", "model.safetensors is cut short: 2,000 bytes", make=cut(2_000)),
    row("weights that are text", "model.safetensors", make=file("model.safetensors", "hello, world")),
    row("weights whose header is too long", "model.safetensors", make=file("model.safetensors", b"\xff" * 8 + b"{}")),
    row("weights whose header is no JSON", "model.safetensors", make=file("model.safetensors", (9).to_bytes(8,
        "little") + b"no header")),
    row("weights that are a pipe", "model.safetensors is a pipe", make=replaced("model.safetensors", os.mkfifo)),
    row("weights that are a link to nothing", "model.safetensors is a broken link",
        make=replaced("model.safetensors", lambda path: path.symlink_to("nowhere"))),
    row("missing shard", "model-00002-of-00002.safetensors", make=several(
        lambda folder: (folder / "model/model.safetensors").rename(folder / "model/model-00001-of-00002.safetensors"),
        file("model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": {
            NORM: "model-00002-of-00002.safetensors", EMBEDDING: "model-00001-of-00002.safetensors"}})))),
    row("index that is no JSON", "index.json", make=several(
        lambda folder: (folder / "model/model.safetensors").rename(folder / "model/model-00001-of-00001.safetensors"),
        file("model.safetensors.index.json", "{"))),
    row("checkpoint of another program", "pickle", make=several(missing("model.safetensors"), file("model.ckpt",
        b"\x80"))),
    row("weights cut short, planned", "model.safetensors", make=cut(20), command=("plan", "run.yaml")),
]  # fmt: skip

TOKENIZERS = [
    row("tokenizer that is no JSON", "tokenizer", make=file("tokenizer.json", "{")),
    row("tokenizer that is empty", "tokenizer", make=file("tokenizer.json", "")),
    row("tokenizer nested deeply", "tokenizer", make=file("tokenizer.json", "[" * 100_000)),
    row("tokenizer that is a pipe", "tokenizer.json is a pipe", make=replaced("tokenizer.json", os.mkfifo)),
    row("tokenizer configuration that is no JSON", "tokenizer", make=file("tokenizer_config.json", "{")),
    row("tokenizer of an unknown class", "tokenizer", make=changed("tokenizer_config.json", tokenizer_class=5)),
]  # fmt: skip


def template(name: str, *says: str, text: str, **how: Any) -> Row:
    """The model's own chat template is this, and the data are conversations."""
    return row(
        f"template: {name}",
        *(says or ("chat template of './model'",)),
        make=file("chat_template.jinja", text),
        files={"train.jsonl": CHAT},
        **how,
    )


def own_template(name: str, *says: str, text: str | bytes, **how: Any) -> Row:
    """The same as `model.chat_template` in the run file."""
    return row(
        f"own template: {name}",
        "model.chat_template",
        *says,
        files={"train.jsonl": CHAT, "t.jinja": text},
        words="model.chat_template=t.jinja",
        **how,
    )


DOUBLED = "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TURN = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEMPLATES = [
    template("endless loops in loops", "does not end", text=LOOPS),
    template("endless recursion of two", "does not end",
             text="{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"),
    template("a text times 10^10", "GiB", text="{{ 'x' * 10**10 }}"),
    template("a text times 10^7", "characters", text="{{ 'x' * 10**7 }}"),
    template("a text doubled 60 times", "chat template of './model'",
             text=DOUBLED),
    template("a separator that explodes", "chat template of './model'", text="{{ range(99999) | join('x' * 10**6) }}"),
    template("a range beyond all", "train.jsonl:1", "chat template", text="{% for a in range(10**9) %}x{% endfor %}"),
    template("recursion without end", "train.jsonl:1", "chat template",
        text="{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    row("template that is a number", "chat template of './model' is 5",
        make=changed("tokenizer_config.json", chat_template=5)),
    template("no Jinja", "train.jsonl:1", "chat template", text="{% for %}"),
    template("an unknown filter", "train.jsonl:1", "chat template", text="{{ messages | nothing }}"),
    template("a division by zero", "train.jsonl:1", "chat template", text="{{ 1 // 0 }}"),
    template("what the sandbox forbids", "train.jsonl:1", "chat template", text="{{ ''.__class__.__mro__ }}"),
    template("nothing at all", "train.jsonl:1", text="{# nothing #}"),
    template("a refusal", "train.jsonl:1", "only system", text="{{ raise_exception('only system') }}"),
    template("of 10^10 letters, planned", "GiB", text="{{ 'x' * 10**10 }}", command=("plan", "run.yaml")),
    own_template("10^10 letters", "GiB", text="{{ 'x' * 10**10 }}"),
    own_template("no Jinja", "line 2", text=TURN + "\n{% for %}"),
    own_template("no UTF-8", "t.jinja", text=b"\xff{{ messages }}"),
    row("own template that is a pipe", "model.chat_template", "pipe", words="model.chat_template=./pipe",
        make=lambda folder: os.mkfifo(folder / "pipe")),
    row("own template that is empty", "model.chat_template", words=["model.chat_template=''"]),
    row("own template that is a number", "model.chat_template", words="model.chat_template=5"),
]  # fmt: skip

SAMPLING = [
    row(f"{name} of {value!r} in generation_config.json", "generation_config.json", name,
        make=changed("generation_config.json", **{name: value}))
    for name, value in (("temperature", "hot"), ("top_p", []), ("top_k", True), ("temperature", -1),
                        ("repetition_penalty", float("nan")), ("max_new_tokens", {}), ("min_p", "0.1"))
]  # fmt: skip


def all_as(kind: torch.dtype) -> Make:
    return weights(lambda tensors: tensors.update({name: tensor.to(kind) for name, tensor in tensors.items()}))


def header(content: bytes) -> Make:
    return file("model.safetensors", len(content).to_bytes(8, "little") + content + bytes(8))


DAMAGED = "header is damaged"
NUMBER_TYPES = [
    row("weights of whole numbers", "as I8", "floating-point", make=all_as(torch.int8)),
    row("weights header that is a list", DAMAGED, make=header(b"[]      ")),
    row("weights header nested deeply", DAMAGED, make=header(b"[" * 100_000)),
    row("tensor that is a number", DAMAGED, make=header(b'{"a": 5}')),
    row("tensor without a place", DAMAGED, make=header(b'{"a": {"dtype": "F32", "shape": [1]}}')),
    row("weights that are a folder", "model.safetensors is a folder", make=replaced("model.safetensors", Path.mkdir)),
    row("tokenizer_config.json that is a folder", "tokenizer_config.json is a folder",
        make=replaced("tokenizer_config.json", Path.mkdir)),
    row("generation_config.json that is a folder", "generation_config.json is a folder",
        make=replaced("generation_config.json", Path.mkdir)),
]  # fmt: skip

READ_BEFORE = [*CONFIG, *GENERATION, *WEIGHTS]
READ_WITH_THE_MODEL = [*TOKENIZERS, *TEMPLATES, *SAMPLING, *NUMBER_TYPES]


@pytest.mark.slow_cases("config.json of an encoder")
@pytest.mark.parametrize("case", READ_BEFORE, ids=[case["name"] for case in READ_BEFORE])
def test_is_refused_in_one_message(case: Row, refuse: Refuse) -> None:
    refuse({"base": "sft", **case})


@pytest.mark.slow
@pytest.mark.parametrize("case", READ_WITH_THE_MODEL, ids=[case["name"] for case in READ_WITH_THE_MODEL])
def test_is_refused_in_one_message_with_the_model(case: Row, refuse: Refuse) -> None:
    refuse({"base": "rl" if case in TEMPLATES else "sft", **case})
