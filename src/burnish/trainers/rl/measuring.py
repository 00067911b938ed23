"""Evaluation of the model of an RL run file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from burnish.checkpointing.sources import check_place
from burnish.config.domains import domain_settings
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore
from burnish.observability.recorder import RolloutRecorder
from burnish.outside.shortage import naming_shortages
from burnish.trainers.chaining import measured
from burnish.trainers.result import EvalReport, new_eval_folder, write_eval_metrics
from burnish.trainers.rl.evaluation import build_evaluator
from burnish.trainers.rl.setup.conversations import open_conversations
from burnish.trainers.rl.setup.opened_models import longest_text, open_model, open_rl_engine
from burnish.trainers.rl.setup.parts import open_scorer
from burnish.trainers.run_folder import recorded_paths
from burnish.trainers.telemetry.journal import token_texts


def evaluate_run(config: RlConfig, *, console: Console, weights: Path | None = None) -> EvalReport:
    """Evaluate the model of the run file (or the weights of a checkpoint) on the held-out data.

    Writes `metrics.json`, `config.yaml` and `rollouts/eval-000000.jsonl` to a new folder `eval/NNN` in the run's
    folder. Raises ConfigError if the run file names no held-out data.
    """
    check_place(config.output)
    config = measured(config, weights, console)
    with ExitStack() as stack:
        stack.enter_context(naming_shortages())
        paths = recorded_paths(Path(config.output))
        scorer = stack.enter_context(open_scorer(config, console, paths))
        loaded = stack.enter_context(open_model(config, paths, console))
        say(console, scorer.attach_policy(loaded.tokenizer))
        settings, tokenizer, ends = domain_settings(config), loaded.tokenizer, loaded.eos_token_ids
        conversations = stack.enter_context(open_conversations(config, settings, tokenizer, ends))
        say(console, conversations.lines)
        engine = stack.enter_context(open_rl_engine(config, loaded, console))
        engine = conversations.around(engine, longest_text(config, loaded))
        say(console, paths.lines(verbose=config.logging.verbose))
        evaluator = build_evaluator(config, loaded, engine, scorer, console, conversations)
        if evaluator is None:
            raise ConfigError("data.eval is empty", remedy="name the held-out data in data.eval")
        found, groups = evaluator.evaluate()
    metrics, folder = MetricStore.of([found]).row(), new_eval_folder(Path(config.output))
    recorder = RolloutRecorder(folder / "rollouts", token_texts(loaded))
    rollouts_file = recorder.record_evaluation(0, groups)
    return EvalReport(metrics, write_eval_metrics(folder, config, metrics), rollouts_file)
