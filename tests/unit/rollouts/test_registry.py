import sys
import types
from pathlib import Path
from typing import Any

import pytest

from burnish.config.schema import RolloutConfig
from burnish.errors import ConfigError
from burnish.models.loading import LoadedModel
from burnish.rollouts.engine import RolloutEngine
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.registry import build_engine
from burnish.rollouts.vllm.engine import VllmEngine


class Remote(LocalEngine):
    """A stand-in for a user's engine."""


class Mute:
    """No engine: it cannot generate."""

    def sync(self, weights: Any) -> None: ...

    def take_metrics(self) -> dict[str, Any]: ...


class OneArgument:
    def __init__(self, model: Any) -> None: ...

    def generate(self) -> None: ...

    def sync(self, weights: Any) -> None: ...

    def take_metrics(self) -> dict[str, Any]: ...


def build(name: str, llama: Any, tokenizer: Any, folder: Path = Path()) -> RolloutEngine:
    rollout = RolloutConfig(engine=name, max_batch_rows=4)
    return build_engine(rollout, LoadedModel(llama, tokenizer, (1,), 0, 128), context_length=128, folder=folder)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    made = types.ModuleType("engines_of_mine")
    vars(made).update(Remote=Remote, Mute=Mute, OneArgument=OneArgument, number=3)
    monkeypatch.setitem(sys.modules, "engines_of_mine", made)
    return "engines_of_mine"


def test_local_and_named_classes_are_built(llama: Any, tokenizer: Any, module: str, tmp_path: Path) -> None:
    vllm = build("vllm", llama, tokenizer, tmp_path)
    assert type(vllm) is VllmEngine  # its process starts with the first call
    assert type(build("local", llama, tokenizer)) is LocalEngine
    assert type(build(f"{module}:Remote", llama, tokenizer)) is Remote


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("locl", "did you mean 'local'"),
        ("vlm", "did you mean 'vllm'"),
        ("engines_of_mine:", "not an engine"),
        ("no_such_package.engines:Class", "cannot import module"),
        ("engines_of_mine:Remot", "did you mean 'Remote'"),
        ("engines_of_mine:number", "is a int"),
        ("engines_of_mine:Mute", "no method generate"),
        ("engines_of_mine:OneArgument", "must take \\(model, \\*, tokenizer"),
    ],
)
def test_what_is_no_engine_is_refused_with_a_remedy(
    llama: Any, tokenizer: Any, module: str, name: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, llama, tokenizer)
