import json
import os
from pathlib import Path

import pytest

from burnish.forward import verdicts
from burnish.forward.race import RaceResult
from burnish.forward.verdicts import VerdictCache

KEY = {"path": "decoding", "threads": 2}
FIRST, SECOND = RaceResult("fast", {"fast": 1.0, "plain": 2.0}), RaceResult("plain", {"fast": 2.0, "plain": 1.0})


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_what_one_process_found_the_next_one_knows(tmp_path: Path) -> None:
    folder = tmp_path / "burnish" / "paths"
    assert VerdictCache(folder).find(KEY) is None
    assert VerdictCache(folder).keep(KEY, FIRST) == FIRST
    assert VerdictCache(folder).find(dict(reversed(KEY.items()))) == FIRST
    assert VerdictCache(folder).find({**KEY, "threads": 1}) is None
    assert only_file(folder).stat().st_mode & 0o077 == 0


BROKEN = [
    "",
    "{",
    "[]",
    "null",
    "\x00",
    '{"key": "another", "winner": "fast", "seconds": {"fast": 1.0}}',
    json.dumps({"key": json.dumps(KEY), "winner": "gone", "seconds": {"fast": 1.0}}),
    json.dumps({"key": json.dumps(KEY), "winner": "fast", "seconds": {"fast": "soon"}}),
    json.dumps({"key": json.dumps(KEY), "winner": "fast", "seconds": {"fast": float("nan")}}),
    "[" * 100_000,
]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_as_none_and_is_replaced(tmp_path: Path, text: str) -> None:
    VerdictCache(tmp_path).keep(KEY, FIRST)
    only_file(tmp_path).write_text(text)
    assert VerdictCache(tmp_path).find(KEY) is None
    assert VerdictCache(tmp_path).keep(KEY, SECOND) == SECOND
    assert VerdictCache(tmp_path).find(KEY) == SECOND


def test_what_others_may_have_written_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    VerdictCache(tmp_path).keep(KEY, FIRST)
    file = only_file(tmp_path)
    file.chmod(0o666)
    assert VerdictCache(tmp_path).find(KEY) is None
    file.chmod(0o600)
    assert VerdictCache(tmp_path).find(KEY) == FIRST
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert VerdictCache(tmp_path).find(KEY) is None
    (tmp_path / "elsewhere").replace(file)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert VerdictCache(tmp_path).find(KEY) is None


@pytest.mark.parametrize("is_broken", [False, True])
def test_the_first_answer_stands(tmp_path: Path, is_broken: bool) -> None:
    """Two processes time at once, and one is first; both go by its answer. Both have looked before either answers: the
    second must not take the first one's file for a broken one."""
    if is_broken:
        VerdictCache(tmp_path).keep(KEY, FIRST)
        only_file(tmp_path).write_text("{")
    one, other = VerdictCache(tmp_path), VerdictCache(tmp_path)
    assert one.find(KEY) is other.find(KEY) is None
    assert one.keep(KEY, SECOND) == SECOND
    assert other.keep(KEY, FIRST) == SECOND
    assert other.find(KEY) == SECOND


def test_what_is_forgotten_is_asked_again(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "paths")
    assert cache.forget() == 0
    for threads in (1, 2):
        cache.keep({**KEY, "threads": threads}, FIRST)
    (tmp_path / "paths" / "notes.json").write_text("of somebody else")
    assert cache.forget() == 2
    assert cache.find(KEY) is None
    assert [file.name for file in (tmp_path / "paths").iterdir()] == ["notes.json"]
    assert cache.keep(KEY, SECOND) == SECOND
    assert VerdictCache(None).forget() == 0


def test_without_a_folder_that_can_be_written_it_is_known_in_this_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (None, tmp_path / "file" / "below"):
        cache = VerdictCache(folder)
        assert cache.find(KEY) is None
        assert cache.keep(KEY, FIRST) == FIRST
        assert cache.find(KEY) == FIRST


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    VerdictCache(tmp_path).keep(KEY, FIRST)
    file = only_file(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert VerdictCache(tmp_path).find(KEY) is None


def test_another_source_is_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    source = tmp_path / "kernels" / "attend.c"
    source.write_text("one")
    monkeypatch.setattr(verdicts, "_SOURCES", tmp_path)
    found = []
    for text in ("one", "two"):
        source.write_text(text)
        verdicts.sources_digest.cache_clear()
        found.append(verdicts.sources_digest())
    verdicts.sources_digest.cache_clear()
    assert found[0] != found[1]
