"""The chart page: complete, self-contained, and true to the play."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from burnish.simulation.forecast import forecast
from burnish.simulation.gantt import chart, page, seconds_in_words
from burnish.simulation.lengths import RecordedLengths
from burnish.simulation.settings import Decoding, Layout, Phase, SimulationSettings

SETTINGS = SimulationSettings(
    prompts_per_step=4,
    group_size=2,
    steps=100,
    lengths=RecordedLengths((10, 20)),
    decoding=Decoding(base_seconds=1.0),
    update=Phase(divided_seconds=20.0),
    max_staleness=1,
)


def test_the_page_fetches_nothing_and_escapes() -> None:
    text = page("<b>run</b>", SETTINGS, [forecast(SETTINGS, Layout(2, 2))])
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(text)
    assert "&lt;b&gt;run&lt;/b&gt;" in text
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert "http" not in text
    assert "$" not in text  # no placeholder of the template is left
    assert "prefers-color-scheme: dark" in text
    assert tags.count("svg") == 1


def test_bars_are_where_the_play_has_them() -> None:
    one = forecast(SETTINGS, Layout(2, 2))
    svg = ElementTree.fromstring(chart(SETTINGS, one))
    trained = [box for box in svg.iter("rect") if box.get("class", "").startswith("train")]
    end = one.timeline.steps[7].updated
    assert len(trained) == 8
    for box, step in zip(trained, one.timeline.steps, strict=False):
        assert float(box.get("x", 0)) == pytest.approx(130 + 1040 * step.began / end, abs=0.1)
        assert float(box.get("width", 0)) == pytest.approx(1040 * (step.updated - step.began) / end, abs=0.1)
    assert all(float(box.get("x", 0)) + float(box.get("width", 0)) <= 130 + 1040 + 1.1 for box in svg.iter("rect"))
    assert re.findall(r"engine \d", chart(SETTINGS, one)) == ["engine 1", "engine 2"]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (0.0042, "4.2 ms"), (1.234, "1.23 s"), (1234.5, "1,234 s"), (36_000, "10.0 h")]
)
def test_seconds_in_words(seconds: float, words: str) -> None:
    assert seconds_in_words(seconds) == words
