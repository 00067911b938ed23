"""The options of a multiple-choice row, and which of them is right.

Recognised: a list of texts (MMLU), a list of texts that begin with their own letters (AQuA: `A)21`), `text` and `label`
as two lists (ARC, CommonsenseQA, OpenBookQA), and an object from labels to texts (MedQA); each also as JSON text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.rewards.builtins.reading_rows import NoScoreError, parsed

OPTION_COLUMNS = ("choices", "options")
_OWN_LABEL = re.compile(r"\s*\(?([A-Z])[).:]\s*(.*)", re.DOTALL)
_ONLY_LABEL = re.compile(r"[\s(\[]*(\w+)[\s)\].:]*")


@dataclass(frozen=True, slots=True)
class Question:
    """Options in the order of the prompt: the labels that name them, their texts, and the position of
    the right one, from 0."""

    labels: tuple[str, ...]
    texts: tuple[str, ...]
    gold: int


def question_of_row(columns: Mapping[str, Any], answer: Any, column: str | None = None) -> Question | None:
    """Read the question of a row; None if it has no options or no answer. NoScoreError if they cannot be read.

    column: the column with the options; by default `choices` or `options`.
    """
    names = OPTION_COLUMNS if column is None else (column,)
    name = next((name for name in names if columns.get(name) not in (None, "", [], {})), None)
    if name is None or answer is None or answer == "":
        return None
    value = columns[name]
    is_json = isinstance(value, str) and value.lstrip()[:1] in ("[", "{")
    labels, texts = _options(parsed(value, name) if is_json else value, name)
    return Question(labels, texts, _position(answer, labels, texts))


def _options(value: Any, column: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Labels and texts of the options."""
    if isinstance(value, Mapping) and isinstance(value.get("text"), (list, tuple)):
        labels, texts = value.get("label"), _texts(value["text"], column)
        labels = _letters(len(texts), column) if labels is None else _texts(labels, column)
    elif isinstance(value, Mapping):
        labels, texts = _texts(list(value), column), _texts(list(value.values()), column)
    else:
        texts = _texts(value, column)
        labels = _letters(len(texts), column)
        owned = [_OWN_LABEL.fullmatch(text) for text in texts]
        if [own and own[1] for own in owned] == list(labels):
            texts = tuple(own[2].strip() for own in owned if own)
    labels = tuple(label.upper() for label in labels)
    if len(labels) != len(texts) or len(set(labels)) != len(labels) or len(texts) < 2:
        raise NoScoreError(f"column {column!r} needs two or more options, each with its own label")
    if not any(texts):  # all would read alike, and every answer would be right
        raise NoScoreError(f"all options in the column {column!r} are empty; give them their texts")
    return labels, texts


def _texts(value: Any, column: str) -> tuple[str, ...]:
    plain = (str, int, float)
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, plain) for one in value):
        raise NoScoreError(f"column {column!r} must be a list of options, or an object with the lists text and label")
    return tuple(" ".join(str(one).split()) for one in value)


def _letters(count: int, column: str) -> tuple[str, ...]:
    if count > len(string.ascii_uppercase):
        raise NoScoreError(f"column {column!r} has {count} options and no labels; letters are enough for 26")
    return tuple(string.ascii_uppercase[:count])


def _position(answer: Any, labels: tuple[str, ...], texts: tuple[str, ...]) -> int:
    """Position of the right option: a number counts from 0, a text is a label, else the text of an option."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        if 0 <= answer < len(labels):
            return answer
        raise NoScoreError(f"the answer {answer} is not a position among the {len(labels)} options, counted from 0")
    text = " ".join(str(answer).split())
    bare = _ONLY_LABEL.fullmatch(text)
    if bare and bare[1].upper() in labels:
        return labels.index(bare[1].upper())
    found = [index for index, option in enumerate(texts) if option == text]
    if len(found) != 1:
        many = "several options have this text" if found else "no option has this label or text"
        raise NoScoreError(f"the answer is {text!r:.200}, but {many}; the labels are {', '.join(labels)}")
    return found[0]
