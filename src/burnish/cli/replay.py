"""`burnish replay RUN`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.cli.arguments import Overrides, RlRunFolder
from burnish.cli.tables import show_table
from burnish.errors import ConfigError, DataError
from burnish.observability.console import number_text, say

if TYPE_CHECKING:
    from burnish.trainers.replay import Replayed
    from burnish.trainers.replay_gradients import ReplayedGradient
    from burnish.trainers.replay_result import ReplaySummary

OWN = "as recorded"
_LOGGED = ("policy/loss", "policy/kl_loss", "policy/clip_fraction")
Steps = Annotated[list[int] | None, typer.Option("--step", help="Recorded step; may be repeated (default: the last).")]
KeepScores = Annotated[bool, typer.Option("--keep-scores", help="Use the recorded scores without calling any reward.")]
Gradients = Annotated[
    bool, typer.Option("--gradients", help="Compare gradients at the weights that the step started from.")
]
Algorithms = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Presets, or fields of `algorithm`, whose gradients to compare.")
]
Show = Annotated[int, typer.Option(help="Number of most changed responses to show.", min=0)]


def replay(
    run: RlRunFolder,
    overrides: Overrides = None,
    steps: Steps = None,
    keep_scores: KeepScores = False,
    gradients: Gradients = False,
    algorithms: Algorithms = None,
    show: Show = 10,
) -> None:
    """Score and credit recorded responses again, with other rewards or another algorithm. Nothing is sampled.

    Overrides set what is different. The result for each response is written to
    a new folder RUN/replay/NNN; nothing else in the run changes. With
    --gradients, the weights of that step show what each algorithm would have
    learned: norm, direction and signal-to-noise ratio of its gradient.

    [bold]Examples[/bold]
    burnish replay runs/first rewards=new_rewards.py:strict
    burnish replay runs/first --step 100 --step 200 rewards.0.weight=2
    burnish replay runs/first --keep-scores algorithm.preset=rloo
    burnish replay runs/first --gradients --algorithms dr_grpo,rloo
    """

    from burnish.api.run import ONLY_SAMPLES, ONLY_TRAINS, run_config
    from burnish.config.schema import RlConfig
    from burnish.models.loading_bars import hide_loading_bars
    from burnish.trainers.replay import check_same_teachers, open_replay
    from burnish.trainers.replay_result import most_changed, summary_of, write_replay

    console, folder = Console(), Path(run)
    config = run_config(folder, overrides or [], idle=(*ONLY_TRAINS, *ONLY_SAMPLES)).config
    if not isinstance(config, RlConfig):
        raise ConfigError(f"{run} samples no responses", remedy="give a run of `burnish rl`")
    hide_loading_bars()
    if gradients:
        show_gradients(folder, steps or [], overrides or [], algorithms or "", console)
        return
    if algorithms:
        raise ConfigError("--algorithms compares gradients", remedy="add --gradients, or give algorithm.preset=NAME")
    check_same_teachers(run_config(folder).of(RlConfig), config)
    files = recorded_steps(folder, steps or [])
    with open_replay(config, console, keep_scores=keep_scores) as replayer:
        say(console, replayer.notes)
        rows = [row for file in files for row in replayer.replay(file)]
    show_summary(summary_of(rows), console)
    changed = most_changed(rows, show)
    if changed:
        show_changes(changed, console)
    console.print(f"replay  {write_replay(config, rows)}", markup=False, highlight=False, soft_wrap=True)


def show_gradients(
    folder: Path, steps: Sequence[int], overrides: Sequence[str], algorithms: str, console: Console
) -> None:
    """Print and write the gradients of steps for the run's own settings, the overrides, and each of the algorithms."""
    from burnish.api.run import run_config
    from burnish.config.schema import RlConfig
    from burnish.observability.history import read_rows
    from burnish.observability.recorder import step_of
    from burnish.trainers.replay import check_same_teachers, open_replay
    from burnish.trainers.replay_gradients import load_weights_before, open_policy, replay_gradients, steps_with_weights
    from burnish.trainers.replay_result import write_gradients

    own = run_config(folder).of(RlConfig)
    names = map(str.strip, algorithms.split(","))
    words = {name: f"algorithm.{name}" if "=" in name else f"algorithm.preset={name}" for name in names if name}
    variants = {OWN: own} | ({" ".join(overrides): run_config(folder, overrides).of(RlConfig)} if overrides else {})
    variants |= {name: run_config(folder, [*overrides, word]).of(RlConfig) for name, word in words.items()}
    for config in variants.values():
        check_same_teachers(own, config)
    files = recorded_steps(folder, steps or steps_with_weights(folder)[-1:])
    with ExitStack() as stack:
        policy = stack.enter_context(open_policy(own, console))
        replayers = {
            name: stack.enter_context(open_replay(config, console, keep_scores=name == OWN or not overrides))
            for name, config in variants.items()
        }
        rows = []
        for file in sorted(files):  # the policy is opened with the first step's weights
            load_weights_before(policy, folder, step_of(file))
            rows += replay_gradients(file, policy, replayers)
    recorded = {int(row["step"]): row for row in read_rows(folder / "metrics.jsonl")}
    _show_estimates(rows, recorded, console)
    console.print(f"replay  {write_gradients(own, rows)}", markup=False, highlight=False, soft_wrap=True)


