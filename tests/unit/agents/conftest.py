"""The engines and models that the tests of rollouts sample with, and how a template writes calls."""

from typing import Any

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
