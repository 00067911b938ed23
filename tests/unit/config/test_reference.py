"""The configuration page is the one that the classes give, and every field is explained."""

from __future__ import annotations

from pathlib import Path

from burnish.config.fields import inner_section, iter_fields
from burnish.config.reference import reference_page
from burnish.config.schema import RlConfig, RmConfig, SftConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_committed_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "run `make docs`"


def test_every_field_is_explained() -> None:
    for field in (*iter_fields(RlConfig), *iter_fields(SftConfig), *iter_fields(RmConfig)):
        section, _ = inner_section(field.annotation)
        assert field.info.description or (section is not None and section.__doc__), field.path
