"""`burnish chat` with a tiny model: continuation, conversation, comparison, tinted tokens."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.api.policy import Policy, Response
from burnish.cli import main
from burnish.cli.chat import tinted_text
from burnish.models.characters import character_tokenizer
from burnish.types import FinishReason

TEMPLATE = "{% for message in messages %}{{ message.content }}={% endfor %}"


@pytest.fixture(scope="module")
def model(save_tiny_llama: Callable[..., Path]) -> str:
    return str(save_tiny_llama("0123456789+=", hidden_size=32))


@pytest.fixture(scope="module")
def talker(save_tiny_llama: Callable[..., Path]) -> str:
    """The same model with a chat template."""
    folder = save_tiny_llama("0123456789+=", hidden_size=32)
    character_tokenizer("0123456789+=", eos="$", pad="_", chat_template=TEMPLATE).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command says that is given this text on standard input."""

    def run(text: str, *words: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        monkeypatch.setenv("COLUMNS", "120")
        assert main(["chat", *words, "--max-tokens", "4"]) == 0
        return capsys.readouterr().out

    return run


def test_a_text_is_continued(piped: Callable[..., str], model: str) -> None:
    expected = Policy(model).generate("1+1=", max_response_tokens=4, greedy=True).text
    assert piped("1+1=\n", model, "--temperature", "0").strip() == expected
    assert piped("1+1=\n", model, "--seed", "3") == piped("1+1=\n", model, "--seed", "3")


def test_a_conversation_goes_through_the_template(piped: Callable[..., str], talker: str, model: str) -> None:
    greedy = ("--temperature", "0")
    assert piped("1+1", talker, *greedy) == piped("1+1=", model, *greedy)
    assert piped("1+1", talker, "--plain", *greedy) == piped("1+1", model, *greedy)
    assert piped("2", talker, "--system", "1+", *greedy) == piped("1+=2=", model, *greedy)


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


def test_what_cannot_be_talked_to(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["chat", model, "--system", "be brief"]) == 2
    assert "--system needs a conversation" in capsys.readouterr().err
    assert main(["chat", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "burnish", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("burnish ")
