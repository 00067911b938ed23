"""Write the pages that are made from presets and from tests (part of `make docs`).

python tools/made_pages.py     # docs/papers.md and docs/families.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from burnish.config.presets import PRESETS, Preset
from burnish.config.yaml_text import dump_yaml
from burnish.types import Json

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NEEDS: Mapping[str, Mapping[str, Json]] = {
    "opd": {"teacher": "Qwen/Qwen2.5-7B-Instruct"},
    "gdpo": {"rewards": ["math", {"name": "length", "options": {"maximum": 512}}]},
    "tldr_2020": {"rewards": "model:runs/rm"},
}
"""Fields that a preset cannot do without, besides a model, data and a reward."""

_PAPERS = """\
# The index of papers

One run file for each preset, with the settings of its paper spelled out. Model, data and reward are examples. A
setting that is not listed has this library's [default](configuration.md), not the paper's: above all the learning
rate and the sizes of a step, which the papers choose for their models. A test plans every run file. `burnish
algorithms NAME` shows the formulas.

Made by `python tools/made_pages.py`.
"""

_FAMILIES = """\
# Families of models that are tested

Every family below is built with a few thousand random parameters, and samples and trains in the tests. Each response
must have the log-probabilities that the model gives the text alone, within 1e-4 nats: while rows enter and leave the
batch, in micro-batches and in one pass, packed where the model can (`tests/integration/test_architectures.py`). That
says nothing about the weights of a certain model, its chat template or its size. A family that is not listed may
work: the first step of a run compares sampler and trainer, and an alarm says if they disagree.

Made by `python tools/made_pages.py`.
"""


def run_data(preset: Preset) -> dict[str, Json]:
    """Make the run file of a preset, as plain data."""
    data: dict[str, Json] = {
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "data": {"train": "train.jsonl", "chat": "always"},
        "rewards": "math",
        **NEEDS.get(preset.name, {}),
        "algorithm": {"preset": preset.name},
        "steps": 100,
    }
    for path, value in preset.values.items():
        *sections, field = path.split(".")
        place = data
        for section in sections:
            place = place.setdefault(section, {})  # type: ignore[assignment]
        place[field] = value
    return data


def papers_page() -> str:
    """Make the page with a run file for each preset."""
    parts = [_PAPERS]
    for preset in PRESETS.values():
        parts.append(f"## {preset.name}\n\n{preset.summary} Source: <{preset.source}>\n")
        parts.append(f"```yaml\n{dump_yaml(run_data(preset))}```\n")
    return "\n".join(parts)


def families_page() -> str:
    """Make the page with the families of the tests, and those that are refused."""
    return "\n".join([_FAMILIES, *_families()]) + "\n"


def _families() -> Iterator[str]:
    sys.path[:0] = [str(ROOT / "tests" / name) for name in ("integration", "support")]
    from test_architectures import REFUSED, ZOO

    yield "| family (`model_type`) | tested as |"
    yield "|---|---|"
    for model_type in sorted({model_type for model_type, _ in ZOO.values()}):
        yield f"| `{model_type}` | {', '.join(name for name, (of, _) in ZOO.items() if of == model_type)} |"
    yield ""
    yield f"Refused with the reason, before anything is sampled, in the settings of the test: {', '.join(REFUSED)}."


if __name__ == "__main__":
    (DOCS / "papers.md").write_text(papers_page(), encoding="utf-8")
    (DOCS / "families.md").write_text(families_page(), encoding="utf-8")
