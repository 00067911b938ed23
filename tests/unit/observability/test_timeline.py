"""Spans of the main process and of others, by step; resumed runs, and lines cut off by a kill."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from burnish.errors import BurnishError
from burnish.observability.timeline import TimelineRecorder, WorkSpan, WorkSpans, read_spans


@dataclass
class Worker:
    name: str = "rollout worker 0"
    standing: str = "idle"
    spans: list[WorkSpan] = field(default_factory=list)

    def take_spans(self) -> list[WorkSpan]:
        taken, self.spans = self.spans, []
        return taken


def test_phases_and_the_work_of_others_are_written_once_with_the_step(tmp_path: Path) -> None:
    worker, before = Worker(), time.time()
    timeline = TimelineRecorder(tmp_path, lambda: [worker])
    timeline.phase("generate")
    worker.spans.append(WorkSpan(worker.name, "engine.generate", time.monotonic() - 2, time.monotonic()))
    timeline.phase("update")
    timeline.phase("")
    timeline.write(1)
    timeline.phase("evaluate")
    timeline.phase("")
    timeline.write(2)
    found = read_spans(tmp_path, 1, 2)
    works = {step: [(span.process, span.work) for span in spans] for step, spans in found.items()}
    assert works[1] == [("run", "generate"), ("run", "update"), ("rollout worker 0", "engine.generate")]
    assert works[2] == [("run", "evaluate")]
    generate, update, theirs = found[1]
    assert before - 0.01 <= generate.began <= generate.ended == update.began <= update.ended <= time.time() + 0.01
    assert theirs.ended - theirs.began == pytest.approx(2, abs=1e-3)
    assert list(read_spans(tmp_path, 2, 9)) == [2]


def test_work_that_goes_on_without_a_pause_is_one_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans, ends = WorkSpans(), iter([2.0, 3.0, 4.0, 6.0, 7.0])
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: next(ends))
        for process, began in ((0, 1.0), (1, 1.0), (0, 2.0005), (0, 4.5), (0, 4.25)):
            spans.add(f"reward worker {process}", "math", began)
    TimelineRecorder(tmp_path, scoring=spans.take).write(1)
    found = read_spans(tmp_path, 1, 1)[1]
    assert [span.process[-1] for span in found] == ["0", "1", "0"]
    assert [round(span.ended - span.began, 3) for span in found] == [3.0, 2.0, 2.75]


def test_a_resumed_run_keeps_what_came_before_and_no_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    lines = [f'{{"step":{step},"spans":[["run","update",1.0,2.0]]}}' for step in (1, 2, 3)]
    file.write_text("\n".join([*lines, lines[0][:-4]]))
    assert list(read_spans(tmp_path, 0, 9)) == [1, 2, 3]
    TimelineRecorder(tmp_path, resume_step=2).write(3)
    assert file.read_text().splitlines() == [*lines[:2], '{"step":3,"spans":[]}']
    TimelineRecorder(tmp_path)
    assert file.read_text() == ""
    assert read_spans(tmp_path / "none", 0, 9) == {}


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "timeline.jsonl").mkdir()
    with pytest.raises(BurnishError, match=r"cannot write .*timeline.jsonl"):
        TimelineRecorder(tmp_path)
