"""Formats, and the errors of broken files."""

import datetime
import decimal
import gzip
import json
from pathlib import Path
from unittest.mock import Mock

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from burnish.config.schema_data import DataSource
from burnish.data.files import data_stem, read_file
from burnish.data.sources import read_table, source_names
from burnish.data.text_documents import split_documents
from burnish.errors import DataError

ROWS = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}]


def values(path: Path | str, **fields: object) -> list[dict]:
    return [dict(row.values) for row in read_table(DataSource(path=str(path), **fields)).rows]


@pytest.fixture
def file(tmp_path: Path):
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_every_format_gives_the_same_rows(file, tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row) for row in ROWS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    zipped = gzip.compress((tmp_path / "d.parquet").read_bytes())
    for path in (
        file("a.jsonl", lines),
        file("a.jsonl.gz", gzip.compress(lines.encode())),
        file("b.json", json.dumps(ROWS, indent=2)),
        file("c.json", lines),
        tmp_path / "d.parquet",
        file("d.parquet.gz", zipped),
    ):
        assert values(path) == ROWS, path
    table = [{"prompt": "a", "answer": "1"}, {"prompt": "b\nb, c", "answer": "2"}]
    assert values(file("e.csv", 'prompt,answer\r\na,1\r\n"b\nb, c",2\r\n')) == table


def test_blank_lines_byte_order_mark_and_odd_line_separators(file) -> None:
    content = "\ufeff" + json.dumps({"text": "one\u2028two"}, ensure_ascii=False) + "\n\n" + '{"text": "x"}\n'
    table = read_table(DataSource(path=str(file("a.jsonl", content))))
    assert [row.values["text"] for row in table.rows] == ["one\u2028two", "x"]
    assert [row.number for row in table.rows] == [0, 1]
    assert table.rows[1].where.endswith("a.jsonl:3")


def test_limit_reads_no_further(file) -> None:
    assert values(file("a.jsonl", json.dumps(ROWS[0]) + "\nbroken"), limit=1) == ROWS[:1]


