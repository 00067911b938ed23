"""What is kept of a teacher: read back by text, completed after a kill, and of one teacher only."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import batch_of

from burnish.errors import ConfigError, ModelError
from burnish.forward.batch import Text
from burnish.forward.divergences import Compared, HeadInput, Likeliest
from burnish.forward.scoring import ResponsePositions
from burnish.trainers.teacher_cache import KeptTeacher, keep

TEXTS: list[Text] = [((1,), (2, 3)), ((1, 2), (4,)), ((1,), (2, 3)), ((5,), (6, 7, 8))]
ABOUT = {"top_k": 1, "files": {"model.safetensors": "0a"}}


def scores(texts: Sequence[Text]) -> list[Likeliest]:
    """The likeliest token after each is the one after next, with a log-probability of -(its id)."""
    ids = [torch.tensor(response)[:, None] + 2 for _, response in texts]
    return [Likeliest(own, torch.cat((-own, own), 1).float()) for own in ids]


def noting(asked: list[Text], kill_at: int | None = None) -> Any:
    def score(texts: Sequence[Text]) -> list[Likeliest]:
        if len(asked) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        asked.extend(texts)
        return scores(texts)

    return lambda: score


def test_rows_and_columns_find_what_was_kept(tmp_path: Path) -> None:
    keep(tmp_path, ABOUT, TEXTS, noting([]), print)
    seen: list[Likeliest] = []

    def compared(student: HeadInput, teacher: Any, targets_N: torch.Tensor) -> Compared:
        seen.append(teacher)
        return Compared(targets_N, targets_N, targets_N)

    batch = batch_of([[5], [1, 2], [1]], [[6, 7, 8], [4], [2, 3]])
    wanted = np.array([[False, True, True], [True, False, False], [True, True, False]])
    positions = ResponsePositions.where(wanted, torch.device("cpu"))
    KeptTeacher(tmp_path, compared).compare(batch, positions, HeadInput(torch.zeros(5, 2)), torch.zeros(5))
    assert seen[0].ids_NK.tolist() == [[9], [10], [6], [4], [5]]
    assert seen[0].logprobs_NC.tolist() == [[-9, 9], [-10, 10], [-6, 6], [-4, 4], [-5, 5]]


def test_each_text_is_scored_once_and_of_one_teacher(tmp_path: Path) -> None:
    asked: list[Text] = []
    keep(tmp_path, ABOUT, TEXTS[:2], noting(asked), print)
    keep(tmp_path, ABOUT, TEXTS, noting(asked), print)
    assert asked == [TEXTS[0], TEXTS[1], TEXTS[3]]
    keep(tmp_path, ABOUT, TEXTS, lambda: pytest.fail("nothing is missing"), print)
    with pytest.raises(ConfigError, match=r"another teacher or other settings \(files\)"):
        keep(tmp_path, {**ABOUT, "files": {}}, TEXTS, noting(asked), print)
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ModelError, match=rf"{file.name} is damaged"):
        keep(tmp_path, ABOUT, TEXTS, noting(asked), print)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_texts_that_are_missing(tmp_path: Path) -> None:
    lines = [
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}",
        "from pathlib import Path; import test_teacher_cache as here",
        "from burnish.trainers import teacher_cache; teacher_cache.TEXTS_AT_ONCE = 1",
        f"here.keep(Path({str(tmp_path)!r}), here.ABOUT, here.TEXTS, here.noting([], kill_at=2), print)",
    ]
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False).returncode == -signal.SIGKILL
    (tmp_path / "half.1.partial").write_bytes(b"half")
    assert not (tmp_path / "complete").exists()
    asked: list[Text] = []
    keep(tmp_path, ABOUT, TEXTS, noting(asked), print)
    assert asked == [TEXTS[3]]
    assert (tmp_path / "complete").exists()