def recorded_steps(folder: Path, steps: Sequence[int]) -> list[Path]:
    """The files of these training steps, or of the last one. DataError, with the steps that there are, if one is
    missing."""
    from burnish.observability.recorder import recorded_files

    files = recorded_files(folder / "rollouts")
    missing = [step for step in steps if step not in files]
    if missing or not files:
        known = f"{len(files):,}, from {min(files):,} to {max(files):,}" if files else "none"
        raise DataError(
            f"{folder} has no recorded rollouts" + (f" of step {missing[0]}" if missing else ""),
            remedy=f"steps with rollouts: {known} (logging.record_rollouts writes them)",
        )
    return [files[step] for step in dict.fromkeys(steps)] if steps else [files[max(files)]]


def show_summary(found: ReplaySummary, console: Console) -> None:
    """Print a table of before and after, and what has changed."""
    before, after = found.before, found.after
    rows = (
        ("with a score", f"{before.scored:,}", f"{after.scored:,}"),
        ("mean score", _number(before.score_mean), _number(after.score_mean)),
        ("trained on", f"{before.trained:,}", f"{after.trained:,}"),
        ("mean size of advantages", _number(before.advantage_size), _number(after.advantage_size)),
        ("scores that change", "", f"{found.scores_changed:,}"),
        ("pairs of siblings in another order", "", _share(found.orders_changed)),
        ("correlation of scores", "", _number(found.score_correlation)),
        ("advantages that change", "", f"{found.advantages_changed:,}"),
        ("advantages of another sign", "", f"{found.signs_changed:,}"),
        ("correlation of advantages", "", _number(found.advantage_correlation)),
    )
    show_table(console, ("", "recorded", "replayed"), rows, title=f"{found.responses:,} responses")


def show_changes(rows: Sequence[Replayed], console: Console) -> None:
    """Print a row for each response: its score and its advantage, before and after."""
    shown = []
    for row in rows:
        before, after = row.before, row.after
        advantage = f"{_number(before.advantage)} → {_number(after.advantage)}"
        if after.why:
            advantage += f" ({after.why})"
        sample = f"{row.sample_index}, branch {row.branch + 1}" if row.branch else str(row.sample_index)
        score = f"{_number(before.reward)} → {_number(after.reward)}"
        response = " ".join(row.response.split())[:80]
        shown.append((str(row.step), row.prompt_id, sample, score, advantage, response))
    headings = ("step", "prompt", "sample", "score", "advantage", "response")
    show_table(console, headings, shown, title="what changes most")


def _show_estimates(
    rows: Sequence[ReplayedGradient], recorded: Mapping[int, Mapping[str, float]], console: Console
) -> None:
    """Print a row for each step and algorithm, after what the step itself logged."""
    shown = []
    for row in rows:
        if row.algorithm == OWN:
            logged = recorded.get(row.step, {})
            updates = logged.get("policy/optimizer_steps", 1)
            several = f", mean of {updates:.0f} updates" if updates > 1 else ""
            numbers = [_number(logged.get(name)) for name in (*_LOGGED, "policy/grad_norm")]
            shown.append((str(row.step), f"(logged{several})", *numbers, "", ""))
        values = (*map(row.metrics.get, _LOGGED), row.norm, row.cosine, row.signal_to_noise)
        shown.append((str(row.step), row.algorithm, *map(_number, values)))
    headings = ("step", "algorithm", "loss", "KL", "clipped", "norm", "cosine", "signal-to-noise")
    show_table(console, headings, shown, title="gradients")


def _number(value: float | None) -> str:
    return "–" if value is None else number_text(value, ".4g")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
