"""Recognition of common data layouts, and the role of each column in them, if the run file does not name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from burnish.config.schema_data import DataSource
from burnish.data.rows import Row, column_names, describe, has_column, hint, lookup
from burnish.errors import DataError

Purpose = Literal["prompts", "examples", "preferences"]

ROLES = (
    *("prompt", "messages", "input", "system", "history", "completion", "text", "answer", "domain", "id"),
    *("chosen", "rejected", "responses", "best", "margin", "tie", "label", "weight", "tools"),
)
# Names of columns, in order of preference.
_MESSAGES = ("messages", "conversations", "conversation")
# Columns that may be the prompt if there is no `prompt`. Exact names only: SVAMP splits its problems into `Body` and
# `Question`, so taking `Question` alone would lose half of each problem.
_QUESTIONS = ("question", "problem", "query", "instruction", "input")
_ANSWERS = ("answer", "ground_truth", "target", "solution", "Answer")
_COMPLETIONS = ("completion", "response", "output", "answer", "solution", "target")
# Roles that only annotate a row or add to its prompt. Naming one in the run file does not change the layout.
_LABELS = {"answer", "domain", "id", "tools", "input", "system", "history"}
_CANDIDATES = ("responses", "candidates", "samples", "completions")
_RATINGS = ("label", "kto_tag", "desirable")


@dataclass(frozen=True, slots=True)
class Reading:
    """The layout of a source: its name, and role -> column."""

    schema: str
    roles: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a source, and what the run file says about them (`claimed`: role -> column)."""

    source: DataSource
    first: Mapping[str, Any]
    names: Sequence[str]
    purpose: Purpose
    claimed: Mapping[str, str]

    def has(self, path: str) -> bool:
        return path in self.names or has_column(self.first, path)

    def pick(self, role: str, candidates: Sequence[str] | None = None) -> dict[str, str]:
        """{role: column}: the one named in the run file, else the first existing candidate (None: the role's own name);
        empty if none exists."""
        if role in self.claimed:
            return {role: self.claimed[role]}
        taken, names = set(self.claimed.values()), (role,) if candidates is None else candidates
        return next(({role: name} for name in names if self.has(name) and name not in taken), {})

    def pick_only(self, role: str, candidates: Sequence[str]) -> dict[str, str]:
        """Like `pick`, but raises DataError if more than one candidate exists."""
        if role not in self.claimed:
            found = [name for name in candidates if self.has(name) and name not in self.claimed.values()]
            if len(found) > 1:
                raise DataError(
                    f"{self.source.path}: {' and '.join(found)} could each be the {role}",
                    remedy=f"set columns: {{{role}: {found[0]}}}, or join them with prompt_template",
                )
        return self.pick(role, candidates)


def recognise(rows: Sequence[Row], source: DataSource, purpose: Purpose) -> Reading:
    """The reading of a source. DataError, with the list of columns, if one is missing or no layout fits."""
    judged = (row.values for row in rows if lookup(row.values, "reward_model.ground_truth", None) is not None)
    columns = _Columns(source, next(judged, rows[0].values), column_names(rows), purpose, source.columns)
    _check_claims(columns)
    schema = source.schema_name if source.schema_name != "auto" else _detect(columns)
    find_roles, needed = _LAYOUTS[schema]
    roles = find_roles(columns)
    if purpose == "examples":
        roles |= columns.pick("weight")
    for role in ("system", "history"):  # many files have these columns and nothing in them
        if role in roles and not any(lookup(row.values, roles[role], None) for row in rows):
            del roles[role]
    roles |= {role: name for role, name in source.columns.items() if role not in roles}
    if source.prompt_template is not None:
        # The template writes the prompt. Keep the role `prompt`: `{prompt}` in the template may mean its column.
        roles.pop("messages", None)
        roles.pop("input", None)
    _check_needed(needed, schema, roles, columns)
    _check_purpose(schema, roles, columns)
    return Reading(schema, {role: roles[role] for role in ROLES if role in roles})


