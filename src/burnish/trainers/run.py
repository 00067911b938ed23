"""The two commands on an RL run file: train, and evaluate."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from burnish.checkpointing.output import check_place
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.models.allocator import keep_freed_memory
from burnish.models.loading import load_model, num_embeddings
from burnish.observability.atomic import write_text_atomically
from burnish.observability.metrics import MetricStore
from burnish.observability.recorder import RolloutRecorder
from burnish.trainers.interrupt import graceful_stop
from burnish.trainers.preflight import check_fit
from burnish.trainers.result import EvalReport, RunResult
from burnish.trainers.rl import run_loop
from burnish.trainers.setup import build_evaluator, open_rl_engine, open_rl_run, open_scorer, token_texts


def train_rl(config: RlConfig, *, console: Console) -> RunResult:
    """Run the loop of `burnish.trainers.rl`; goes on from the newest checkpoint in the run's folder.

    The first Ctrl-C finishes the step and saves. Raises BurnishError for everything that a user can put right.
    """
    with graceful_stop(lambda text: console.print(f"[yellow]{text}[/]")) as stop, open_rl_run(config, console) as run:
        run_loop(run, stop)
        return RunResult.of(Path(config.output), run.progress.step, stopped=run.progress.step < config.steps)


def evaluate_run(config: RlConfig, *, console: Console, weights: Path | None = None) -> EvalReport:
    """Evaluate the model of the run file (or the weights of a checkpoint) on the held-out data.

    Writes `eval/metrics.json` and `eval/rollouts/eval-000000.jsonl` into the run's folder. Raises ConfigError when
    the run file names no held-out data.
    """
    check_place(config.output)
    settings = config.model if weights is None else config.model.model_copy(update={"path": str(weights), "lora": None})
    with ExitStack() as stack:
        scorer = stack.enter_context(open_scorer(config))
        loaded = load_model(settings, seed=config.seed, plain=config.debug.plain)
        check_fit(config, loaded.context_length, num_embeddings(loaded.model))
        keep_freed_memory(loaded.model.device.type)
        for line in (*loaded.notes, *scorer.attach_policy(loaded.tokenizer)):
            console.print(line, highlight=False)
        engine = stack.enter_context(open_rl_engine(config, loaded))
        evaluator = build_evaluator(config, loaded, engine, scorer, console)
        if evaluator is None:
            raise ConfigError("data.eval is empty", remedy="name the held-out data in data.eval")
        measured, groups = evaluator.evaluate()
    folder = Path(config.output) / "eval"
    store = MetricStore()
    store.merge(measured)
    metrics, metrics_file = store.row(), folder / "metrics.json"
    write_text_atomically(metrics_file, json.dumps(metrics, indent=2, sort_keys=True) + "\n")
    recorder = RolloutRecorder(folder / "rollouts", token_texts(loaded))
    return EvalReport(metrics, metrics_file, recorder.record_evaluation(0, groups))
