"""The engines and models that the tests of rollouts sample with, and how a template writes calls."""

from pathlib import Path
from typing import Any

import pytest

from ..rollouts.conftest import make_engine, model, tokenizer

__all__ = ["make_engine", "model", "tokenizer"]

CALLS = (
    """{%- for c in m.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}"""
    """{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{%- endfor %}"""
)
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {"name": "calc", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
}


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file with the module's `OWN_CODE`."""
    path = tmp_path / "own_code.py"
    path.write_text(request.module.OWN_CODE)
    return str(path)
