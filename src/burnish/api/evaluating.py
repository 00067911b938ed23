"""`burnish.evaluate`: the measurements of `burnish eval`, on runs, models, and data or functions in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from burnish.api.inputs import Inputs, write_inputs
from burnish.api.preparing import Given, as_overrides, kind_of, output_of, prepare, prepared_run
from burnish.api.rollouts import RecordedRollout, recorded
from burnish.api.run import ONLY_TRAINS, WEIGHTS_FOLDER, Run, run_config, with_saved_tokenizer
from burnish.checkpointing.chaining import find_checkpoint
from burnish.config.kinds import USUAL, find_kind, load
from burnish.config.schema import RunConfig
from burnish.errors import ConfigError
from burnish.machine.memory import uncollected
from burnish.models.loading_bars import without_loading_bars
from burnish.observability.console import number_text

if TYPE_CHECKING:
    from burnish.trainers.result import EvalReport


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation. `evaluation["eval/accuracy"]` is one of the `metrics`; `folder` holds them and the
    responses."""

    metrics: Mapping[str, float]
    folder: Path
    rollouts_file: Path | None

    def __getitem__(self, name: str) -> float:
        return self.metrics[name]

    @property
    def rollouts(self) -> list[RecordedRollout]:
        """The responses; empty if none are sampled (`sft`, `reward_model`)."""
        return [] if self.rollouts_file is None else recorded(self.rollouts_file)

    def __repr__(self) -> str:
        width = max(map(len, self.metrics), default=0)
        lines = (f"  {name:<{width}}  {number_text(value, '.4g')}" for name, value in self.metrics.items())
        return "\n".join([f"burnish.Evaluation in {self.folder}", *lines])


def evaluate(
    target: object, data: object = None, rewards: object = None, *, quiet: bool = False, **fields: object
) -> Evaluation:
    """Measure a run or a model on held-out data, as `burnish eval` does.

    `target` is a `Run` or the folder of one (`runs/first@best`), a model (folder, hub name, `(model, tokenizer)`), or
    the fields of a run file. `data` and `rewards` replace the run's own, and may be in memory as in `burnish.train`; a
    model alone needs both. What a domain has of its own is replaced by name: `domains={"math": {"rewards": ...}}`.
    `fields` override the configuration: `evaluation={"samples": 8}`.

    The result is written to RUN/eval/NNN, or for a model alone to a new folder in runs/. Raises BurnishError for
    everything that the caller can fix.
    """
    from burnish.rewards.loading import functions_at_hand

    if data is not None:
        fields["data"] = {"eval": data}
    if rewards is not None:
        fields["rewards"] = rewards
    with ExitStack() as stack:
        stack.enter_context(without_loading_bars())
        config, weights, inputs = stack.enter_context(_measurable(target, fields))
        _refuse_what_domains_own(config, fields, data is not None, rewards is not None)
        write_inputs(inputs, may_change=True)
        stack.enter_context(functions_at_hand(inputs.functions))
        report = measured(config, Console(quiet=quiet), weights)
    return Evaluation(report.metrics, report.metrics_file.parent, report.rollouts_file)


def _refuse_what_domains_own(
    config: RunConfig, fields: Mapping[str, object], has_data: bool, has_rewards: bool
) -> None:
    """`data` and `rewards` stand in for all of a run's own, but what a domain names itself stays as it is. ConfigError
    if there is any of it that the call does not replace by name."""
    by_name = fields.get("domains")
    for argument, given, field in (("data", has_data, "eval"), ("rewards", has_rewards, "rewards")):
        for name in config.domains_with_own(field) if given else ():
            replaced = fields.get(f"domains.{name}", by_name.get(name) if isinstance(by_name, Mapping) else None)
            if f"domains.{name}.{field}" in fields or (isinstance(replaced, Mapping) and field in replaced):
                continue
            raise ConfigError(
                f"burnish.evaluate got {argument}, but the domain {name} has {field} of its own",
                remedy=f'replace them by name: domains={{"{name}": {{"{field}": ...}}}}',
            )


def measured(config: RunConfig, console: Console, weights: Path | None) -> EvalReport:
    """The measurements of this kind of run, on its model or on saved weights."""
    with uncollected():
        from burnish.machine.matmul_precision import without_autocast

        evaluate_kind = load(find_kind(config.kind).evaluate)
    with without_autocast():
        return evaluate_kind(config, console=console, weights=weights)


@contextmanager
def _measurable(target: object, fields: dict[str, object]) -> Iterator[tuple[RunConfig, Path | None, Inputs]]:
    chosen = find_checkpoint(str(target), field="the run to evaluate") if isinstance(target, (Run, str, Path)) else None
    if chosen is not None:
        inputs = Inputs(_inputs_folder(chosen.run))
        overrides = as_overrides(inputs.plain(fields))
        config = with_saved_tokenizer(run_config(chosen.run, overrides, idle=ONLY_TRAINS).config, overrides)
        yield config, chosen.checkpoint.folder / WEIGHTS_FOLDER, inputs
        return
    if isinstance(target, (Mapping, RunConfig)) or str(target).endswith((".yaml", ".yml")):
        given: Given = target if isinstance(target, (Mapping, RunConfig)) else str(target)
        kind = kind_of(given, fields)
    else:
        # A run file has to name training data, which nothing reads here.
        given, kind = {"model": target, "data": {"train": "none.jsonl"}}, USUAL
    output = fields.get("output", output_of(given))
    if output is not None:  # perhaps the folder of a run, whose own inputs stay as they are
        inputs = Inputs(_inputs_folder(Path(str(output))))
        yield prepare(kind, given, fields, inputs, "burnish.evaluate").config, None, inputs
        return
    with prepared_run(kind, given, fields, "burnish.evaluate", folder_name="eval") as (loaded, inputs):
        yield loaded.config, None, inputs


def _inputs_folder(run: Path) -> Path:
    """A new folder for what this evaluation is given in memory, which no other has, not even one at the same time."""
    return run / "eval" / "inputs" / uuid.uuid4().hex[:12]