def test_a_parquet_row_is_plain_python(tmp_path: Path) -> None:
    row = {"a": [{"b": 1.5}], "day": datetime.date(2024, 2, 29), "raw": b"ok", "gap": float("nan"), "none": None}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "a.parquet")
    (read,) = values(tmp_path / "a.parquet")
    assert read == {"a": [{"b": 1.5}], "day": "2024-02-29", "raw": "ok", "gap": None, "none": None}
    json.dumps(read)
    exact = [{"price": decimal.Decimal("0.1"), "id": decimal.Decimal(2**70), "sum": decimal.Decimal(f"{2**60}.25")}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(exact), tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet") == [{"price": 0.1, "id": 2**70, "sum": f"{2**60}.25"}]
    pyarrow.parquet.write_table(pyarrow.table([["a"], ["b"]], names=["q", "q"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="names q twice"):
        values(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": \n', ["a.jsonl:2", "malformed JSON", "column"]),
        ("a.jsonl", '{"prompt": "a"}\n\n[1, 2]\n', ["a.jsonl:3", "expected a JSON object", "list"]),
        ("a.json", '[{"a": 1},\n {"a" 2}]', ["a.json:2", "malformed JSON"]),
        ("a.json", '{\n"a": 1\n}', ["a.json", "list of objects", "dict"]),
        ("a.json", "[1]", ["a.json, row 0", "expected a JSON object"]),
        ("a.csv", "a,b\n1,2\n1,2,3\n", ["a.csv:3", "3 fields", "2 (a, b)"]),
        ("a.csv", "a,a\n1,2\n", ["a.csv:1", "names a twice"]),
        ("a.csv", 'a\n"x"y\n', ["a.csv:2", "malformed CSV"]),
        ("a.parquet", "nothing of the kind", ["a.parquet", "not a readable Parquet"]),
        ("a.jsonl.gz", "not gzipped", ["a.jsonl.gz", "cannot be read"]),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', ["a.jsonl:2", "not UTF-8", "0xff"]),
        ("a.jsonl", "\n\n", ["a.jsonl", "empty"]),
        ("a.csv", "a,b\n", ["a.csv", "empty"]),
        ("a.xlsx", "", ["a.xlsx", "does not show the format", ".parquet"]),
    ],
)
def test_broken_files_are_named_with_the_line(file, name: str, content: str | bytes, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        values(file(name, content))
    assert all(word in str(caught.value) for word in words), caught.value
    assert caught.value.remedy


def test_a_missing_file_names_its_nearest_sibling(file, tmp_path: Path) -> None:
    file("train.jsonl", "{}")
    with pytest.raises(DataError, match=r"did you mean '.*train\.jsonl'"):
        read_file(tmp_path / "trian.jsonl")
    with pytest.raises(DataError, match="no such file"):
        values(tmp_path / "no" / "such" / "place.jsonl")


# --- plain text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "separator", "expected"),
    [
        ("one\n\nmore\n<|endoftext|>\ntwo\n", None, [(1, "one\n\nmore"), (5, "two")]),
        ("one\n\nmore\n\n\n\ntwo", None, [(1, "one\n\nmore"), (7, "two")]),
        ("one\nmore\n \ntwo\n\n", None, [(1, "one\nmore"), (4, "two")]),
        ("one\ntwo\n", None, [(1, "one"), (2, "two")]),
        ("Once a\n\nb\n\nOnce c", r"\n\n(?=Once)", [(1, "Once a\n\nb"), (5, "Once c")]),
        ("a---b", "---", [(1, "a"), (1, "b")]),
    ],
)
def test_documents(text: str, separator: str | None, expected: list[tuple[int, str]]) -> None:
    assert list(split_documents(text, separator, "x")) == expected


def test_text_file_is_a_text_column_and_a_bad_separator_an_error(file) -> None:
    path = file("a.txt", "one\n\ntwo")
    assert values(path) == [{"text": "one"}, {"text": "two"}]
    with pytest.raises(DataError, match=r"document_separator.*not a regular expression"):
        values(path, document_separator="(")
    with pytest.raises(DataError, match=r"document_separator is for \.txt"):
        values(file("a.jsonl", "{}"), document_separator="x")


@pytest.mark.parametrize("separator", [None, r"\n\n(?=B)", r"A3\n"])
@pytest.mark.parametrize("text", ["A1\nA2\n\nB1\nA3\nB2\n", "A1\n<|endoftext|>\nA2\n\nB3\n"])
def test_line_ends_of_windows_change_nothing(file, text: str, separator: str | None) -> None:
    here, there = file("lf.txt", text), file("crlf.txt", text.replace("\n", "\r\n"))
    found = [list(read_file(Path(path), document_separator=separator)) for path in (here, there)]
    assert found[1] == [(where.replace("lf.txt", "crlf.txt"), row) for where, row in found[0]]


def test_a_separator_that_names_line_ends_of_windows_has_them(file) -> None:
    path = file("crlf.txt", "A1\r\n\r\nB1\r\nB2")
    assert values(path, document_separator=r"\r\n\r\n") == [{"text": "A1"}, {"text": "B1\r\nB2"}]


# --- folders and saved sets -----------------------------------------------------------------------------------------


def test_folder_of_files_by_split(tmp_path: Path, jsonl) -> None:
    jsonl(ROWS[0], name="set/train-00000-of-00002.jsonl")
    jsonl(ROWS[1], name="set/train-00001-of-00002.jsonl")
    jsonl({"prompt": "t"}, name="set/test.jsonl")
    folder = tmp_path / "set"
    assert values(folder) == ROWS
    assert values(folder, split="test") == [{"prompt": "t"}]
    with pytest.raises(DataError, match=r"split 'valid'.*test\.jsonl"):
        values(folder, split="valid")
    jsonl({"prompt": "only"}, name="one/rows.jsonl")
    assert values(tmp_path / "one") == [{"prompt": "only"}]
    assert values(tmp_path, subset="set") == ROWS
    with pytest.raises(DataError, match=r"sets: no such file or folder\n.*did you mean .*set'"):
        values(tmp_path, subset="sets")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no data file"):
        values(tmp_path / "empty")


def test_saved_data_sets(tmp_path: Path) -> None:
    train, test = datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS[:1])
    train.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "both"))
    assert values(tmp_path / "one") == ROWS
    assert values(tmp_path / "both", split="test") == ROWS[:1]
    with pytest.raises(DataError, match=r"no split 'tset'; the splits are train, test; did you mean 'test'"):
        values(tmp_path / "both", split="tset")
    with pytest.raises(DataError, match="has no splits"):
        values(tmp_path / "one", split="test")


def test_hub_names_go_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Mock(return_value=datasets.Dataset.from_list(ROWS))
    monkeypatch.setattr(datasets, "load_dataset", hub)
    assert values("someone/a-set", subset="main", split="test") == ROWS
    hub.assert_called_once_with("someone/a-set", "main", split="test")


def test_a_hub_set_that_cannot_be_had_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=ConnectionError("no network")))
    with pytest.raises(DataError, match=r"someone/a-set: no local file.*no network"):
        values("someone/a-set")


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["data/gsm8k/train.jsonl.gz"], ["train"]),
        (["gsm8k/train.jsonl", "math/train.jsonl"], ["gsm8k/train", "math/train"]),
        (["train.jsonl", "train.jsonl", "b.csv"], ["train#1", "train#2", "b"]),
        (["openai/gsm8k"], ["gsm8k"]),
    ],
)
def test_source_names_differ(paths: list[str], names: list[str]) -> None:
    assert source_names([DataSource(path=path) for path in paths]) == names
    assert data_stem(Path("x.json.gz")) == "x"


def test_a_file_without_leave_to_read_is_told(file, monkeypatch):  # type: ignore[no-untyped-def]
    path = file("a.jsonl", '{"prompt": "1"}\n')
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(DataError, match=r"a\.jsonl: cannot be read: Permission denied"):
        list(read_file(path))
