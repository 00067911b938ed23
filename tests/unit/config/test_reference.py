"""The configuration page is the one that the classes give, and every field is explained."""

from pathlib import Path

from burnish.config.reference import reference_page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "run `make docs`"


def test_every_field_is_explained() -> None:
    rows = [line for line in reference_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []
