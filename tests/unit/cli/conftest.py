"""A tiny model to talk to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.models.characters import character_tokenizer

TEMPLATE = "{% for message in messages %}{{ message.content }}={% endfor %}"


@pytest.fixture(scope="module")
def talker(save_tiny_llama: Callable[..., Path]) -> str:
    """A model with a chat template."""
    folder = save_tiny_llama("0123456789+=", hidden_size=32)
    character_tokenizer("0123456789+=", eos="$", pad="_", chat_template=TEMPLATE).save_pretrained(folder)
    return str(folder)
