"""`burnish chat` with a tiny model: continuation, conversation, comparison, tinted tokens."""

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from burnish import __version__
from burnish.api.conversing import Conversed
from burnish.api.policy import Policy, Response
from burnish.cli import main
from burnish.cli.chat import plain_text, tinted_text
from burnish.cli.speakers import conversing_config
from burnish.types import FinishReason, Message, Rollout, Turn

from .conftest import Run


@pytest.fixture(scope="module")
def model(save_tiny_llama: Callable[..., Path]) -> str:
    return str(save_tiny_llama("0123456789+=", hidden_size=32))


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command says that is given this text on standard input."""

    def run(text: str, *words: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        monkeypatch.setenv("COLUMNS", "120")
        assert main(["chat", *words, "--max-tokens", "4"]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_a_text_is_continued(piped: Callable[..., str], model: str) -> None:
    expected = Policy(model).generate("1+1=", max_response_tokens=4, greedy=True).text
    assert piped("1+1=\n", model, "--temperature", "0").strip() == expected
    assert piped("1+1=\n", model, "--seed", "3") == piped("1+1=\n", model, "--seed", "3")


@pytest.mark.slow
def test_a_conversation_goes_through_the_template(piped: Callable[..., str], talker: str, model: str) -> None:
    greedy = ("--temperature", "0")
    assert piped("1+1", talker, *greedy) == piped("1+1=", model, *greedy)
    assert piped("1+1", talker, "--plain", *greedy) == piped("1+1", model, *greedy)
    assert piped("2", talker, "--system", "1+", *greedy) == piped("1+=2=", model, *greedy)


@pytest.mark.slow
def test_two_models_side_by_side(piped: Callable[..., str], model: str, talker: str) -> None:
    said = piped("1+1=", model, "--compare", talker, "--temperature", "0")
    assert "┃" in said
    assert Policy(model).generate("1+1=", max_response_tokens=4, greedy=True).text in said


def test_log_probabilities_are_listed(piped: Callable[..., str], model: str) -> None:
    answer = Policy(model).generate("1+1=", max_response_tokens=4, greedy=True)
    said = piped("1+1=", model, "--temperature", "0", "--logprobs")
    assert [line.split()[0] for line in said.splitlines()[1:5]] == [f"{value:.3f}" for value in answer.logprobs]


def test_unlikely_tokens_have_more_colour() -> None:
    text = tinted_text(Response("ab", ("a", "b"), (1, 2), (0.0, -6.0), FinishReason.STOP))
    assert [str(span.style) for span in text.spans[:2]] == ["on rgb(40,40,40)", "on rgb(200,40,40)"]


CALL = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2*3"}}}
TURNS = (
    Turn("policy", 0, 1, (Message("assistant", "hm", tool_calls=(CALL,)),), reward=0.25),
    Turn("tool", 1, 2, (Message("tool", "6", extra={"name": "calculator"}),), reward=0.0),
    Turn("policy", 2, 3, (Message("assistant", "six"),)),
    Turn("environment", 3, 4, (Message("user", "[b]higher"),)),
    Turn("policy", 4, 5, (Message("assistant", "seven"),)),
)


def conversed(**fields: Any) -> Conversed:
    rollout = Rollout(
        "p", 0, 0, (1,), (1, 2, 3, 4, 5), (-6.0, 0.0, -6.0, 0.0, -6.0), FinishReason.TURNS, 0, turns=TURNS
    )
    return Conversed(replace(rollout, environment_reward=0.5), ("A", "B", "C", "D", "E"), **fields)


def test_turns_are_told_apart() -> None:
    text = plain_text(conversed(opening="<Guess.>"))
    assert text.plain.splitlines() == [
        "<Guess.>", "hm", "  calculator(expression='2*3')", "  (reward of the turn 0.25)", "  calculator: 6", "six",
        "  environment: [b]higher", "seven", "  (out of turns)", "  (the environment pays 0.5)",
    ]  # fmt: skip
    dim = "".join(text.plain[span.start : span.end] for span in text.spans if span.style == "dim")
    assert not {"hm", "six", "seven"} & set(dim.split("\n"))
    assert "  calculator: 6" in dim.split("\n")


def test_only_the_policys_tokens_are_tinted() -> None:
    text = tinted_text(conversed())
    tinted = [text.plain[span.start : span.end] for span in text.spans if "on rgb(200" in str(span.style)]
    assert tinted == ["A", "C", "E"]


def test_who_has_typed_the_turns_has_seen_them() -> None:
    assert plain_text(conversed(typed=True)).plain.splitlines() == ["  (out of turns)", "  (the environment pays 0.5)"]


def test_tools_for_a_model(model: str) -> None:
    assert conversing_config(model, None) is None
    config = conversing_config(model, "calculator, my.py:search,")
    assert config is not None
    assert config.conversation is not None
    assert [tool.name for tool in config.conversation.tools] == ["calculator", "my.py:search"]


def test_playing_needs_an_environment(model: str, run: Run) -> None:
    assert "--play needs a run that was trained with an environment" in run("chat", model, "--play", code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plain", "--tools", "calculator"], "--tools does not go with --plain"),
        (["--no-tools", "--tools", "calculator"], "--tools does not go with --no-tools"),
        (["--domain", "math"], "--domain chooses between the tools and environments of a run's domains"),
    ],
)
def test_words_that_would_have_no_effect(model: str, words: list[str], said: str, run: Run) -> None:
    assert said in run("chat", model, *words, code=2)


def test_what_is_piped_in_has_to_be_text(model: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    assert "what is piped in is not utf-8 text" in run("chat", model, code=2)


def test_a_line_at_a_terminal_begins_anew_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], talker: str
) -> None:
    lines = iter(["1+1", "/new", "1+1"])

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def typed(prompt: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", typed)
    assert main(["chat", talker, "--max-tokens", "4", "--temperature", "0"]) == 0
    first, second = [line.lstrip("> ") for line in capsys.readouterr().out.split("\n") if line.strip("> ")]
    assert first == second


def test_what_cannot_be_talked_to(model: str, run: Run, tmp_path: Path) -> None:
    assert "--system needs a conversation" in run("chat", model, "--system", "be brief", code=2)
    assert "does not exist" in run("chat", str(tmp_path / "nothing"), code=2)


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "burnish", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"burnish {__version__}\n"
