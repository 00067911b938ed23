"""Burnish: reinforcement learning for language models after pre-training.

    import burnish

    run = burnish.train({"model": "out/sft", "data": rows, "rewards": [my_function], "algorithm": "grpo", "steps": 50})
    run.metrics["reward/mean"]

docs/python.md is the guide. Importing this package loads no torch; what needs it imports it when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish import algorithms, demo, losses, rewards
    from burnish.api.evaluating import Evaluation, evaluate
    from burnish.api.planning import RunPlan, plan
    from burnish.api.policy import Policy, Response
    from burnish.api.rollouts import RecordedRollout
    from burnish.api.run import Run, load_run
    from burnish.api.training import distill, prefer, reward_model, sft, train
    from burnish.errors import BurnishError
    from burnish.experiments.sweep import sweep
    from burnish.experiments.table import table
    from burnish.types import Message, Rollout, Score

__version__ = "0.4.0"

__all__ = [
    "BurnishError",
    "Evaluation",
    "Message",
    "Policy",
    "RecordedRollout",
    "Response",
    "Rollout",
    "Run",
    "RunPlan",
    "Score",
    "algorithms",
    "demo",
    "distill",
    "evaluate",
    "load_run",
    "losses",
    "plan",
    "prefer",
    "reward_model",
    "rewards",
    "sft",
    "sweep",
    "table",
    "train",
]

_HOMES = {
    "api.evaluating": ("Evaluation", "evaluate"),
    "api.planning": ("RunPlan", "plan"),
    "api.policy": ("Policy", "Response"),
    "api.rollouts": ("RecordedRollout",),
    "api.run": ("Run", "load_run"),
    "api.training": ("distill", "prefer", "reward_model", "sft", "train"),
    "errors": ("BurnishError",),
    "experiments.sweep": ("sweep",),
    "experiments.table": ("table",),
    "types": ("Message", "Rollout", "Score"),
}
"""Modules and the public names that live there. A module is imported when a name of it is first used."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"burnish.{module}"), name)
    if name in __all__:
        return importlib.import_module(f"burnish.{name}")
    from burnish.config.kinds import all_kinds

    for kind in all_kinds():
        if kind.function == name:
            training = importlib.import_module("burnish.api.training")
            return training.function_of(kind, training.train_kind)
    raise AttributeError(f"module 'burnish' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
