"""Groups, responses, prompts over training, rows for training, and the index that finds them."""

import json
from pathlib import Path

import pytest
from board_runs import line, write_step

from burnish.board.answers import add_note, read_notes
from burnish.board.index import FOLDER, RolloutIndex
from burnish.board.rollouts import ResponseFilter, group_page, rows_of_step, sightings, step_page
from burnish.errors import DataError

LINES = [
    *(line(7, k, reward, token_texts=["x", str(k)]) for k, reward in enumerate((0.25, 0.5))),
    *(line(2, k, reward, domain="math") for k, reward in enumerate((0.0, 1.0, None))),
]


@pytest.fixture
def index(tmp_path: Path) -> RolloutIndex:
    write_step(tmp_path, 3, LINES)
    return RolloutIndex(tmp_path)


def test_the_group_of_the_largest_spread_comes_first(index: RolloutIndex) -> None:
    page = step_page(index, "step", 3, ResponseFilter())
    found = [(g["group"], g["mean"], g["spread"], g["kept"]) for g in page["groups"]]
    assert found == [(2, 0.5, 1.0, 2), (7, 0.375, 0.25, 2)]
    assert page["groups"][0]["rewards"] == [0.0, 1.0, None]
    assert (page["statuses"], page["domains"]) == (["error", "ok"], ["default", "math"])
    assert page["reasons"] == ["kept", "reward error"]


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        (ResponseFilter(low=0.5), {2: 1, 7: 1}),
        (ResponseFilter(high=0.25), {2: 1, 7: 1}),
        (ResponseFilter(low=0.0, high=1.0, domain="math"), {2: 2}),
        (ResponseFilter(status="error"), {2: 1}),
        (ResponseFilter(why="kept"), {2: 2, 7: 2}),
        (ResponseFilter(why="reward error"), {2: 1}),
        (ResponseFilter(text="QUESTION 7"), {7: 2}),
        (ResponseFilter(text="x1"), {7: 1}),
        (ResponseFilter(text="nowhere"), {}),
    ],
)
def test_filters(index: RolloutIndex, wanted: ResponseFilter, groups: dict[int, int]) -> None:
    page = step_page(index, "step", 3, wanted)
    assert {group["group"]: len(group["rewards"]) for group in page["groups"]} == groups
    assert page["left_out"] == len(LINES) - sum(groups.values())


def test_a_group_is_read_line_by_line_with_its_numbers(tmp_path: Path) -> None:
    turns = [{"author": who, "start": k, "stop": k + 1, "messages": []} for k, who in enumerate(("policy", "tool"))]
    one = line(0, 0, 1.0, old_logprobs=[-1.5, "-inf", -1.0], versions=[[0, 3], [2, 4]])
    two = line(0, 1, 1.0, token_texts=["a", "b"], turns=turns, token_entropy=[0.6931, 0.0])
    write_step(tmp_path, 1, [line(1, 0, 0.0), one, two])
    page = group_page(RolloutIndex(tmp_path), "step", 1, 0, ResponseFilter())
    assert (page["group"]["id"], page["total"]) == ("p0", 2)
    first, second = page["group"]["responses"]
    assert (first["versions"], first["mismatch"]) == ([[0, 3], [2, 4]], [-0.5, None, 0.0])
    assert (second["versions"], second["entropy"]) == ([[0, 3]], [0.693, None])
    assert group_page(RolloutIndex(tmp_path), "step", 1, 5, ResponseFilter()) is None


def test_a_prompt_over_training(index: RolloutIndex) -> None:
    write_step(index.run_dir, 9, [line(4, 0, 1.0, prompt_id="p2")])
    assert sightings(index, "step", "p2") == []
    assert index.missing("step") == [3, 9]
    for step in index.missing("step"):
        index.add("step", step)
    found = [(s["step"], s["group"], s["mean"], s["low"], s["high"]) for s in sightings(index, "step", "p2")]
    assert found == [(3, 2, 0.5, 0.0, 1.0), (9, 4, 1.0, 1.0, 1.0)]
    assert index.missing("step") == []


