"""Find values that look like keys, tokens and passwords, and mask them wherever they would be written.

A secret is recognised in two ways: by its name (only where users choose names: in all kinds of `options` and on the
command line) and by its form (`hf_...`, `sk-...`, an address with a password; everywhere). A masked value includes a
salted, slow hash of the real one, so that a resumed run can tell whether it was given the same one again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import overload

from burnish.errors import ConfigError
from burnish.types import Json

MASK = "(masked)"

_ROUNDS = 100_000
_MASKED = re.compile(r"\(masked:([0-9a-f]{16}):([0-9a-f]{32})\)")
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = frozenset(
    {"password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials"}
    | {"apikey", "apikeys", "apitoken", "authtoken", "accesstoken", "secretkey", "accesskey", "privatekey"}
    | {"authorization", "bearer"}
)
_OFTEN = frozenset({"key", "keys", "token", "tokens"})
_TEXT_WORDS = """
pad bos eos unk sep cls mask begin end start stop truncate special image audio video think thinking answer turn
assistant response prompt column columns row rows field fields sort primary foreign label index max min num
"""
_OF_TEXT = frozenset(_TEXT_WORDS.split())
"""Words that mark a token of text or a key of a table, as opposed to a credential: `pad_token`, `answer_key`."""
_SPECIAL = re.compile(r"\s*(<[^>]*>|\[[A-Z_]+\]|\W*)\s*")  # `</s>`, `[PAD]`, a full stop

_SURE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|gh[opusr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[\w-]{16,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\b[A-Za-z][\w+.-]*://[^\s/@:]*:[^\s/@]+@"
    r"|[?&](?i:[\w.-]*(?:key|token|passw(?:or)?d|pwd|secret|sig|signature|auth|credentials?|code))=[^&\s]{3,}"
    r"|\b[Bb]earer [\w.~+/-]{8,}"
)
"""Forms that only secrets have, anywhere in a value."""
_QUERY = re.compile(r"(\b[A-Za-z][\w+.-]*://[^\s?'\"]+)[?][^\s'\")>\]]+")
_GIVEN = re.compile(r"(?<![\w.-])(-{1,2}[\w-]+|[\w.-]+(?==))((?:=|['\"]?,? +)['\"]?)([^\s'\",;)\]}]+)")
"""A name, what stands between it and its value, and the value: `--key abc`, `'--key', 'abc'`, `a.api_key=abc`."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,49}|[A-Za-z_]+")
_LIKELY = re.compile(r"(?:hf_|sk-|gh[opusr]_|AKIA|ASIA)(?=[\w-]*[0-9])[\w-]{6,}")
"""Forms of complete values that are very likely secrets, used only where users choose names."""


@overload
def masked(data: dict[str, Json], *, place: str = "", hashed: bool = False) -> dict[str, Json]: ...
@overload
def masked(data: Json, *, place: str = "", hashed: bool = False) -> Json: ...
def masked(data: Json, *, place: str = "", hashed: bool = False) -> Json:
    """Plain data with `(masked)` in place of anything that looks like a secret; with `hashed`, in the form that
    `same_secret` can compare. `place` is the data's dotted path in a run file."""
    return _masked(data, tuple(place.split(".")), hashed=hashed)


def hidden(text: str) -> str:
    """A text for the screen, with secrets masked: in any of their forms, as values of options that are named like
    secrets, and the query (after `?`) of an address."""
    text = _QUERY.sub(rf"\1?{MASK}", text)
    return _SURE.sub(MASK, _GIVEN.sub(_hidden_value, text))


def _hidden_value(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    return f"{name}{between}{MASK}" if _named_secret(name, int(value) if value.isdecimal() else value) else found[0]


def hidden_name(name: str) -> str:
    """The name of an environment variable for the screen; masked if it is more like what the variable should hold."""
    looks_right = _VARIABLE.fullmatch(name) and not (_SURE.search(name) or _LIKELY.fullmatch(name))
    return name if looks_right else MASK


def key_in(variable: str | None, field: str, also: str = "") -> str | None:
    """The key of an endpoint that an environment variable holds; None without a variable. ConfigError, which does not
    show it, if the variable is not set or its value cannot be part of a header. field: names the variable.
    also: what else is to be done."""
    if variable is None:
        return None
    key, shown = os.environ.get(variable, "").strip(), hidden_name(variable)
    if not key or not key.isascii() or not key.isprintable():  # the HTTP library would repeat it in its own error
        wrong = "has a line break or other characters that a key cannot have" if key else "is not set"
        remedy = f"export {shown}=... where the run is started: the key alone, on one line and in ASCII{also}"
        raise ConfigError(f"{field} names {shown}, which {wrong}", remedy=remedy)
    return key


def masked_command(words: Sequence[str]) -> list[str]:
    """A command line with its secrets masked: `key.path=value`, `--name value`, `--name=value` and bare values."""
    return [MASK if _follows_flag(words, index) else _masked_word(word) for index, word in enumerate(words)]


def masked_yaml(text: str) -> str:
    """The text of a YAML or JSON file in a form that can be shared: without secrets and without their hashes."""
    from burnish.config.yaml_text import dump_yaml  # imported here because workers need this module but not YAML

    data = _parsed(text)
    if data is None:
        return _SURE.sub(MASK, _MASKED.sub(MASK, text))
    hidden = masked(data)
    shown = text if hidden == data else dump_yaml(hidden)
    return _MASKED.sub(MASK, shown)


def masked_places(data: object, path: str = "") -> Iterator[str]:
    """Dotted paths of the values that were masked when the data was written."""
    if isinstance(data, str) and is_masked(data):
        yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, (list, tuple)) else ()
    for key, item in items:
        yield from masked_places(item, f"{path}.{key}" if path else str(key))


