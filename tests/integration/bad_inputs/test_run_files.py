"""Run files and values on the command line that cannot be used, and what is said about each."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Refuse, Row, row


def bomb(levels: int, step: str) -> str:
    """Each level stands for several of the level below; `step` says how."""
    lines = ["a0: &a0 {k0: 1}"]
    lines += [f"a{n}: &a{n} " + step.replace("@", f"*a{n - 1}").replace("#", str(n)) for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def run_file(name: str, *says: str, base: str | bytes, **how: Any) -> Row:
    return row(name, "run.yaml", *says, base=base, **how)


def not_a_file(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        (folder / "run.yaml").unlink()
        make(folder / "run.yaml")

    return replace


def record_a_pair(folder: Path) -> None:
    one = {"prompt": "p", "prompt_id": "0", "group_id": 0, "step": 1, "domain": None}
    lines = (json.dumps({**one, "response": response, "reward": len(response)}) for response in ("a", "bb"))
    (folder / "past" / "rollouts").mkdir(parents=True)
    (folder / "past" / "rollouts" / "step-000001.jsonl").write_text("\n".join(lines) + "\n")


YAML = [
    run_file("merge keys of merge keys", "aliases", base=bomb(30, "{<<: [@, @, @, @, @, @, @, @, @, @], k#: 1}")),
    run_file("merge keys through plain aliases", "aliases", base=bomb(40, "{<<: [@, @], x: @, y: @}")),
    run_file("aliases of aliases", "aliases", base=bomb(30, "[@, @, @, @, @, @, @, @, @, @]")),
    run_file("deep list", "nested", base="a: " + "[" * 50_000),
    run_file("deep list that closes", "nested", base="a: " + "[" * 5_000 + "]" * 5_000),
    run_file("deep mapping", "nested", base="{a: " * 5_000),
    run_file("deep blocks", "nested", base="\n".join(" " * n + "a:" for n in range(700))),
    run_file("section that merges itself", "refer to themselves", base="model: &m\n  <<: *m\n  path: a\n"),
    run_file("list that holds itself", "refer to themselves", base="model: &m [*m]\n"),
    run_file("merge of a number", "<<", base="model: {<<: 5, path: ./model}\n"),
    run_file("merge of a list of numbers", "<<", base="model: {<<: [5], path: ./model}\n"),
    run_file("alias of nothing", "undefined alias", base="model: *nothing\n"),
    run_file("NUL byte", "#x0000", base=b"model: a\0b\n"),
    run_file("control character", "special characters are not allowed", base=b"model: a\x07b\n"),
    run_file("two documents", "single document", base="model: a\n---\nmodel: b\n"),
    run_file("UTF-16", "UTF-8", base="model: a\n".encode("utf-16")),
    run_file("Latin-1", "line 2", "UTF-8", base="model: a\n# Größe\n".encode("latin-1")),
    run_file("text alone", "not keys with values", base="model\n"),
    run_file("number alone", "not keys with values", base="7\n"),
    run_file("null", "is empty", base="null\n"),
    run_file("comment alone", "is empty", base="# later\n"),
    run_file("tagged binary", "tag", base="model: !!binary aGVsbG8=\n"),
    run_file("tagged set", "tag", base="model: !!set {a, b}\n"),
    run_file("tag of one's own", "tag", base="model: !mine {a: b}\n"),
    run_file("unknown directive of a version", "version", base="%YAML 9.9\n---\nmodel: a\n"),
    run_file("list as a key", "plain word", base="? [a, b]\n: 1\nmodel: a\n"),
    run_file("number of 5,000 digits", "digits", base="steps: " + "9" * 5_000 + "\nmodel: a\n"),
    run_file("larger than any run file", "larger than", base="# " + "x" * 2_000_000),
    run_file("no brace at the end", "not readable as YAML", base="{model: a, data: {train: b}\n"),
    run_file("JSON with a trailing word", "not readable as YAML", base='{"model": "a"} x\n'),
    run_file("anchor with two names", "not readable as YAML", base="model: &a &b c\n"),
    run_file("merge key given twice", "<<", "twice", base="a: &a {path: x}\nmodel:\n  <<: *a\n  <<: *a\n"),
    row("run file that is a pipe", "run.yaml", "not a file", make=not_a_file(os.mkfifo)),
    row("run file that is a link to itself", "run.yaml", "link",
        make=not_a_file(lambda path: path.symlink_to(path.name))),
    row("run file that is a link to nothing", "run.yaml", "link", make=not_a_file(lambda path: path.symlink_to("no"))),
    row("run file that is a device", "/dev/zero", "not a file", command=("rl", "/dev/zero")),
    row("run file that is a device, planned", "/dev/zero", "not a file", command=("plan", "/dev/zero")),
    row("run file with a long name", "too long", command=("rl", "a" * 5_000)),
    row("run file in a long folder", "too long", command=("check", "a/" * 5_000 + "run.yaml")),
    row("run file inside of a file", "train.jsonl/run.yaml", command=("sft", "train.jsonl/run.yaml")),
    row("empty name of a run file", "run file", command=("rm", "")),
    row("name of a run file with NUL", "run file", command=("rl", "a\0b")),
    row("name of a run file that is no text", "run file", command=("rl", "a\udcff.yaml")),
]  # fmt: skip


def number(field: str, value: str, *says: str, base: str = "rl", **how: Any) -> Row:
    name = f"{field}={value:.30} {' '.join(how.get('command', ('',)))} ({base})"
    return row(name, field, *says, words=[f"{field}={value}", *how.pop("also", ())], base=base, **how)


NUMBERS = [
    number("optimization.betas", "[1, 0.999]", "below 1"),
    number("optimization.betas", "[0.9]", "list of 2"),
    number("optimization.learning_rate", "1e-45", "float32"),
    number("optimization.learning_rate", "true", "number"),
    number("optimization.learning_rate", "-.inf", "not a finite number"),
    number("optimization.epochs", "1000000000000", "at most", base="sft"),
    number("optimization.epochs", "1000000000000", "at most", base="rm"),
    number("optimization.epochs", "1000000000000", "at most"),
    number("steps", "1" + "0" * 400, "at most"),
    number("steps", "9" * 5_000, "digits"),
    number("seed", "2024-01-01", "whole number"),
    number("seed", "0x10", "whole number"),
    number("seed", "[1]", "whole number"),
    number("rollout.temperature", "1e-9", "at least"),
    number("rollout.max_response_tokens", "64", "context is 32"),
    number("rollout.max_response_tokens", "32", "context is 32", command=("plan", "run.yaml")),
    number("rollout.max_response_tokens", "64", "context is 32", command=("eval", "run.yaml"),
           also=["data.eval=[{path: train.jsonl, limit: 4}]"]),
    number("rollout.stop_token_ids", "[99999]", "99999", "vocabulary"),
    number("rollout.stop_token_ids", "[99999]", "99999", "vocabulary", command=("plan", "run.yaml")),
    number("rollout.stop", "[\"\"]", "empty"),
    number("rollout.vllm.call_timeout_seconds", "1e18", "at most", also=["rollout.engine=vllm"]),
    number("rewards.0.timeout_seconds", "1e18", "at most"),
    number("scoring.failure_score", ".inf", "not a finite number", also=["scoring.on_failure=score"]),
    number("model.lora", "true", "section"),
    number("data.shuffle", "1", "true or false"),
    number("algorithm.loss_options", "5", "names with values"),
    number("algorithm.estimator_options", "{eps: []}", "eps"),
    number("algorithm.estimator_options", "{1: 2}", "has no option '1'"),
    number("algorithm.estimator_options", "{eps: -1}", "eps is -1", "from 0"),
    number("max_tokens", "1", "max_tokens", base="sft"),
    number("label_smoothing", "0.5", "below 0.5", base="rm"),
    number("candidates", "1", "at least 2", base="rm"),
]  # fmt: skip


def path_of(field: str, value: str, *says: str, base: str = "rl", shown: str = "", **how: Any) -> Row:
    name = f"{field}: {shown or repr(value)} {' '.join(how.get('command', ('',)))} ({base})"
    return row(name, field, *says, words=[f"{field}={value}", *how.pop("also", ())], base=base, **how)


PATHS = [
    path_of("output", "''", "empty"),
    path_of("output", '"a\\0b"', "NUL"),
    path_of("output", '"a\\uD800"', "surrogate"),
    path_of("output", '"a\\nb"', "line break"),
    path_of("output", "a" * 5_000, "long"),
    path_of("output", "a/" * 3_000, "long", shown="a/a/a..."),
    path_of("output", "' run'", "space"),
    path_of("output", "'~/run'", "~"),
    path_of("output", "'~nobody-at-all/run'", "~"),
    path_of("output", ".", "working folder"),
    path_of("output", "..", "contains"),
    path_of("output", "/", "root", command=("plan", "run.yaml")),
    path_of("output", ".", "working folder", command=("plan", "run.yaml")),
    path_of("output", ".", "working folder", also=["--fresh"]),
    path_of("output", "train.jsonl", "train.jsonl"),
    path_of("output", "train.jsonl/run", "train.jsonl"),
    path_of("output", "loop", "loop", make=lambda folder: (folder / "loop").symlink_to("loop")),
    path_of("output", "pipe", "pipe", make=lambda folder: os.mkfifo(folder / "pipe")),
    path_of("output", "/dev/null", "/dev/null"),
    row("output where no folder can be made", "/proc/burnish", words="output=/proc/burnish"),
    path_of("output", "null", "empty (null)"),
    path_of("output", "[a]", "expected: text"),
    path_of("output", "12", "in quotes"),
    path_of("model.path", "''", "empty"),
    path_of("model.path", '"a\\0b"', "NUL"),
    path_of("model.path", "a" * 5_000, "long"),
    path_of("model.path", "./loop", "link", make=lambda folder: (folder / "loop").symlink_to("loop")),
    path_of("model.path", "./pipe", "pipe", make=lambda folder: os.mkfifo(folder / "pipe")),
    path_of("model.path", "/dev/zero", "/dev/zero"),
    path_of("model.path", "~nobody-at-all/model", "nobody-at-all"),
    path_of("model.path", "null", "empty (null)"),
    path_of("model.path", "{}", "text"),
    path_of("model.tokenizer", "run.yaml", "is a file"),
    path_of("data.train.0.path", "''", "empty"),
    path_of("data.train.0.path", '"a\\0b.jsonl"', "NUL"),
    path_of("data.train.0.path", "'train.jsonl '", "space"),
    path_of("data.train", "{path: ~nobody-at-all/x.jsonl}", "nobody-at-all"),
    path_of("data.train", "[[train.jsonl]]", "section"),
    path_of("critic.init", "''", "empty", also=["algorithm=ppo"]),
    path_of("rewards.0.name", "''", "empty"),
    path_of("rewards.0.name", "reward.py:", "reward.py:"),
    row("reward of a folder above", "'..:f'", words="rewards.0.name=..:f"),
    path_of("rewards.0.name", "model:", "model:"),
    path_of("algorithm.loss", "'.:f'", ".:f"),
    row("estimator that its module lacks", "'json:nothing'", words="algorithm.estimator=json:nothing"),
    row("estimator that is another function", "json:dumps", words="algorithm.estimator=json:dumps"),
    path_of("rollout.engine", "json:dumps", "json:dumps"),
    path_of("logging.sinks", "[tensorboard, tensorboard]", "twice"),
    path_of("logging.sinks", "['']", "logging.sinks"),
    path_of("model.device", "cpu:99", "model.device"),
    path_of("model.device", "''", "model.device"),
    path_of("model.dtype", "fp32", "float32"),
]  # fmt: skip


OVERRIDES = [
    row("override that is empty", "key.path=value", words=[""]),
    row("override without a key", "key.path=value", words=["=5"]),
    row("override with a blank in the key", "rollout. group_size", words=["rollout. group_size=5"]),
    row("override twice", "steps", "twice", words=["steps=1", "steps=2"]),
    row("override of a section and inside of it, the section last", "rollout", words=["rollout.top_k=3", "rollout=5"]),
    row("index that is no digit of ours", "data.train", words=["data.train.²=x.jsonl"]),
    row("index below zero", "data.train", words=["data.train.-1.limit=3"]),
    row("index into a list that is not there", "rewards", base="model: ./model\ndata: {train: train.jsonl}\n",
        words=["rewards.99.weight=2"]),
    row("index into a section", "rollout.0", words=["rollout.0=2"]),
    row("key inside of a number", "steps", words=["steps.more=2"]),
    row("key of another alphabet", "ѕteps", words=["ѕteps=3"]),
    row("key with a lone surrogate", "\\udcff", words=["a\udcff=3"]),
    row("value with a lone surrogate", "#xdcff", words=["logging.project=a\udcff"]),
    row("value with NUL", "not readable", words=["logging.project=a\0b"]),
    row("value that is deeply nested", "nested", words=["rewards=" + "[" * 5_000]),
    row("value of two documents", "single document", words=["steps=1\n---\n2"]),
    row("value with a tag", "tag", words=["steps=!!python/name:os.system"]),
    row("value with an unknown alias", "alias", words=["steps=*a"]),
    row("values that are a thousand", "is not a known key", words=[f"nothing.{n}=1" for n in range(1_000)]),
    row("key of a thousand parts", "key.path=value", words=["a." * 1_000 + "b=1"]),
    row("unknown option", "No such option", command=("rl", "run.yaml", "--no-such")),
    row("option without its value", "--step", command=("eval", "run.yaml", "--step")),
    row("option that is no number", "--step", command=("eval", "run.yaml", "--step", "five")),
    row("step of a run file", "--step", command=("eval", "run.yaml", "--step", "5")),
    row("negative number of rows", "--show", command=("check", "run.yaml", "--show", "-1")),
    row("top score that is not finite", "--top-score", command=("check", "run.yaml", "--top-score", "nan")),
    row("algorithm of no name", "''", command=("algorithms", "")),
    row("algorithm with a lone surrogate", "\\udcff", command=("algorithms", "\udcff")),
    row("two algorithms", "Usage", command=("algorithms", "grpo", "dapo")),
    row("command of no name", "Usage", command=("",)),
    row("command with a lone surrogate", "Usage", command=("\udcff",)),
    row("report of a file", "train.jsonl", command=("report", "train.jsonl")),
    row("report of a run with NUL", "run folder", command=("report", "a\0b")),
    row("report into a folder", "cannot write model: Is a directory", "name another file",
        command=("report", "past", "--out", "model"),
        files={"past/metrics.jsonl": '{"step": 1, "reward/mean": 0.5}\n'}),
    row("pairs into a file that is taken for a folder", "cannot write train.jsonl/x: File exists", "name another file",
        command=("pairs", "past", "--out", "train.jsonl/x"), make=record_a_pair),
    row("report of a metrics file nested deeply", "metrics.jsonl", command=("report", "past"),
        files={"past/metrics.jsonl": "[" * 100_000 + "\n"}),
    row("report of metrics that are text", "metrics.jsonl", command=("report", "past"),
        files={"past/metrics.jsonl": '{"step": 1, "reward/mean": "high"}\n'}),
    row("report of metrics that are no UTF-8", "metrics.jsonl", command=("report", "past"),
        files={"past/metrics.jsonl": b'{"step": 1, "\xff": 1}\n'}),
    row("report of metrics that are a pipe", "metrics.jsonl", command=("report", "past"), files={"past/x": ""},
        make=lambda folder: os.mkfifo(folder / "past" / "metrics.jsonl")),
    row("report of rollouts that are no rollouts", "rollouts", command=("report", "past"),
        files={"past/metrics.jsonl": '{"step": 1, "reward/mean": 0.5}\n'},
        make=lambda folder: ((folder / "past" / "rollouts").mkdir(),
                             (folder / "past" / "rollouts" / "step-000001.jsonl").write_text("[1, 2]\n"))),
    row("evaluation of a run whose configuration is a bomb", "past", command=("eval", "past"),
        files={"past/config.yaml": bomb(30, "{<<: [@, @, @, @, @, @, @, @, @, @], k#: 1}")}),
    row("run in a folder whose configuration nests deeply", "config.yaml",
        files={"run/config.yaml": "a: " + "[" * 5_000}),
    row("run in a folder whose configuration is no text", "config.yaml", files={"run/config.yaml": b"\xff\xfe\0"}),
]  # fmt: skip

ROWS = [*YAML, *NUMBERS, *PATHS, *OVERRIDES]


@pytest.mark.slow_cases(
    "[rv][ua]* deep*",
    "deep list*",
    "model.tokenizer: *",
    "reward of *",
    "*max_response_tokens=*  (rl)",
    "*=64 eval*",
    "rollout.stop_token_ids=*  (rl)",
    "* a thousand",
)
@pytest.mark.parametrize("case", ROWS, ids=[case["name"] for case in ROWS])
def test_is_refused_in_one_message(case: Row, refuse: Refuse) -> None:
    refuse(case)
