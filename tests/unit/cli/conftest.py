"""Commands and what they say, and a tiny model to talk to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.cli import main
from burnish.models.characters import character_tokenizer

TEMPLATE = "{% for message in messages %}{{ message.content }}={% endfor %}"


Run = Callable[..., str]
NUMBERS = """\
lengths: {median: 20, sigma: 0.8, longest: 100}
decoding: {base_seconds: 0.01, row_seconds: 0.001}
update: {fixed_seconds: 0.1, divided_seconds: 4}
"""
"""For a simulated plan."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns what it says, as one line of words; of a refusal, what it complains."""

    def command(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        said = capsys.readouterr()
        return " ".join((said.err if code == 2 else said.out).split())

    return command


@pytest.fixture(scope="module")
def talker(save_tiny_llama: Callable[..., Path]) -> str:
    """A model with a chat template."""
    folder = save_tiny_llama("0123456789+=", hidden_size=32)
    character_tokenizer("0123456789+=", eos="$", pad="_", chat_template=TEMPLATE).save_pretrained(folder)
    return str(folder)
