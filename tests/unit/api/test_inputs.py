"""What a call gives in memory, as the words and files of a run file."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from burnish import rewards
from burnish.api.inputs import Inputs, remove_torn, rows_text, write_inputs
from burnish.api.run import Run
from burnish.errors import CheckpointError, ConfigError, DataError

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2=", "answer": "3"}]


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path / "run" / "inputs")


def test_rows_become_files_by_their_role(inputs: Inputs) -> None:
    folder = inputs.folder
    assert inputs.plain({"data": ROWS})["data"] == {"train": f"{folder}/train.jsonl"}
    assert inputs.plain({"data": {"train": ROWS, "eval": ROWS[:1], "chat": "never"}})["data"] == {
        "train": f"{folder}/train.jsonl",
        "eval": f"{folder}/eval.jsonl",
        "chat": "never",
    }
    write_inputs(inputs, may_change=False)
    assert [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()] == ROWS


def test_sources_stay_sources_and_may_hold_rows(inputs: Inputs) -> None:
    folder = inputs.folder
    given = {"train": ["a.jsonl", {"path": ROWS, "weight": 2.0}, Path("b.jsonl")], "eval": {"path": "c.jsonl"}}
    assert inputs.plain({"data": given})["data"] == {
        "train": ["a.jsonl", {"path": f"{folder}/train-2.jsonl", "weight": 2.0}, "b.jsonl"],
        "eval": {"path": "c.jsonl"},
    }
    paths = [{"path": "a.jsonl"}, {"path": "b.jsonl", "limit": 3}]
    assert inputs.plain({"data": {"train": paths}})["data"]["train"] == paths
    rows = [{"path": "/home", "question": "what is there?"}]  # a column that happens to be called path
    assert inputs.plain({"data": rows})["data"]["train"] == f"{folder}/train.jsonl"


def test_puzzles_are_a_source_and_no_row(inputs: Inputs) -> None:
    made = {"reasoning_gym": {"gcd": {}}, "size": 5}
    assert inputs.plain({"data": {"train": [made], "eval": made}})["data"] == {"train": [made], "eval": made}


def test_a_data_set_becomes_parquet(inputs: Inputs) -> None:
    from datasets import Dataset

    assert inputs.plain({"data": Dataset.from_list(ROWS)})["data"]["train"] == f"{inputs.folder}/train.parquet"
    write_inputs(inputs, may_change=False)
    before = (inputs.folder / "train.parquet").read_bytes()
    write_inputs(inputs, may_change=False)  # the same rows are the same file
    assert (inputs.folder / "train.parquet").read_bytes() == before


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Its folder, from where the test runs."""
    monkeypatch.chdir(tmp_path)
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/config.yaml").touch()
    return "runs/a"


def test_rewards(inputs: Inputs, run: str) -> None:
    def mine(response: str) -> float:
        return 1.0

    given = ["math", mine, rewards.length(maximum=3).weighted(0.5), rewards.function(mine, weight=2.0, label="again")]
    found = inputs.plain({"rewards": [*given, {"name": mine, "label": "third"}, lambda response: 1.0, Run(run)]})
    assert found["rewards"] == [
        "math",
        {"name": "python:mine"},
        {"name": "length", "options": {"maximum": 3}, "weight": 0.5},
        {"name": "python:mine", "options": {}, "weight": 2.0, "label": "again"},
        {"name": "python:mine", "label": "third"},
        {"name": "python:lambda"},
        "model:runs/a",
    ]
    assert set(inputs.functions) == {"python:mine", "python:lambda"}
    assert inputs.plain({"rewards": mine})["rewards"] == [{"name": "python:mine"}]


def test_two_functions_of_one_name_are_told_apart(inputs: Inputs) -> None:
    found = inputs.plain({"rewards": [lambda response: 1.0, lambda response: 2.0]})
    assert [reward["name"] for reward in found["rewards"]] == ["python:lambda", "python:lambda_2"]


def test_a_run_stands_for_its_folder(inputs: Inputs, run: str) -> None:
    assert inputs.plain({"model": Run(run)})["model"] == run
    assert inputs.plain({"rewards": Run(run, choice="best")})["rewards"] == [f"model:{run}@best"]
    assert inputs.plain({"model": {"path": Run(run, choice="best")}})["model"] == {"path": f"{run}@best"}