def _check_claims(columns: _Columns) -> None:
    source = columns.source
    for role, name in source.columns.items():
        if role not in ROLES:
            raise DataError(
                f"{source.path}: columns names the unknown role {role!r}{hint(role, ROLES)}",
                remedy=f"roles are {', '.join(ROLES)}",
            )
        if not columns.has(name):
            raise DataError(
                f"{source.path}: no column {name!r} (for {role}); the columns are {', '.join(columns.names)}"
                f"{hint(name, columns.names)}",
                remedy=f"correct columns: {{{role}: ...}}",
            )
    if "prompt" in source.columns and "messages" in source.columns:
        raise DataError(f"{source.path}: columns names both prompt and messages", remedy="keep one of them")
    if source.domain is not None and "domain" in source.columns:
        raise DataError(f"{source.path}: both domain and columns.domain are set", remedy="keep one of them")


def _detect(columns: _Columns) -> str:
    claimed = columns.claimed
    if columns.purpose == "preferences":
        return _detect_comparisons(columns)
    if _is_verl(columns):
        return "verl"
    if columns.has("messages") and columns.has("ground_truth") and not claimed.keys() - _LABELS:
        return "roll"
    asks = {"messages", "prompt"} if columns.purpose == "prompts" else set()  # a pair may have one of these, too
    if _is_pair(columns) and not claimed.keys() & {"messages", "prompt", "text", "completion"} - asks:
        return "preference"
    if "messages" in claimed:
        return "chat"
    if "text" in claimed:
        return "text"
    if claimed.keys() & {"prompt", "completion"}:
        return "prompt_completion" if columns.purpose == "examples" else "prompt"
    return _detect_by_content(columns)


def _detect_comparisons(columns: _Columns) -> str:
    claimed = columns.claimed
    if _is_pair(columns):
        return "preference"
    if columns.has("query") and columns.has("sample0") and not claimed.keys() - _LABELS:
        return "token_labels"
    if "responses" in claimed or any(columns.has(name) for name in _CANDIDATES):
        return "candidates"
    if "label" in claimed or any(columns.has(name) for name in _RATINGS):
        return "rated"
    raise DataError(
        f"{columns.source.path}: the rows are not comparisons; the columns are {', '.join(columns.names) or '(none)'}",
        remedy="a comparison has chosen and rejected, or prompt, responses and best (set columns: {chosen: ...}); a "
        "rated response has prompt, completion and label",
    )


def _is_pair(columns: _Columns) -> bool:
    return bool(columns.claimed.keys() & {"chosen", "rejected"}) or (columns.has("chosen") and columns.has("rejected"))


def _is_verl(columns: _Columns) -> bool:
    if columns.claimed.keys() - _LABELS - {"prompt"} or not (columns.has("prompt") or "prompt" in columns.claimed):
        return False
    judged = columns.first.get("reward_model")
    if isinstance(judged, str) and "ground_truth" in judged and "answer" not in columns.claimed:
        raise DataError(
            f"{columns.source.path}: column 'reward_model' is text, in which the answer cannot be found: "
            f"{describe(judged)}",
            remedy="save the table as JSON lines or Parquet, which keep objects, or set columns: {answer: ...}",
        )
    return lookup(columns.first, "reward_model.ground_truth", None) is not None


def _detect_by_content(columns: _Columns) -> str:
    if found := columns.pick("messages", _MESSAGES):
        if columns.purpose == "examples" and columns.has("completion"):
            raise DataError(
                f"{columns.source.path}: {found['messages']} and completion could each be what to learn",
                remedy=f"set columns: {{messages: {found['messages']}}} for the turns of the conversation, or "
                "{completion: completion} for this answer to it",
            )
        return "chat"
    template = columns.source.prompt_template is not None
    if template or any(columns.has(name) for name in ("prompt", *_QUESTIONS)):
        completed = columns.purpose == "examples" or columns.has("completion")
        return "prompt_completion" if completed else "prompt"
    if columns.has("text"):
        return "text"
    raise DataError(
        f"{columns.source.path}: no known layout; the columns are {', '.join(columns.names) or '(none)'}",
        remedy="name the column of the prompt (columns: {prompt: ..., answer: ...}) or write a prompt_template",
    )


