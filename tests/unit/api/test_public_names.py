"""The public names and their signatures are frozen: a change here is a change for every program that uses Burnish."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import burnish

NAMES = [
    "BurnishError", "Evaluation", "Message", "Policy", "RecordedRollout", "Response", "Rollout", "Run",
    "RunPlan", "Score", "algorithms", "demo", "distill", "evaluate", "load_run", "losses", "plan", "prefer",
    "reward_model", "rewards", "sft", "sweep", "table", "train",
]  # fmt: skip

TRAINING = "(config, *, on_step=None, quiet=False, fresh=False, accept_changes=False, fork=None, **fields)"
SIGNATURES = {
    "train": TRAINING,
    "sft": TRAINING,
    "prefer": TRAINING,
    "distill": TRAINING,
    "reward_model": TRAINING,
    "evaluate": "(target, data=None, rewards=None, *, quiet=False, **fields)",
    "plan": "(config, **fields)",
    "load_run": "(folder)",
    "sweep": "(config, settings, *, jobs=1, quiet=False, **fields)",
    "table": "(runs, metric=None, *, by=(), threshold=None, step=None, baseline=None)",
    "Run.report": "(self, *, open=False)",
    "Run.rollouts": "(self, step=None, *, evaluation=False)",
    "Run.stop": "(self)",
    "Policy": "(folder, model=None, data=None)",
    "Policy.save": "(self, folder)",
    "Policy.generate": "(self, prompt, *, max_response_tokens=512, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, "
    "greedy=False, stop=(), seed=0)",
    "Message": "(role, content, tool_calls=(), reasoning_content=None, extra=<factory>, trained=None)",
    "Score": "(value, parts=<factory>, token_rewards=None)",
}
RUN = [
    "checkpoints", "config", "metrics", "output", "policy", "report", "rollouts", "step", "stop", "stopped", "weights",
]  # fmt: skip


HEAVY = {"transformers", "pydantic", "rich", "pandas"}


def _written(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _at(path: str) -> Any:
    found: Any = burnish
    for part in path.split("."):
        found = getattr(found, part)
    return found


def test_names() -> None:
    assert burnish.__all__ == NAMES
    assert set(NAMES) <= set(dir(burnish))
    for name in NAMES:
        assert _at(name) is not None


@pytest.mark.parametrize("path", SIGNATURES)
def test_signature(path: str) -> None:
    assert _written(_at(path)) == SIGNATURES[path]


def test_what_a_run_has(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    run = burnish.Run(tmp_path)
    assert sorted(name for name in dir(run) if not name.startswith("_")) == RUN


def test_every_public_function_says_what_it_does() -> None:
    undocumented = [path for path in (*NAMES, *SIGNATURES) if not inspect.getdoc(_at(path))]
    assert undocumented == []


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import burnish", HEAVY | {"torch", "numpy"}),
        ("import burnish.rewards; burnish.rewards.exact", HEAVY | {"torch", "numpy"}),
        pytest.param("import burnish.losses", HEAVY, marks=pytest.mark.slow),  # which needs torch
    ],
)
def test_importing_loads_nothing_heavy(statement: str, heavy: set[str]) -> None:
    program = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        burnish.trian  # noqa: B018
