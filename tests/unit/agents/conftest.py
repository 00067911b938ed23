"""The engines and models that the tests of rollouts sample with, and how a template writes calls."""

import string
from pathlib import Path
from typing import Any

import pytest

from burnish.models.characters import character_tokenizer

from ..rollouts.conftest import make_engine, model, tokenizer

__all__ = ["make_engine", "model", "tokenizer"]

STOP = "<|im_end|>"
CHATML = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""
CALLS = (
    """{%- for c in m.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}"""
    """{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{%- endfor %}"""
)
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {"name": "calc", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
}


def chatml_tokenizer(template: str | None, alphabet: str = string.printable, unk: str | None = "?!") -> Any:
    """`STOP` ends a turn, and `<|im_start|>` begins one."""
    names = {"eos": STOP, "pad": "<pad>", "bos": "<|im_start|>", "unk": unk}
    return character_tokenizer(alphabet, **names, context_length=4096, chat_template=template)


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file with the module's `OWN_CODE`."""
    path = tmp_path / "own_code.py"
    path.write_text(request.module.OWN_CODE)
    return str(path)