def _prompt_role(columns: _Columns) -> dict[str, str]:
    if "messages" in columns.claimed:
        return {"messages": columns.claimed["messages"]}
    if columns.has("prompt") or "prompt" in columns.claimed:
        return columns.pick("prompt")
    if columns.source.prompt_template is not None:
        return columns.pick("prompt", _QUESTIONS)
    if columns.has("instruction") and columns.has("input") and "input" not in columns.claimed.values():
        asked = columns.pick_only("prompt", [name for name in _QUESTIONS if name != "input"])
        return asked | {"input": "input"}  # Alpaca
    return columns.pick_only("prompt", _QUESTIONS) or columns.pick("messages", _MESSAGES)


def _optional_columns(columns: _Columns) -> dict[str, str]:
    return columns.pick("answer", _ANSWERS) | columns.pick("domain") | _context(columns)


def _context(columns: _Columns) -> dict[str, str]:
    """Columns given with the prompt, unless prompt_template writes them."""
    written = columns.source.prompt_template or ""
    context = (("system", ("system", "system_prompt")), ("history", ("history",)), ("tools", ("tools",)))
    found = (columns.pick(role, [name for name in names if f"{{{name}}}" not in written]) for role, names in context)
    return {role: name for one in found for role, name in one.items()}


def _prompt(columns: _Columns) -> dict[str, str]:
    return _prompt_role(columns) | _optional_columns(columns)


def _prompt_completion(columns: _Columns) -> dict[str, str]:
    if columns.has("completion") or "completion" in columns.claimed:
        completion = columns.pick("completion")
    else:
        completion = columns.pick_only("completion", _COMPLETIONS)
    return _prompt_role(columns) | _optional_columns(columns) | completion


def _chat(columns: _Columns) -> dict[str, str]:
    return columns.pick("messages", _MESSAGES) | _optional_columns(columns)


def _text(columns: _Columns) -> dict[str, str]:
    found = columns.pick("text") | _optional_columns(columns)
    return {role: name for role, name in found.items() if role not in ("system", "history")}  # a document stands alone


def _verl(columns: _Columns) -> dict[str, str]:
    answer = columns.pick("answer", ("reward_model.ground_truth",))
    domain = columns.pick("domain", ("data_source",))
    completion = columns.pick("completion")
    return _prompt_role(columns) | answer | domain | completion | _context(columns)


def _roll(columns: _Columns) -> dict[str, str]:
    messages = columns.pick("messages")
    prompt = columns.pick("prompt") if columns.source.prompt_template is not None else {}
    answer = columns.pick("answer", ("ground_truth",))
    return messages | prompt | answer | columns.pick("domain", ("tag", "domain")) | _context(columns)


def _preference(columns: _Columns) -> dict[str, str]:
    pair = columns.pick("chosen") | columns.pick("rejected")
    shared = columns.pick("prompt")
    if not shared and "\n\nAssistant:" not in str(columns.first.get("chosen")):  # transcripts hold their prompt
        shared = _asked(columns)
    return shared | pair | columns.pick("domain") | _optional_of_comparison(columns) | _context(columns)


def _asked(columns: _Columns) -> dict[str, str]:
    """The prompt of a comparison: one of the usual columns, or a conversation; empty if there is none."""
    found = any(columns.has(name) for name in _QUESTIONS) and not any(columns.has(name) for name in _MESSAGES)
    return _prompt_role(columns) if found or "prompt" in columns.claimed else columns.pick("messages", _MESSAGES)


