"""The board of a large run: what it reads and holds follows what is asked for, not the size of the run."""

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from board_runs import line, write_rows, write_step

from burnish.board import answers
from burnish.board.answers import Board, Query
from burnish.board.index import RolloutIndex
from burnish.board.runs import Runs

IO = Path("/proc/self/io")
METRICS, STEPS, FILES, TOKENS = 75, 2_000, 40, 800
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IO.exists(), reason="needs Linux, which counts what is read")]


def bytes_read(act: Callable[[], object]) -> int:
    before = int(IO.read_text().split()[1])
    act()
    return int(IO.read_text().split()[1]) - before


def test_a_large_run_is_read_once_and_responses_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are listed for longer than a request may index some."""
    table = tmp_path / "large" / "metrics.jsonl"
    write_rows(table.parent, *({"step": s, **{f"x/{k}": s * 0.7 + k for k in range(METRICS)}} for s in range(1, STEPS)))
    numbers = {name: [-0.123456] * TOKENS for name in ("rollout_logprobs", "old_logprobs")}
    lines = [line(k // 2, k % 2, 1.0, token_texts=["word "] * TOKENS, **numbers) for k in range(16)]
    files = [write_step(table.parent, step, lines).stat().st_size for step in range(1, FILES + 1)]
    for k in range(50):
        write_rows(tmp_path / f"small{k}", {"step": 1, "x/0": 1.0})
    board, list_files = Board(Runs.below([str(tmp_path)])), RolloutIndex.missing
    step = Query({"run": ["large"], "step": ["7"], "group": ["3"], "prompt": ["p3"], "metric": ["x/0"]})
    monkeypatch.setattr(answers, "INDEXING_SECONDS", 0.02)
    monkeypatch.setattr(RolloutIndex, "missing", lambda *asked: time.sleep(0.03) or list_files(*asked))

    def over_training() -> None:
        assert any(not board.prompt(step)["missing"] for _ in range(10 * FILES))

    tracemalloc.start()
    assert bytes_read(board.runs.refresh) < table.stat().st_size + 5e4
    with table.open("a") as file:
        file.write(json.dumps({"step": STEPS, "x/0": 1.0}) + "\n")
    for act in (board.runs.refresh, board.summaries, lambda: (board.charts(step), board.points(step))):
        assert bytes_read(act) < 5e4
    assert bytes_read(lambda: board.groups(step)) < files[0] + 5e4
    assert bytes_read(lambda: board.group(step)) < files[0] / 4  # an eighth is the group
    assert bytes_read(over_training) < sum(files) + 5e4
    assert bytes_read(over_training) < 5e4
    assert tracemalloc.get_traced_memory()[1] < 16 * STEPS * METRICS + 3e6 < sum(files) / 3  # the most at a time
    tracemalloc.stop()
