"""The configuration page of the documentation, generated from the classes.

`python -m burnish.config.reference docs/configuration.md` writes it; a test compares the committed page with it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from burnish.config import fields
from burnish.config.kinds import all_kinds
from burnish.config.presets import Preset

_INTRODUCTION = """# Configuration

<!-- Written by `make docs` from src/burnish/config/schema*.py. Change the docstrings there, not this page. -->

A run is one YAML file. Only `model`, `data` and (for `burnish rl`) `rewards` are required:

```yaml
output: runs/first
model: path/to/model            # short for  model: {path: path/to/model}
data:
  train: train.jsonl            # short for  train: [{path: train.jsonl}]
  eval: held_out.jsonl
rewards: math                   # short for  rewards: [{name: math}]
algorithm: grpo                 # short for  algorithm: {preset: grpo}
rollout: {prompts_per_step: 16, group_size: 8, max_response_tokens: 256}
```

**Layers.** Values come from the defaults, then the preset named by `algorithm.preset` (in a file of `burnish rm`:
`preset`), then the file, then `key.path=value` on the command line; later layers win. `burnish plan FILE` prints every
value and its layer. A list replaces the whole earlier list; change one entry by its number (`rewards.0.weight=2`).
`kl_in: none` or `kl_coef: 0` in the file drops all of the preset's KL settings, and `truncate_token: null` drops all
of its rules about truncated responses.

**Paths.** Relative paths, both in the file and on the command line, start at the folder where you run the command.

**Values.** `1e-6` is a number. `yes`/`no`/`on`/`off` are booleans where a boolean is expected, and text elsewhere.
Text is never converted to a number. An unknown key is an error that names the nearest known one; a repeated key is an
error too.

**Sizes.** One step draws `prompts_per_step` prompts and samples `group_size` responses to each. It trains on these
`prompts_per_step x group_size` responses in `epochs` passes of `minibatches` optimizer steps each. The responses to one
prompt are in the same minibatch if they fit (`optimization.shuffle`). `tokens_per_microbatch` only sets how much is
computed at once; it never changes a result.
"""


def reference_page() -> str:
    """The whole page as Markdown."""
    first, *others = all_kinds()
    listed = [section for _, section in _sections(first.section, "")]
    parts = [_INTRODUCTION, _kinds(), f"## Run files of `burnish {first.name}`"]
    parts += [_section(path, section) for path, section in _sections(first.section, "")]
    for kind in others:
        own = [(path, section) for path, section in _sections(kind.section, "") if not path or section not in listed]
        parts += [f"## Run files of `burnish {kind.name}`"]
        parts += [f"Sections not listed here are the same as for `burnish {first.name}`."]
        parts += [_section(path, section, kind.section.refused) for path, section in own]
    parts += [_presets()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _kinds() -> str:
    lines = ["| command | from Python | trains |", "|---|---|---|"]
    lines += [f"| `burnish {one.name}` | `burnish.{one.function}` | {one.trains} |" for one in all_kinds()]
    return "\n".join(["## Kinds of runs", "", *lines])


def _sections(section: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """The section and all sections inside it, with their dotted paths; each class once."""
    found = [(path, section)]
    for field in fields.all_fields(section):
        inner, many = fields.inner_section(field.annotation)
        if inner is not None:
            found.append((f"{field.path}.{many}" if many else field.path, inner))
    seen: dict[type[BaseModel], str] = {}
    for where, inner in found:
        seen[inner] = f"{seen[inner]}`, `{where}" if inner in seen else where
    for inner, where in seen.items():
        yield where, inner


def _section(path: str, section: type[BaseModel], refused: Collection[str] = ()) -> str:
    """The section with its fields. refused: dotted paths of fields to leave out."""
    title = f"### `{path}`" if path else "### Top level"
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    meanings = _docstrings(section)
    rows += [
        _row(name, annotation, section.model_fields[name], meanings.get(name))
        for name, annotation in fields.field_annotations(section).items()
        if ".".join(filter(None, (path, name))) not in refused
    ]
    return "\n\n".join((title, inspect.cleandoc(section.__doc__ or ""), "\n".join(rows)))


def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the fields of a section, by field. Pydantic could read them too, but would do so in every
    command that imports the class."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__[: section.__mro__.index(BaseModel)]):
        for declared, below in pairwise(ast.walk(ast.parse(inspect.getsource(base)))):
            match declared, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found


def _row(name: str, annotation: object, info: FieldInfo, meaning: str | None) -> str:
    inner, _ = fields.inner_section(annotation)
    if meaning is None and inner is not None:
        meaning = inspect.cleandoc(inner.__doc__ or "").partition("\n")[0]
    cells = (f"`{name}`", fields.describe(annotation), _default(info), meaning or "")
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    return f"`{_plain(value)}`"


def _plain(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple() | list():
            return "[" + ", ".join(_plain(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in value.items()) + "}"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _presets() -> str:
    said = ["The values that `algorithm: NAME` sets. Everything else keeps its default."]
    lines = ["## Presets"]
    for kind in all_kinds():
        if kind.section.presets:
            field = kind.section.preset_field
            said = said or [f"The values that `{field}: NAME` sets in a run file of `burnish {kind.name}`:"]
            lines += ["", said.pop(), "", *_preset_table(kind.section.presets)]
    return "\n".join(lines)


def _preset_table(presets: Mapping[str, Preset]) -> list[str]:
    lines = ["| preset | what it is | sets |", "|---|---|---|"]
    for preset in presets.values():
        values = ", ".join(
            f"`{key.removeprefix('algorithm.')}: {_plain(value)}`" for key, value in preset.values.items()
        )
        lines.append(f"| [`{preset.name}`]({preset.source}) | {preset.summary} | {values} |")
    return lines


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference_page(), encoding="utf-8")