def is_masked(value: str) -> bool:
    """Return whether this text is a mask in place of a secret."""
    return value == MASK or _MASKED.fullmatch(value) is not None


def same_secret(mask: str, value: object) -> bool:
    """Return whether `mask` was written for this value."""
    found = _MASKED.fullmatch(mask)
    return found is not None and _digest(bytes.fromhex(found[1]), value) == found[2]


def restored(before: Json, now: Json) -> Json:
    """`before`, with each mask replaced by the value in `now` if the mask was written for that value."""
    if isinstance(before, str):
        return now if same_secret(before, now) else before
    if isinstance(before, dict) and isinstance(now, dict):
        return {key: restored(item, now.get(key)) for key, item in before.items()}
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [restored(left, right) for left, right in zip(before, now, strict=True)]
    return before


def _masked(value: Json, path: tuple[str, ...], *, hashed: bool) -> Json:
    if isinstance(value, dict):
        return {key: _masked(item, (*path, str(key)), hashed=hashed) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        given = [_follows_flag(value, index) or _holds_secret(item) for index, item in enumerate(value)]
        paths = [(*path, "options", "secret") if hide else path for hide in given]
        return [_masked(item, own, hashed=hashed) for item, own in zip(value, paths, strict=True)]
    if isinstance(value, str) and is_masked(value):
        return value if hashed else MASK
    if _is_secret(value, path):
        return _mask(value) if hashed else MASK
    return value


def _follows_flag(words: Sequence[Json], index: int) -> bool:
    """True if a word of a command is the value of a secret: `--api-key abc`."""
    before = words[index - 1] if index else None
    is_flag = isinstance(before, str) and before.startswith("-") and "=" not in before
    return is_flag and _named_secret(str(before), words[index])


def _holds_secret(word: Json) -> bool:
    """True for `--api-key=abc` or `API_KEY=abc`."""
    name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
    return bool(equals) and " " not in name and _named_secret(name, value)


def _is_secret(value: object, path: tuple[str, ...]) -> bool:
    if isinstance(value, str) and _SURE.search(value):
        return True
    free = next((depth for depth, name in enumerate(path) if name == "options" or name.endswith("_options")), None)
    if free is None:
        return False
    if isinstance(value, str) and _LIKELY.fullmatch(value):
        return True
    return any(_named_secret(name, value) for name in path[free + 1 :])


def _named_secret(name: str, value: object) -> bool:
    """Return whether a value with this name is a secret, judging by the name."""
    if value is None or isinstance(value, bool) or value == "":
        return False
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    if not _ALWAYS.isdisjoint(words):
        return True
    if not isinstance(value, str) or _OFTEN.isdisjoint(words[-1:]) or _SPECIAL.fullmatch(value):
        return False
    return _OF_TEXT.isdisjoint(words)


def _masked_word(word: str) -> str:
    name, equals, text = word.partition("=")
    if equals and not _SURE.search(name):
        last = name.rpartition(".")[2]
        value = _parsed(text)
        if isinstance(value, (dict, list)):
            hidden = masked(value, place=name)
            return word if hidden == value else f"{name}={json.dumps(hidden)}"
        value = text if value is None else value
        hide = _named_secret(last, value) or (isinstance(value, str) and _LIKELY.fullmatch(value))
        return f"{name}={MASK}" if hide or _SURE.search(text) else word
    return MASK if _SURE.search(word) or _LIKELY.fullmatch(word) else word


def _parsed(text: str) -> Json:
    """The value as a run file would read it; None if it is not valid YAML."""
    import yaml

    from burnish.config.yaml_text import parse_value

    try:
        return parse_value(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _mask(value: object) -> str:
    salt = secrets.token_bytes(8)
    return f"(masked:{salt.hex()}:{_digest(salt, value)})"


def _digest(salt: bytes, value: object) -> str:
    text = json.dumps(value, sort_keys=True).encode()
    return hashlib.pbkdf2_hmac("sha256", text, salt, _ROUNDS, dklen=16).hex()