def test_a_file_that_changes_is_indexed_again_and_one_that_is_gone_forgotten(index: RolloutIndex) -> None:
    assert len(index.entries("step", 3)) == 5
    path = write_step(index.run_dir, 3, LINES[:2])
    assert len(index.entries("step", 3)) == 2
    path.unlink()
    assert index.entries("step", 3) == []


def test_the_index_is_kept_beside_the_files_and_made_anew_if_it_is_damaged_or_removed(index: RolloutIndex) -> None:
    index.add("step", 3)
    index.close()
    kept = RolloutIndex(index.run_dir)
    assert kept.missing("step") == []
    kept.close()
    (index.run_dir / FOLDER / "index.sqlite").write_bytes(b"no database" * 100)
    again = RolloutIndex(index.run_dir)
    assert len(again.entries("step", 3)) == 5
    (index.run_dir / FOLDER / "index.sqlite").unlink()  # while it is open
    write_step(index.run_dir, 4, LINES[:2])
    assert len(again.entries("step", 4)) == 2
    assert (again.missing("step"), (index.run_dir / FOLDER / "index.sqlite").exists()) == ([3], True)


def test_a_run_whose_folder_cannot_be_written_to_is_indexed_in_memory(index: RolloutIndex) -> None:
    (index.run_dir / FOLDER).write_text("in the place of the folder")
    assert len(index.entries("step", 3)) == 5


def test_links_out_of_the_run_are_not_followed(tmp_path: Path) -> None:
    outside = write_step(tmp_path / "other", 1, LINES)
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    (tmp_path / "run" / "rollouts" / "step-000001.jsonl").symlink_to(outside)
    (tmp_path / "run" / FOLDER).symlink_to(tmp_path / "other")
    assert RolloutIndex(tmp_path / "run").entries("step", 1) == []
    with pytest.raises(DataError, match="is a link"):
        add_note(tmp_path / "run", "x", "step", 1, None)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["rollouts"]


def test_a_damaged_file_is_named(index: RolloutIndex) -> None:
    """One without fields, with half a character, with too few numbers for its tokens, and a folder in its place."""
    for one in ({}, line(7, 0, 1.0, domain="\ud800"), line(7, 0, 1.0, rollout_logprobs=[-1.0])):
        index.path("step", 3).write_text(json.dumps(one) + "\n")
        with pytest.raises(DataError, match="step-000003"):
            group_page(index, "step", 3, 7, ResponseFilter())
    index.path("step", 3).unlink()
    index.path("step", 3).mkdir()
    with pytest.raises(DataError, match="step-000003"):
        index.add("step", 3)


def test_rows_for_training(index: RolloutIndex) -> None:
    best = [(row["prompt"], row["completion"], row["reward"]) for row in rows_of_step(index, 3, "best")]
    assert best == [("question 7", "x1", 0.5), ("question 2", "abc", 1.0)]
    assert [row["reward"] for row in rows_of_step(index, 3, "best", least=0.75)] == [1.0]
    assert [row["margin"] for row in rows_of_step(index, 3, "pairs")] == [0.25, 1.0]
    with pytest.raises(DataError, match="no such rows"):
        rows_of_step(index, 3, "best", least=2.0)


def test_a_conversation_becomes_messages(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "4"}
    turn = {"author": "policy", "start": 0, "stop": 3, "messages": [said]}
    asked = [{"role": "user", "content": "2+2"}]
    write_step(tmp_path, 1, [line(0, 0, 1.0, prompt=asked, turns=[turn])])
    (row,) = rows_of_step(RolloutIndex(tmp_path), 1, "best")
    assert row["messages"] == [*asked, said]


def test_notes_are_kept_in_the_folder_of_the_run(tmp_path: Path) -> None:
    add_note(tmp_path, " odd\nanswer ", "step", 3, 7)
    add_note(tmp_path, "later", "eval", 4, None)
    found = [(note["text"], note["kind"], note["step"], note["group"]) for note in read_notes(tmp_path)]
    assert found == [("odd\nanswer", "step", 3, 7), ("later", "eval", 4, None)]
    assert json.loads((tmp_path / FOLDER / "notes.jsonl").read_text().splitlines()[0])["written"]
    for text in ("  ", "x" * 4_001):
        with pytest.raises(DataError, match="a note has"):
            add_note(tmp_path, text, "step", 1, None)
