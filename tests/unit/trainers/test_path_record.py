from pathlib import Path

import pytest

from burnish.errors import CheckpointError
from burnish.forward.race import Contender
from burnish.trainers.run_folder import PATHS_FILE, record_paths, recorded_paths

WAYS = [Contender("fast", lambda: None), Contender("plain", lambda: None)]


def test_a_runs_choices_come_back(tmp_path: Path) -> None:
    paths = recorded_paths(tmp_path)  # a run that begins has none
    assert paths.choose("decoding", "8 x 8", WAYS[1:]) == "plain"
    record_paths(tmp_path, paths)
    again = recorded_paths(tmp_path)
    assert again.choose("decoding", "8 x 8", WAYS) == "plain"
    assert again.choose("training", "8 x 8", WAYS) == "fast"
    record_paths(tmp_path, again)
    assert recorded_paths(tmp_path).record() == {"decoding (8 x 8)": "plain", "training (8 x 8)": "fast"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"ways": 3}', '{"ways": {"a": 1}}', "\xff", "[" * 100_000], ids=range(9)
)
def test_a_damaged_record_is_refused_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / PATHS_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"paths\.json.*\n  -> remove it"):
        recorded_paths(tmp_path)


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / PATHS_FILE).mkdir()
    with pytest.raises(CheckpointError, match="remove it"):
        recorded_paths(tmp_path)
    with pytest.raises(CheckpointError, match="cannot write to"):
        record_paths(tmp_path, recorded_paths(tmp_path / "other"))