def test_a_change_is_refused_and_nothing_is_touched(inputs: Inputs) -> None:
    inputs.plain({"data": ROWS})
    write_inputs(inputs, may_change=False)
    other = Inputs(inputs.folder)
    other.plain({"data": ROWS[:1]})
    with pytest.raises(CheckpointError, match=r"different inputs from those of this call: train\.jsonl"):
        write_inputs(other, may_change=False)
    assert len((inputs.folder / "train.jsonl").read_text().splitlines()) == 2
    write_inputs(other, may_change=True)
    assert len((inputs.folder / "train.jsonl").read_text().splitlines()) == 1
    assert sorted(path.name for path in inputs.folder.parent.iterdir()) == ["inputs"]


def test_another_model_inherits_no_file_of_the_one_before(inputs: Inputs, save_tiny_llama: Any) -> None:
    """A chat template, for one, would be read with the tokenizer that has none."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = save_tiny_llama("0123456789+=", hidden_size=32)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    inputs.plain({"model": (model, tokenizer)})
    write_inputs(inputs, may_change=False)
    assert AutoTokenizer.from_pretrained(inputs.folder / "model").chat_template
    other = Inputs(inputs.folder)
    other.plain({"model": (model, AutoTokenizer.from_pretrained(folder))})
    with pytest.raises(CheckpointError, match="different inputs from those of this call"):
        write_inputs(other, may_change=False)
    write_inputs(other, may_change=True)
    assert AutoTokenizer.from_pretrained(inputs.folder / "model").chat_template is None
    write_inputs(other, may_change=False)  # now it holds this model


def test_what_a_killed_process_left_half_written_is_removed(inputs: Inputs) -> None:
    inputs.folder.parent.mkdir()
    (inputs.folder.parent / ".inputs-x").mkdir()
    (inputs.folder.parent / ".inputs-x" / "model.safetensors").write_text("half")
    remove_torn(inputs.folder)
    assert not list(inputs.folder.parent.iterdir())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": 3.5, "data": 7}, "the data set 'train' is a builtins.int"),
        ({"data": {"train": [{"prompt": object()}]}}, "row 0 of train.jsonl: the column 'prompt' cannot be written"),
        ({"data": [{"prompt": "a", "limit": float("inf")}]}, "row 0 of train.jsonl: the column 'limit' cannot be"),
        ({"data": [["prompt"]]}, "row 0 of train-1.jsonl is a str"),
    ],
)
def test_what_cannot_be_data(inputs: Inputs, fields: dict[str, object], said: str) -> None:
    def give() -> None:
        inputs.plain(fields)
        write_inputs(inputs, may_change=False)

    with pytest.raises(DataError, match=said):
        give()


def test_models_need_their_tokenizer(inputs: Inputs) -> None:
    import torch

    with pytest.raises(ConfigError, match="without its tokenizer"):
        inputs.plain({"model": torch.nn.Linear(1, 1)})
    with pytest.raises(ConfigError, match="not a model of transformers"):
        inputs.plain({"model": (torch.nn.Linear(1, 1), None)})
    with pytest.raises(ConfigError, match="both a loaded model and a path"):
        inputs.plain({"model": {"model": torch.nn.Linear(1, 1), "tokenizer": None, "path": "models/other"}})


def test_values_of_tables_are_written_as_data_files_have_them() -> None:
    row = {"when": datetime.date(2024, 5, 1), "score": float("nan"), "tags": ("a", "b")}
    assert json.loads(rows_text([row], "x")) == {"when": "2024-05-01", "score": None, "tags": ["a", "b"]}


def test_a_set_is_written_in_the_same_order_by_every_process() -> None:
    words = [f"word {number}" for number in range(50)]
    assert json.loads(rows_text([{"answers": set(words)}], "x"))["answers"] == sorted(words)
    assert json.loads(rows_text([{"answers": {2, "a", (1, 2)}}], "x"))["answers"] == ["a", 2, [1, 2]]


def test_columns_of_one_name_are_not_merged() -> None:
    assert rows_text([{3: "a", "3": "b"}], "x") == '{"3": "a", "3": "b"}\n'  # which the reader refuses


def test_domains_take_rows_and_functions(inputs: Inputs) -> None:
    def short(response: str) -> float:
        return float(len(response) < 9)

    plain = inputs.plain({"domains": {"sums": {"train": ROWS, "eval": ROWS, "rewards": ["exact", short]}}})
    assert plain["domains"]["sums"] == {
        "train": f"{inputs.folder}/sums-train.jsonl",
        "eval": f"{inputs.folder}/sums-eval.jsonl",
        "rewards": ["exact", {"name": "python:short"}],
    }
    assert set(inputs.rows) == {"sums-train.jsonl", "sums-eval.jsonl"}
    assert inputs.functions == {"python:short": short}
