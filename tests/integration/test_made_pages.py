"""The pages that are made from presets and tests are up to date, and each run file of the index can be planned."""

from pathlib import Path

import made_pages
import pytest
import yaml

from burnish.api.planning import plan_of
from burnish.config.loading import load_run_data
from burnish.config.presets import PRESETS


@pytest.mark.parametrize("name", ["papers", "families"])
def test_the_page_is_up_to_date(name: str) -> None:
    made = made_pages.papers_page() if name == "papers" else made_pages.families_page()
    assert (made_pages.DOCS / f"{name}.md").read_text(encoding="utf-8") == made, "run `make docs`"


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_the_run_file_of_a_paper_is_planned_and_sets_what_the_preset_sets(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    text = (made_pages.DOCS / "papers.md").read_text(encoding="utf-8")
    written = yaml.safe_load(text.partition(f"\n## {preset}\n")[2].partition("```yaml\n")[2].partition("```")[0])
    alone = {key: written[key] for key in ("model", "data", "rewards", "teacher") if key in written}
    loaded = load_run_data(made_pages.run_data(PRESETS[preset]))
    short = load_run_data({**alone, "data": {"train": "train.jsonl", "chat": "always"}, "algorithm": preset})
    steps = {"steps": loaded.config.steps}
    assert loaded.config.model_copy(update=steps) == short.config.model_copy(update=steps)
    plan = plan_of(loaded, [])
    assert {line.topic for line in plan.lines} >= {"one step", "whole run"}
