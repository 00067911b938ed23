"""Each implementation detail of the 2019 RLHF code turned off in turn, on identical data: what changes, how much.

    python benchmarks/stylistic_continuation.py DATA_FOLDER --without-loose        # labels and reward model, once
    python benchmarks/details_ablation.py DATA_FOLDER [--prepared runs/stylistic] [--seeds 3] [--steps 20]
    python benchmarks/details_ablation.py DATA_FOLDER --only adam

DATA_FOLDER holds models/stories260k. Every row is examples/stylistic_continuation/rl.yaml with one word changed, run
with the same seeds: queries, and the noise that responses are sampled with, are the same in all rows. Numbers are means
of the last third of the steps, with the standard deviation over the seeds; runs that are finished are read, not run
again. The second table holds the two forms of Adam against each other on the same rollouts: one step of two epochs,
then all log-probabilities once more. Writes both tables to benchmarks/results/details_ablation.md, between the lines
that say so. About forty minutes of one CPU core. Start it from the repository's root.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from burnish.cli import main as burnish
from burnish.config.loading import load_run_file
from burnish.config.schema import RlConfig
from burnish.observability.history import read_history
from burnish.observability.metrics import MetricStore, Stopwatch
from burnish.trainers.rl.setup.parts import open_rl_run

EXAMPLE = Path("examples/stylistic_continuation")
PAGE = Path("benchmarks/results/details_ablation.md")

DETAILS: Mapping[str, Sequence[str]] = {
    "all on (`oai_2019`)": (),
    "Adam as in PyTorch": ("optimization.optimizer=adamw",),
    "rewards not whitened": ("algorithm.whiten_rewards=false",),
    "advantages not whitened": ("algorithm.whiten_advantages=false",),
    "ratio not clipped": ("algorithm.clip_low=1000", "algorithm.clip_high=1000"),
    "values not clipped": ("critic.clip=null",),
    "value head begins at N(0, 1)": ("critic.head_init_std=1.0",),
    "critic of its own": ("critic.kind=separate", "critic.learning_rate=2e-4"),
    "one epoch": ("optimization.epochs=1",),
    "four minibatches": ("optimization.minibatches=4",),
    "constant learning rate": ("optimization.schedule=constant",),
    "gradient clipped to 1": ("optimization.max_grad_norm=1.0",),
    "entropy bonus .01": ("algorithm.entropy_coef=0.01",),
    "fixed KL coefficient": ("algorithm.kl_target=null", "algorithm.kl_horizon=10000"),
    "no KL in the reward": (
        "algorithm.kl_in=loss",
        "algorithm.kl_coef=1e-9",
        "algorithm.kl_target=null",
        "algorithm.kl_horizon=10000",
        "algorithm.kl_estimator=k3",
    ),
    "lambda 1": ("algorithm.lam=1.0",),
    "responses end at EOS": ("rollout.ignore_eos=false",),
    "scored whole, no -1": (
        "scoring.truncate_token=null",
        "scoring.truncate_after=0",
        "scoring.incomplete_score=null",
    ),
    "truncated, no -1": ("scoring.incomplete_score=null",),
    "temperature 1": ("rollout.temperature=1.0",),
    "queries not cut at full stops": ("data.query=null", "data.over_long=truncate"),
}

MEASURES = {
    "approx. KL of a step": "policy/approx_kl",
    "clip fraction": "policy/clip_fraction",
    "learned score": "reward/part/learned",
    "sentiment": "reward/part/sentiment",
    "KL to the reference": "kl/reference",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the real data and models")
    parser.add_argument("--prepared", type=Path, default=Path("runs/stylistic"), help="labels and reward model")
    parser.add_argument("--output", type=Path, default=Path("runs/details_ablation"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", choices=["details", "adam"], help="one of the two tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = common(options.data, options.prepared)
    seeds = range(options.seeds)
    if options.only != "adam":
        write("details", details_table(given, options.output, seeds, options.steps))
    if options.only != "details":
        write("adam", adam_table(given, options.output, seeds))


def common(data: Path, prepared: Path) -> list[str]:
    """Overrides of every run: where the material lies, and nothing else than numbers left behind."""
    return [
        f"model.path={data / 'models/stories260k'}",
        "model.device=cpu",
        f"data.train={prepared}/data/train.txt",
        "data.eval=[]",
        "rollout.prompts_per_step=64",
        f"rewards.0.name=model:{newest(prepared / 'rm')}",
        "evaluation.at_start=false",
        "evaluation.every_steps=null",
        "checkpoint.every_steps=null",
        "logging.record_rollouts=false",
        "logging.sinks=[]",
    ]


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*")) / "policy"


def details_table(given: Sequence[str], output: Path, seeds: Sequence[int], steps: int) -> str:
    """One row a detail; runs that lie in the output folder already are read, not run again."""
    lines = [f"| turned off | {' | '.join(MEASURES)} |", "|---|" + "---|" * len(MEASURES)]
    for number, (detail, overrides) in enumerate(DETAILS.items()):
        found = []
        for seed in seeds:
            run = output / f"{number:02d}-{re.sub('[^a-z0-9]+', '-', detail.lower()).strip('-')}-{seed}"
            if not (run / "finished").exists():
                shutil.rmtree(run, ignore_errors=True)
                own = [*given, f"output={run}", f"seed={seed}", f"steps={steps}", *overrides]
                code = burnish(["rl", str(EXAMPLE / "rl.yaml"), *own])
                if code:
                    raise SystemExit(code)
                (run / "finished").touch()
                shutil.rmtree(run / "checkpoints")
            found.append(last_third(run))
        cells = [with_spread([row[name] for row in found]) for name in MEASURES.values()]
        lines.append(f"| {detail} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def last_third(run: Path) -> dict[str, float | None]:
    history = read_history(run)
    means: dict[str, float | None] = {}
    for name in MEASURES.values():
        values = history[name][1] if name in history else []
        tail = values[-max(1, len(values) // 3) :]
        means[name] = sum(tail) / len(tail) if tail else None
    return means


def with_spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {short(statistics.stdev(known))}" if len(known) > 1 else ""
    return f"{short(statistics.mean(known))}{spread}"


def short(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.3g}"


STATISTICS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "approx. KL, half the mean square": lambda distance: distance.square().mean() / 2,
    "clip fraction": lambda distance: (distance.exp().sub(1).abs() > 0.2).double().mean(),
    "variance of the ratio": lambda distance: distance.exp().var(),
    "largest ratio": lambda distance: distance.exp().max(),
}


def adam_table(given: Sequence[str], output: Path, seeds: Sequence[int]) -> str:
    """What two epochs on the same rollouts do to the policy under both forms, at the published and our rate."""
    lines = ["| learning rate | | TensorFlow's form | PyTorch's form | ratio |", "|---|---|---|---|---|"]
    for rate in (1e-5, 2e-4):
        found = {form: [two_epochs(given, output, seed, form, rate) for seed in seeds] for form in ("adam_tf", "adamw")}
        for name in STATISTICS:
            ours, theirs = ([row[name] for row in found[form]] for form in ("adam_tf", "adamw"))
            ratio = statistics.mean(theirs) / statistics.mean(ours) if statistics.mean(ours) else float("nan")
            cells = f"{with_spread(ours)} | {with_spread(theirs)} | {ratio:.2f}"
            lines.append(f"| {rate:g} | {name} | {cells} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def two_epochs(given: Sequence[str], output: Path, seed: int, form: str, rate: float) -> dict[str, float]:
    """The first step of a run of its own: its rollouts depend on the seed alone, whatever the optimizer."""
    folder = output / "adam"
    shutil.rmtree(folder, ignore_errors=True)
    overrides = [
        *given,
        f"output={folder}",
        f"seed={seed}",
        "optimization.epochs=2",
        "optimization.schedule=constant",
        f"optimization.optimizer={form}",
        f"optimization.learning_rate={rate}",
        "rollout.prompts_per_step=512",
    ]
    config: RlConfig = load_run_file(EXAMPLE / "rl.yaml", overrides).config
    with open_rl_run(config, Console(file=io.StringIO())) as run:
        collected = run.supply.collector.collect(1, {}, Stopwatch())
        metrics = MetricStore()
        batch = run.prepare(collected, Stopwatch(), metrics)
        assert batch is not None
        assert batch.old_logprobs is not None
        run.update(batch, 1, metrics)
        now = run.policy.logprobs(batch).logprobs_BT
        distance = (now - batch.old_logprobs)[batch.loss_mask].double()
    return {name: float(statistic(distance)) for name, statistic in STATISTICS.items()}


def write(name: str, table: str) -> None:
    """Put the table between its two marks on the page."""
    page = PAGE.read_text(encoding="utf-8")
    first, last = f"<!-- {name}: made by benchmarks/details_ablation.py -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(first)
    _, _, after = rest.partition(last)
    if not rest or not after:
        raise SystemExit(f"{PAGE} lacks the marks of the table {name!r}")
    PAGE.write_text(f"{before}{first}\n{table}\n{last}{after}", encoding="utf-8")
    print(f"{PAGE}: {name}")


if __name__ == "__main__":
    main()
