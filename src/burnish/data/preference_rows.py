"""Read and check one comparison: chosen and rejected, candidates with the best marked, token ids, or one response that
is rated good or bad."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from burnish.data.conversations import (
    in_context,
    messages_at,
    parsed,
    prompt_content,
    text_or_turns,
    tools_at,
    without_last_answer,
)
from burnish.data.loaded_sources import LoadedSource
from burnish.data.rows import Row, common_length, describe, lookup, number_of, value_at, weight_at, wrong_value
from burnish.errors import DataError
from burnish.types import Message, Tokenizer

Tokens = tuple[int, ...]
Text = str | tuple[Message, ...]
Tools = tuple[Mapping[str, Any], ...]

_ASSISTANT = "\n\nAssistant:"
_TURN = re.compile(r"\n\n(Human|Assistant):")
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}


class BadRow(DataError):
    """A row whose responses cannot be compared. If such rows are dropped, they are counted by `reason`."""

    def __init__(self, where: str, what: str, reason: str) -> None:
        super().__init__(
            f"{where}: {what}", remedy="fix or remove the row, or set bad_rows: drop to leave such rows out"
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PreferenceRules:
    """Requirements on every row. `candidates`: responses per row; None until the first row has set it."""

    candidates: int | None = None
    tokenizer: Tokenizer | None = None
    label_pad_token_id: int | None = None

    def after(self, row: PreferenceRow) -> PreferenceRules:
        """The rules for the rows after `row`: they must have the same number of candidates."""
        return self if self.candidates is not None else replace(self, candidates=len(row.responses))


@dataclass(frozen=True, slots=True)
class PreferenceRow:
    """A checked row. Prompt and responses are text, messages, or (label files) token ids. good: the rating of a single
    response; None of comparisons."""

    id: str
    where: str
    prompt: Text | Tokens
    responses: tuple[Text, ...] | tuple[Tokens, ...]
    best: int
    margin: float | None
    tie: bool
    domain: str
    is_tokens: bool = False
    tools: Tools = ()
    weight: float = 1.0
    good: bool | None = None


def read_row(loaded: LoadedSource, row_id: str, row: Row, rules: PreferenceRules) -> PreferenceRow:
    """The comparison in a row. Raises DataError, with file and line, if the row is not a comparison."""
    if loaded.reading.schema == "token_labels":
        read = _token_labels(loaded, row_id, row, rules)
    else:
        reader = {"candidates": _candidates, "rated": _rated}.get(loaded.reading.schema, _pair)
        read = reader(loaded, row_id, row)
    _check_count(read, rules)
    _check_responses(read)
    return read


def _pair(loaded: LoadedSource, row_id: str, row: Row) -> PreferenceRow:
    chosen, rejected = _chosen_and_rejected(loaded, row)
    if chosen == rejected:
        raise BadRow(row.where, "chosen and rejected are identical", "with identical responses")
    return _row(loaded, row_id, row, *_split_pair(loaded, row, chosen, rejected), 0)


def shared_prompt(loaded: LoadedSource, row: Row) -> tuple[Text, bool]:
    """The prompt of a row in the layout `preference`, read exactly as for a comparison, and whether its responses are
    turns.

    The responses may be empty or equal, because nothing is learned from them. DataError if there is no prompt.
    """
    chosen, rejected = _chosen_and_rejected(loaded, row)
    if chosen == rejected and isinstance(chosen, str) and _ASSISTANT not in chosen and not has_prompt(loaded):
        raise DataError(
            f"{row.where}: chosen and rejected are the same text, so it is unclear where the prompt ends",
            remedy="remove the row, or name the prompt's column (columns: {prompt: ...})",
        )
    return _split_pair(loaded, row, chosen, rejected)[0], not isinstance(chosen, str)


def _chosen_and_rejected(loaded: LoadedSource, row: Row) -> tuple[Text, Text]:
    roles = loaded.reading.roles
    chosen, rejected = (_text_or_messages(row, roles[role], role) for role in ("chosen", "rejected"))
    if isinstance(chosen, str) is not isinstance(rejected, str):
        raise DataError(
            f"{row.where}: chosen is {_kind(chosen)}, rejected is {_kind(rejected)}", remedy="write both the same way"
        )
    return chosen, rejected


def has_prompt(loaded: LoadedSource) -> bool:
    """True if a comparison has a column for its prompt, which is otherwise the common beginning of its responses."""
    return loaded.source.prompt_template is not None or not {"prompt", "messages"}.isdisjoint(loaded.reading.roles)


def _split_pair(loaded: LoadedSource, row: Row, chosen: Text, rejected: Text) -> tuple[Text, tuple[Text, Text]]:
    """The prompt, and the two responses without it."""
    prompt = _explicit_prompt(loaded, row) if has_prompt(loaded) else None
    if not isinstance(chosen, str) and chosen[0].role != "assistant":
        if prompt is not None:  # both conversations hold it themselves
            _check_held(prompt_content(row, loaded.reading.roles, loaded.source.prompt_template), chosen, row.where)
        prompt = None
    if prompt is None:
        prompt, chosen, rejected = _common_prompt(chosen, rejected, row.where)
        prompt = in_context(prompt, row, loaded.reading.roles, loaded.source.system_prompt)
    return prompt, (chosen, rejected)


def _check_held(asked: Text, conversation: Sequence[Message], where: str) -> None:
    """Raise DataError for a prompt with a turn that the conversation lacks."""
    held = {turn.content.strip() for turn in conversation}
    lacking = next((turn for turn in without_last_answer(as_turns(asked)) if turn.content.strip() not in held), None)
    if lacking is not None:
        raise DataError(
            f"{where}: chosen and rejected are whole conversations, but neither has the prompt's {lacking.role} turn "
            f"{describe(lacking.content)}",
            remedy="remove the prompt (its column or prompt_template), or keep only the answers in chosen and rejected",
        )


def _candidates(loaded: LoadedSource, row_id: str, row: Row) -> PreferenceRow:
    roles = loaded.reading.roles
    values = value_at(row, roles["responses"], role="responses")
    if isinstance(values, str):
        values = parsed(values, row, roles["responses"], "responses")
    if not isinstance(values, list) or not values:
        remedy = "each row needs a list of candidate responses"
        raise wrong_value(row, roles["responses"], "responses", values, "a list", remedy=remedy)
    responses = tuple(text_or_turns(value, row, roles["responses"], role="responses") for value in values)
    prompt = _explicit_prompt(loaded, row)
    best = _best(number_of(row, value_at(row, roles["best"], role="best")), len(responses), row.where)
    return _row(loaded, row_id, row, prompt, responses, best)


def _rated(loaded: LoadedSource, row_id: str, row: Row) -> PreferenceRow:
    """A prompt, one response and whether it is good: `prompt`, `completion`, `label`, or a conversation and `label`."""
    roles = loaded.reading.roles
    good = number_of(row, value_at(row, roles["label"], role="label"))
    if good not in (True, False) or not isinstance(good, (bool, int)):
        remedy = "write true for a response that should become more likely, false for one that should not"
        raise wrong_value(row, roles["label"], "label", good, remedy=remedy)
    prompt = _explicit_prompt(loaded, row)
    if "completion" in roles:
        response = _text_or_messages(row, roles["completion"], "completion")
    else:
        whole = messages_at(row, roles["messages"])
        response = tuple(whole[len(without_last_answer(whole)) :])
    read = _row(loaded, row_id, row, prompt, (response,), 0)
    return replace(read, good=bool(good))


def _token_labels(loaded: LoadedSource, row_id: str, row: Row, rules: PreferenceRules) -> PreferenceRow:
    """`query`, `sample0` .. `sampleN`, `best` (https://arxiv.org/abs/1909.08593)."""
    prompt = _token_ids(row, "query", rules)
    names = sorted(
        (n for n in row.values if re.fullmatch(r"sample\d+", n)), key=lambda n: int(n.removeprefix("sample"))
    )
    if names != [f"sample{number}" for number in range(len(names))]:
        raise DataError(f"{row.where}: the samples are {', '.join(names)}", remedy="number them from sample0")
    responses = tuple(_token_ids(row, name, rules) for name in names)
    best = _best(value_at(row, "best", role="best"), len(responses), row.where)
    if not prompt:
        raise BadRow(row.where, "query is empty", "with an empty prompt")
    domain = loaded.domain_of(row)
    return PreferenceRow(row_id, row.where, prompt, responses, best, None, False, domain, is_tokens=True)


def _token_ids(row: Row, name: str, rules: PreferenceRules) -> Tokens:
    values = value_at(row, name, role=name)
    if not isinstance(values, list) or any(not isinstance(v, int) or isinstance(v, bool) or v < 0 for v in values):
        raise DataError(
            f"{row.where}: column {name!r} holds {describe(values)}, not a list of token ids", remedy="fix the row"
        )
    kept = tuple(value for value in values if value != rules.label_pad_token_id)
    size = None if rules.tokenizer is None else len(rules.tokenizer)
    unknown = [] if size is None else [token for token in kept if token >= size]
    if unknown:
        raise DataError(
            f"{row.where}: column {name!r} holds the token id {unknown[0]}, but the tokenizer has {size:,} tokens",
            remedy=f"set label_pad_token_id: {unknown[0]} if that is the file's padding, otherwise use the tokenizer "
            "that the labels were made with",
        )
    return kept


def _row(
    loaded: LoadedSource, row_id: str, row: Row, prompt: Text, responses: tuple[Text, ...], best: int
) -> PreferenceRow:
    roles = loaded.reading.roles
    margin = _margin(row, roles["margin"]) if "margin" in roles else None
    tie = _tie(row, roles["tie"]) if "tie" in roles else False
    weight = weight_at(row, roles["weight"], may_be_zero=False) if "weight" in roles else 1.0
    domain, tools = loaded.domain_of(row), tools_at(row, roles)
    return PreferenceRow(row_id, row.where, prompt, responses, best, margin, tie, domain, tools=tools, weight=weight)


def _best(value: Any, count: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise DataError(
            f"{where}: best is {describe(value)}, but the {count} candidates are numbered 0 to {count - 1}",
            remedy="best must be the number of a candidate, counted from 0",
        )
    return value


def _margin(row: Row, column: str) -> float | None:
    value = number_of(row, lookup(row.values, column, None))
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        remedy = "a margin is a number of at least 0 that says by how much the chosen response is better"
        raise wrong_value(row, column, "margin", value, remedy=remedy)
    return float(value)


def _tie(row: Row, column: str) -> bool:
    value = number_of(row, lookup(row.values, column, None))
    if value not in (True, False, None):
        raise wrong_value(row, column, "tie", value, remedy="write true or false")
    return bool(value)


def _explicit_prompt(loaded: LoadedSource, row: Row) -> Text:
    """The prompt of a source that has a column for it."""
    source, roles = loaded.source, loaded.reading.roles
    prompt = prompt_content(row, roles, source.prompt_template)
    if "messages" in roles and not isinstance(prompt, str):
        prompt = without_last_answer(prompt)  # the answers are the responses to compare
    if not (prompt.strip() if isinstance(prompt, str) else prompt):
        raise BadRow(row.where, "the prompt is empty", "with an empty prompt")
    return in_context(prompt, row, roles, source.system_prompt)


def _text_or_messages(row: Row, column: str, role: str) -> Text:
    return text_or_turns(value_at(row, column, role=role), row, column, role=role)


def _common_prompt(chosen: Text, rejected: Text, where: str) -> tuple[Text, Text, Text]:
    """Return (prompt, chosen, rejected), with the common beginning of both, which are written the same way, as the
    prompt. In conversations it ends before the first turn that differs."""
    if isinstance(chosen, str):
        end = _end_of_common_text(chosen, rejected)
    else:
        # An answer of the assistant that both share belongs to the responses: a prompt ends with the other side's turn.
        end = len(without_last_answer(chosen[: common_length(chosen, rejected)]))
    if end == 0:
        raise DataError(
            f"{where}: chosen and rejected have no common beginning that could be the prompt",
            remedy="name the column of the prompt (columns: {prompt: ...}), or fix the row",
        )
    return chosen[:end], chosen[end:], rejected[end:]


def _end_of_common_text(chosen: str, rejected: Text) -> int:
    """The character at which a common prompt ends, 0 if there is none: in transcripts with the last common
    `Assistant:`, in plain text after the last common white space, so that no word is split."""
    shared = chosen[: common_length(chosen, rejected)]
    if _ASSISTANT in chosen:
        return shared.rfind(_ASSISTANT) + len(_ASSISTANT) if _ASSISTANT in shared else 0
    end = max((i for i, character in enumerate(shared) if character.isspace()), default=0)
    return end if shared[:end].strip() else 0


def transcript_messages(text: str) -> tuple[Message, ...]:
    """The turns of a `\\n\\nHuman: ...\\n\\nAssistant: ...` transcript, without an empty last turn."""
    parts = _TURN.split(text)
    turns = [Message(_SPEAKERS[who], text.strip()) for who, text in zip(parts[1::2], parts[2::2], strict=True)]
    return tuple(turns[:-1] if turns and not turns[-1].content else turns)


def is_transcript(text: str) -> bool:
    """Return whether the text is a transcript that ends with an open turn of the assistant."""
    return _TURN.match(text) is not None and text.rstrip().endswith(_ASSISTANT.strip())


def as_turns(prompt: Text) -> tuple[Message, ...]:
    """The prompt as a conversation: a transcript's turns; other text is one turn of the user."""
    if not isinstance(prompt, str):
        return prompt
    return transcript_messages(prompt) if is_transcript(prompt) else (Message("user", prompt),)


def first_question(prompt: Text) -> str:
    """The first question of a conversation. Rows that share it stay together when data are split."""
    if isinstance(prompt, str):
        turns = transcript_messages(prompt) if is_transcript(prompt) else ()
        return _normalised(turns[0].content if turns else prompt)
    asked = [message.content for message in prompt if message.role != "system"]
    return _normalised(asked[0] if asked else "")


def _normalised(text: str) -> str:
    return " ".join(text.casefold().split())


def _check_count(read: PreferenceRow, rules: PreferenceRules) -> None:
    count, wanted = len(read.responses), rules.candidates
    if count < 2 and read.good is None:
        raise DataError(f"{read.where}: {count} candidates; a comparison needs two", remedy="fix or remove the row")
    if wanted is not None and count != wanted:
        raise DataError(
            f"{read.where}: {count} candidates, but {wanted} are expected (from `candidates`, or the rows before)",
            remedy="give every row the same number of candidates, or put the others into a separate source",
        )


def _check_responses(read: PreferenceRow) -> None:
    for number, response in enumerate(read.responses):
        if not (response.strip() if isinstance(response, str) else any(map(_has_content, response))):
            raise BadRow(read.where, f"{_name(read, number)} is empty", "with an empty response")
    others = [r for number, r in enumerate(read.responses) if number != read.best]
    if read.responses[read.best] in others and not read.tie:
        what = f"the best response (number {read.best}) is also among the others"
        raise BadRow(read.where, what, "with identical responses")


def _has_content(part: Message | int) -> bool:
    """Return whether a part of a response is a token id, or a message with text or a tool call."""
    return isinstance(part, int) or bool(part.content.strip() or part.tool_calls)


def _name(read: PreferenceRow, number: int) -> str:
    if len(read.responses) == 2 and not read.is_tokens:
        return ("the chosen response", "the rejected response")[number != read.best]
    return f"response {number}"


def _kind(value: Text) -> str:
    return "text" if isinstance(value, str) else "a list of messages"
