"""Tables at any width, and in a pipe."""

import io

import pytest
from rich.console import Console

from burnish.cli.algorithms import show_algorithms
from burnish.cli.tables import show_table
from burnish.config.presets import PRESETS

NAMES = ("rollout.max_response_tokens", "optimization.tokens_per_microbatch")
ROWS = [
    (NAMES[0], "1,024", "the longest response that is sampled, [bold]in tokens"),
    (NAMES[1], "", "words\n" + "words " * 39),
]


def printed(width: int, *, terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)
    show_table(console, ("field", "value", "because"), ROWS, title="sizes")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_pipe_gets_bare_columns_and_whole_lines() -> None:
    lines = printed(40, terminal=False)
    assert lines[:2] == ["sizes", f"{'field':<34}  {'value'}  because"]
    assert lines[2] == f"{NAMES[0]:<34}  1,024  {ROWS[0][2]}"
    assert "  words\\nwords words" in lines[3]
    assert len(lines) == 5


@pytest.mark.parametrize("width", [20, 50, 80, 119, 120, 200])
def test_nothing_is_lost_or_shortened_on_a_terminal(width: int) -> None:
    lines = printed(width, terminal=True)
    text = "\n".join(lines)
    assert all(name in text for name in NAMES)
    assert text.count("words") == 40
    assert ("┃" in text) is (width >= 120)
    if width >= 80:
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 119])
def test_each_algorithm_is_one_line_of_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    show_algorithms()
    lines = capsys.readouterr().out.partition("preferences")[0].splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(PRESETS)
    assert max(map(len, lines)) <= width
