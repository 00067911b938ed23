"""Chat templates that leave the thinking out of earlier turns, changed so that they keep it.

With such a template a conversation does not only grow: what the policy has written is written differently later on.
Qwen3 and its kin do that with a few expressions, which are replaced here. Everything else of a template stays as it is,
so its prompts are those that the model knows. Where the beginning of the policy's turn opens or fills its thinking, the
history lacks that, and no expression that could be replaced would write it.
"""

from __future__ import annotations

import re

_EDITS = (
    # A turn is taken apart into thinking and answer. Left whole, it is written as the policy wrote it.
    (re.compile(r"""(\bif\s+)((["'])</think>\3\s+in\s)"""), r"\1false and \2"),
    # Thinking is only written in turns after the last question.
    (re.compile(r"\bloop\.index0\s*>=?\s*(?:ns\.)?last_(?:user|query)_index\b"), "true"),
    # Only in the last turn there is an empty place for thinking.
    (re.compile(r"\bloop\.last\s+or\s+\(\s*not\s+loop\.last\s+and\s+(\w+)\s*\)"), r"\1"),
)


def keep_thinking(template: str) -> str:
    """The template without what leaves out thinking; the same text if there is nothing that is known to do that."""
    for expression, replacement in _EDITS:
        template = expression.sub(replacement, template)
    return template
