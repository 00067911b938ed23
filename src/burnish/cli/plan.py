"""`burnish plan FILE`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burnish.cli.arguments import Overrides, RunFile
from burnish.config.loading import LoadedConfig
from burnish.errors import BurnishError

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.config.model_facts import ModelFacts
    from burnish.config.plan import Plan
    from burnish.config.schema import SftConfig
    from burnish.config.schema_data import DataSource
    from burnish.config.schema_rm import RmConfig

All = Annotated[bool, typer.Option("--all", help="List every value of the configuration, defaults too.")]


def show_plan(file: RunFile, overrides: Overrides = None, all_values: All = False) -> None:
    """Show what a run will do, without doing it.

    Prompts, rollouts, minibatches, optimizer steps, models and memory, and where
    each value came from. Nothing is downloaded: sizes come from the model's
    config.json and the rows of local data files.

    [bold]Examples[/bold]
    burnish plan run.yaml
    burnish plan run.yaml algorithm=dapo rollout.group_size=16
    burnish plan run.yaml --all
    """
    from rich.console import Console

    from burnish.config.kinds import kind_of_file
    from burnish.config.loading import load_run_file

    loaded = load_run_file(file, overrides or (), kind_of_file(file, overrides or ()))
    console = Console()
    notes: list[str] = []
    plan = _plan(loaded, notes)
    _show_lines(plan, console)
    _show_models(plan, loaded, console)
    _show_values(loaded, console, all_values)
    for warning in (*plan.warnings, *notes):
        console.print(f"[yellow]note[/] {_escaped(warning)}", soft_wrap=True)


def _plan(loaded: LoadedConfig, notes: list[str]) -> Plan:
    from burnish.config.model_facts import read_model_facts
    from burnish.config.plan import plan_rl
    from burnish.config.schema import RlConfig
    from burnish.config.schema_rm import RmConfig

    config = loaded.config
    facts: ModelFacts | None = read_model_facts(Path(config.model.path).expanduser())
    if facts is None:
        notes.append(f"model.path {config.model.path!r} is no local model folder, so its sizes and memory are unknown")
    if isinstance(config, RlConfig):
        return plan_rl(config, num_prompts=_num_rows(config.data.train, "prompts", notes), facts=facts)
    if isinstance(config, RmConfig):
        return _rm_plan(config, facts, notes)
    return _sft_plan(loaded.sft, facts, notes)


def _rm_plan(config: RmConfig, facts: ModelFacts | None, notes: list[str]) -> Plan:
    """With a local model its tokenizer tells how many comparisons fit, and so how many steps there will be."""
    from burnish.config.plan_rm import plan_rm

    rows = _num_rows(config.data.train, "comparisons", notes)
    if rows is None or facts is None:
        return plan_rm(config, num_comparisons=rows, facts=facts)
    from rich.console import Console

    from burnish.models.tokenizers import load_tokenizer
    from burnish.trainers.reward_model import comparisons_of, load_comparisons

    try:
        limit = min(config.max_tokens, facts.context_tokens or config.max_tokens)
        train, _ = load_comparisons(config, load_tokenizer(config.model), limit, Console(quiet=True))
    except BurnishError as error:  # the arithmetic is worth showing all the same
        notes.append(error.message)
        return plan_rm(config, num_comparisons=rows, facts=facts)
    tokens = sum(c.num_tokens() for c in comparisons_of(train.examples))
    return plan_rm(config, num_comparisons=len(train), num_tokens=tokens, facts=facts)


def _sft_plan(config: SftConfig, facts: ModelFacts | None, notes: list[str]) -> Plan:
    """With a local model its tokenizer tells how long the examples are, and so how many steps there will be."""
    from burnish.config.plan import plan_sft

    rows = _num_rows(config.data.train, "examples", notes)
    if rows is None or facts is None:
        return plan_sft(config, num_examples=rows, facts=facts)
    from burnish.data.sft import load_sft_examples
    from burnish.models.tokenizers import load_tokenizer
    from burnish.trainers.sft import Schedule

    try:
        examples = load_sft_examples(
            config.data.train,
            tokenizer=load_tokenizer(config.model),
            max_tokens=config.max_tokens,
            over_long=config.data.over_long,
            chat=config.data.chat,
        )
        lengths = examples.lengths()
        sampler = examples.sampler(seed=config.seed, shuffle=config.data.shuffle)
        steps = Schedule(lengths, config.optimization.tokens_per_batch, sampler).count(config.optimization.epochs)
    except BurnishError as error:  # the arithmetic is worth showing all the same
        notes.append(error.message)
        return plan_sft(config, num_examples=rows, facts=facts)
    return plan_sft(config, num_examples=len(examples), num_tokens=sum(lengths), num_steps=steps, facts=facts)


def _num_rows(sources: Sequence[DataSource], what: str, notes: list[str]) -> int | None:
    """Rows of local files; None when one is no local file (a hub data set would have to be downloaded)."""
    missing = [source.path for source in sources if not Path(source.path).expanduser().exists()]
    if missing:
        notes.append(f"{missing[0]!r} is no local file, so the number of {what} is unknown")
        return None
    from burnish.data.sources import read_table

    try:
        return sum(len(read_table(source).rows) for source in sources)
    except BurnishError as error:  # the arithmetic is worth showing all the same
        notes.append(error.message)
        return None


def _show_lines(plan: Plan, console: Console) -> None:
    from rich.table import Table

    for topic in dict.fromkeys(line.topic for line in plan.lines):
        table = Table("what", "how many", "because", title=topic, title_justify="left", expand=False)
        for line in plan.lines:
            if line.topic == topic:
                table.add_row(line.name, line.value, line.because)
        console.print(table)


def _show_models(plan: Plan, loaded: LoadedConfig, console: Console) -> None:
    from rich.table import Table

    models = Table("model", "why it is loaded", title=f"models ({loaded.config.model.path})", title_justify="left")
    for role in plan.models:
        models.add_row(role.role, role.because)
    console.print(models)
    if not plan.memory:
        return
    memory = Table("memory (estimate)", "size", "from", title="memory", title_justify="left")
    for item in plan.memory:
        memory.add_row(item.name, bytes_in_words(item.num_bytes), item.formula)
    memory.add_row("together, at most", bytes_in_words(plan.memory_bytes), "cache and activations are not held at once")
    console.print(memory)


def _show_values(loaded: LoadedConfig, console: Console, all_values: bool) -> None:
    from rich.table import Table

    table = Table("value", "", "from", title="configuration", title_justify="left")
    for path, value, origin in _values(loaded):
        if all_values or origin != "default":
            table.add_row(path, _escaped(value), origin)
    console.print(table)


def _values(loaded: LoadedConfig) -> Iterable[tuple[str, str, str]]:
    from burnish.config.writing import flat_values

    values = flat_values(loaded.config)
    for path, origin in loaded.provenance.items():
        yield path, str(values[path]), origin


def bytes_in_words(number: float) -> str:
    """`1.5 GiB` and the like."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