def _optional_of_comparison(columns: _Columns) -> dict[str, str]:
    """Optional columns of a comparison. They are ignored when rows only serve as prompts."""
    if columns.purpose != "preferences":
        return {}
    return columns.pick("margin") | columns.pick("tie") | columns.pick("weight")


def _candidates(columns: _Columns) -> dict[str, str]:
    prompt = columns.pick("prompt") or _asked(columns)
    marked = columns.pick_only("responses", _CANDIDATES) | columns.pick("best", ("best", "label"))
    return prompt | marked | columns.pick("domain") | _optional_of_comparison(columns) | _context(columns)


def _rated(columns: _Columns) -> dict[str, str]:
    if any(columns.has(name) for name in _MESSAGES) and not columns.has("prompt"):
        answered = columns.pick("messages", _MESSAGES) | columns.pick("completion")
    else:
        answered = _prompt_role(columns) | columns.pick_only("completion", _COMPLETIONS)
    marked = columns.pick("label", _RATINGS) | columns.pick("weight")
    return answered | marked | columns.pick("domain") | _context(columns)


def _token_labels(columns: _Columns) -> dict[str, str]:
    return columns.pick("prompt", ("query",)) | columns.pick("best") | columns.pick("domain")


_LAYOUTS: Mapping[str, tuple[Callable[[_Columns], dict[str, str]], tuple[str, ...]]] = {
    "prompt": (_prompt, ("prompt",)),
    "prompt_completion": (_prompt_completion, ("prompt", "completion")),
    "chat": (_chat, ("messages",)),
    "text": (_text, ("text",)),
    "verl": (_verl, ("prompt", "answer")),
    "roll": (_roll, ("messages",)),
    "preference": (_preference, ("chosen", "rejected")),
    "candidates": (_candidates, ("prompt", "responses", "best")),
    "rated": (_rated, ("prompt", "completion", "label")),
    "token_labels": (_token_labels, ("prompt", "best")),
}
"""Function that finds the columns of each layout, and the roles that it must find."""
_PROMPT_ROLES = ("prompt", "messages", "text")


def _check_needed(needed: Sequence[str], schema: str, roles: Mapping[str, str], columns: _Columns) -> None:
    source = columns.source
    given = {*roles}
    if source.prompt_template is not None:
        given |= {"prompt", "messages"}
    if "messages" in roles:
        given |= {"prompt", "completion"} if schema == "rated" else {"prompt"}
    if columns.purpose == "prompts":
        given.add("completion")  # which a prompt does not need
    for role in (role for role in needed if role not in given):
        raise DataError(
            f"{source.path}: no column for {role} (layout {schema}); the columns are {', '.join(columns.names)}",
            remedy=f"set columns: {{{role}: ...}}" + (", or write a prompt_template" if role == "prompt" else ""),
        )


def _check_purpose(schema: str, roles: Mapping[str, str], columns: _Columns) -> None:
    source = columns.source
    if columns.purpose == "preferences" and schema not in ("preference", "candidates", "rated", "token_labels"):
        raise DataError(
            f"{source.path}: rows of layout {schema} are not comparisons",
            remedy="set schema_name to preference, candidates, rated or token_labels",
        )
    has_prompt = source.prompt_template is not None or any(role in roles for role in _PROMPT_ROLES)
    has_prompt = has_prompt or schema == "preference"  # without a prompt column, both responses begin with the prompt
    if columns.purpose == "prompts" and not has_prompt:
        raise DataError(
            f"{source.path}: rows of layout {schema} have no prompt; the columns are {', '.join(columns.names)}",
            remedy="set columns: {prompt: ...}",
        )
    trains = not {"completion", "messages", "text"}.isdisjoint(roles)  # prompt_template writes over messages
    if columns.purpose == "examples" and not trains:
        raise DataError(
            f"{source.path}: rows of layout {schema} have no completion to train on; the columns are "
            f"{', '.join(columns.names)}",
            remedy="set columns: {completion: ...}, or use prompt-completion, chat or text data",
        )
