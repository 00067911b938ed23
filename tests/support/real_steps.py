"""The rollouts of one real step, and the run that made them under other algorithms."""

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.config.domains import ALL
from burnish.config.loading import load_run_data
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.models.policy import LocalPolicy
from burnish.models.reference import FrozenReference
from burnish.observability.metrics import Stopwatch
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.collection import Collected
from burnish.trainers.rl.lessons import Lesson, Lessons
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.critic import build_value_objective
from burnish.trainers.rl.setup.objective import build_objective
from burnish.trainers.rl.setup.parts import build_kl, open_rl_run


@contextmanager
def sampled_step(
    model: Path, task: Path, output: Path, *, needs_greedy: bool = False, **fields: Any
) -> Iterator[tuple[RlRun, Collected]]:
    """An open run on the tiny task, with a reference, and the rollouts of its first step."""
    data = {
        "output": str(output),
        "model": str(model),
        "data": {"train": f"{task}/train.jsonl"},
        "rewards": [{"name": f"{task}/reward.py:digits", "label": "digits"}],
        "scoring": {"workers": 1},
        "algorithm": "grpo",
        "evaluation": {"at_start": False, "every_steps": None},
        "logging": {"sinks": [], "record_rollouts": False},
        **fields,
    }
    with open_rl_run(load_run_data(data).config, Console(quiet=True)) as run:
        own = run.supply.collector
        domains = dataclasses.replace(own.domains, needs_greedy=needs_greedy)
        collector = dataclasses.replace(own, domains=domains)
        yield run, collector.collect(1, {}, Stopwatch())


def with_algorithm(run: RlRun, algorithm: AlgorithmConfig) -> RlRun:
    """The same parts under another algorithm."""
    config: RlConfig = run.config.model_copy(update={"algorithm": algorithm})
    estimator, loss, numbers = resolve_algorithm(algorithm)
    assert isinstance(run.policy, LocalPolicy)
    twin = dataclasses.replace(run.policy.loaded, model=copy.deepcopy(run.policy.model))
    cold = FrozenReference(twin, temperature=0.5, tokens_per_microbatch=1_000)  # so it differs
    return dataclasses.replace(
        run,
        config=config,
        estimator=estimator,
        objective=lambda coef: build_objective(config, loss, numbers, coef),
        select_tokens=partial(loss.select, options=numbers) if loss.selection else None,
        kl=build_kl(algorithm),
        value_objective=build_value_objective(config),
        reference=run.reference if config.has_reference else None,
        lessons=Lessons(cold, {ALL: Lesson(0, 1.0)}) if "teacher_logprobs_BT" in estimator.inputs else None,
    )
