"""The model card of a run: what was trained on what, how good it is, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.algorithms.statistics import wilson_interval
from burnish.board.metric_charts import evenly
from burnish.config.preset_values import preset_of
from burnish.config.schema_run import RunConfig
from burnish.config.secrets import masked
from burnish.config.yaml_text import dump_yaml
from burnish.observability.console import number_text, table_of
from burnish.types import Json

_CURVE_ROWS = 12


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Everything that a card tells. versions: by package. held_out_prompts: of the evaluation at `step`; None if they
    were not recorded."""

    name: str
    config: RunConfig
    step: int
    chosen: str
    rows: Sequence[Mapping[str, float]]
    versions: Mapping[str, str]
    held_out_prompts: int | None = None


def model_card(facts: CardFacts) -> str:
    """Write the card as Markdown, with the hub's metadata in front."""
    config, sections = facts.config, []
    method = config.model_dump().get("algorithm", {}).get("preset") or config.kind
    made_by = f"`burnish {config.kind}` of Burnish {facts.versions.get('burnish', '')}"
    begin = f"Trained from `{config.model.path}` by {made_by}, {facts.step} steps ({method}); {facts.chosen}."
    sections.append(f"# {facts.name}\n\n{begin}")
    sections.append("## Evaluation\n\n" + _evaluation(facts))
    sections.append("## Data\n\n" + "\n".join(_data(config)))
    if config.all_rewards:
        rows = [("reward", "weight"), *((one.log_label, f"{one.weight:g}") for one in config.all_rewards)]
        sections.append("## Rewards\n\n" + _table(rows))
    sections.append("## Curve\n\n" + _table(table_of(_spread(facts.rows), verbose=False)))
    sections.append("## Versions\n\n" + _table([("package", "version"), *facts.versions.items()]))
    sections.append("## How to repeat it\n\n" + _repeat(config))
    return _metadata(config, method) + "\n\n".join(sections) + "\n"


def _metadata(config: RunConfig, method: str) -> str:
    data: dict[str, Json] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["burnish", config.kind, *([method] if method != config.kind else [])],
    }
    if not Path(config.model.path).expanduser().exists():
        data["base_model"] = config.model.path
    return f"---\n{dump_yaml(data)}---\n\n"


def _evaluation(facts: CardFacts) -> str:
    """Say how good the model is on held-out data, with an interval for the share of right answers."""
    row = next((row for row in facts.rows if row["step"] == facts.step), {})
    measured = {name: value for name, value in row.items() if name.startswith("eval/")}
    if not measured:
        return f"Nothing was measured on held-out data at step {facts.step}."
    lines = []
    if "eval/accuracy" in measured and facts.held_out_prompts:
        share, count = measured["eval/accuracy"], facts.held_out_prompts
        low, high = wilson_interval(share, count)
        interval = f"95 % interval {low:.1%} to {high:.1%}"
        lines.append(f"{share:.1%} of {count:,} held-out prompts are answered right ({interval}).\n")
    rows = [(name, number_text(value, ".4g")) for name, value in measured.items()]
    return "\n".join([*lines, _table([("metric", "value"), *rows])])


def _data(config: RunConfig) -> Iterator[str]:
    for split, sources in (("train", config.named_sources("train")), ("held out", config.named_sources("eval"))):
        for source in sources.values():
            limit = "" if source.limit is None else f", the first {source.limit:,} rows"
            yield f"- {split}: `{source.path}`{limit}"


def _spread(rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Choose about a dozen rows, spread evenly from the first to the last; evaluated ones if there are any."""
    chosen = [row for row in rows if any(name.startswith("eval/") for name in row)] or list(rows)
    return evenly(chosen, _CURVE_ROWS)


def _repeat(config: RunConfig) -> str:
    settings = masked(_settings(config))
    command = f"```bash\nburnish {config.kind} run.yaml\n```"
    return (
        "Save these settings as `run.yaml`. With the same data and versions on the same kind of processor the numbers "
        f"are the same, bit for bit.\n\n```yaml\n{dump_yaml(settings)}```\n\n{command}"
    )


def _settings(config: RunConfig) -> dict[str, Json]:
    """Collect the fields that differ from the defaults, and all that the preset sets: it would set them again."""
    whole, changed = config.model_dump(mode="json"), config.model_dump(mode="json", exclude_defaults=True)
    preset = preset_of(type(config), whole)
    for path in () if preset is None else preset.values:
        *sections, field = path.split(".")
        source, target = whole, changed
        for section in sections:
            source, target = source[section], target.setdefault(section, {})
        target[field] = source[field]
    return changed


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])
