"""Settings that an estimator cannot use are refused before anything is loaded."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from plain_samples import Engine
from rich.console import Console

from burnish.algorithms.advantages import resolve_estimator
from burnish.config.engines import traits_of
from burnish.config.schema import CriticConfig, RlConfig, RolloutConfig
from burnish.config.schema_rollout import VllmConfig
from burnish.errors import ConfigError, RolloutError
from burnish.forward.fast_paths import FastPaths
from burnish.rollouts.engine import Sampling
from burnish.trainers.rl.setup import parts
from burnish.trainers.rl.setup.opened_models import open_rl_engine
from burnish.trainers.rl.setup.parts import build_kl, open_scorer
from burnish.trainers.rl.setup.preflight import (
    check_estimator,
    computes_twice_at_once,
    no_overlap_lines,
    precision_lines,
)
from burnish.types import RolloutRequest


def config_of(estimator: str, *, scoring: dict[str, Any] | None = None, size: int = 4, **algorithm: Any) -> RlConfig:
    rollout = {"prompts_per_step": 2, "group_size": size}
    own = {"algorithm": {"estimator": estimator, **algorithm}, "scoring": scoring or {}, "rollout": rollout}
    return RlConfig(model="m", rewards="exact", **own)


def limited(output: Path | str, response_tokens: int = 30, **rollout: Any) -> RlConfig:
    """A run whose prompts have 20 tokens at most."""
    limits = {"max_prompt_tokens": 20, "max_response_tokens": response_tokens, **rollout}
    return RlConfig(model="m", rewards="exact", output=str(output), rollout=limits)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("algorithm.kl_in", {"kl_in": "reward", "kl_coef": 0.1, "kl_estimator": "k1"}),
        ("algorithm.reward_clip", {"reward_clip": 1.0}),
        ("algorithm.whiten_rewards", {"whiten_rewards": True}),
        ("algorithm.overlong_buffer", {"overlong_buffer": 0.5}),
        ("scoring.on_failure", {"scoring": {"on_failure": "score", "failure_score": 0.0}}),
        ("scoring.incomplete_score", {"scoring": {"incomplete_score": -1.0}}),
    ],
)
def test_what_acts_on_the_summed_score_is_refused_where_only_its_parts_are_read(field, settings) -> None:
    with pytest.raises(ConfigError, match=f"{field} is .* estimator 'gdpo' reads each reward by itself"):
        check_estimator(config_of("gdpo", **settings), resolve_estimator("gdpo"))
    check_estimator(config_of("grpo", **settings), resolve_estimator("grpo"))
    check_estimator(config_of("gae", **settings), resolve_estimator("gae"))


@pytest.mark.parametrize("settings", [{"normalize": "domain"}, {"reward_clip": 1.0}])
def test_that_holds_for_what_domains_do_to_the_sum(settings: dict[str, Any]) -> None:
    (field,) = settings
    domains = {"sums": {"train": "x", **settings}, "unseen": {"share": 0, "eval": "y"}}
    config = RlConfig(model="m", rewards="exact", domains=domains)
    told = rf"domains\.sums\.{field} is .* estimator 'gdpo' reads each reward by itself"
    with pytest.raises(ConfigError, match=told):
        check_estimator(config, resolve_estimator("gdpo"))
    check_estimator(config, resolve_estimator("grpo"))
    check_estimator(config_of("gdpo", kl_in="loss", kl_coef=0.1), resolve_estimator("gdpo"))


def test_rewards_are_whitened_by_minibatch_only_for_estimators_that_read_each_response_alone() -> None:
    def config(name: str, minibatches: int = 2) -> RlConfig:
        algorithm = {"estimator": name, "whiten_rewards": True, "whiten_over": "minibatch"}
        return RlConfig(model="m", rewards="exact", algorithm=algorithm, optimization={"minibatches": minibatches})

    check_estimator(config("gae"), resolve_estimator("gae"))
    check_estimator(config("grpo", minibatches=1), resolve_estimator("grpo"))  # one minibatch is the step
    for name in ("grpo", "raw", "burnish.algorithms.advantages.outcome:raw"):
        with pytest.raises(ConfigError, match="whiten_over is minibatch"):
            check_estimator(config(name), resolve_estimator(name))


def test_a_group_of_one_is_refused_for_estimators_from_outside_too() -> None:
    """Its name tells the run file nothing; its signature does."""
    outside = "burnish.algorithms.advantages.outcome:dr_grpo"
    with pytest.raises(ConfigError, match=r"rollout\.group_size is 1"):
        check_estimator(config_of(outside, size=1), resolve_estimator(outside))
    check_estimator(config_of(outside, size=2), resolve_estimator(outside))


def without_values(scores_B: Any) -> Any:
    """An estimator of a user's."""
    return scores_B


def test_a_critic_that_no_estimator_asks_for_is_refused() -> None:
    """Its warm-up would be subtracted from the policy's steps, whose learning rate would then be negative."""
    config = config_of(f"{__name__}:without_values").model_copy(update={"critic": CriticConfig(warmup_steps=10)})
    estimator = SimpleNamespace(name="mine", needs_values=False, token_level=False, inputs=("scores_B",))
    with pytest.raises(ConfigError, match=r"critic\.warmup_steps is 10, but the estimator 'mine' asks for no values"):
        check_estimator(config, estimator)


def test_a_target_makes_the_coefficient_adaptive() -> None:
    """KL twice the target: error bounded at .2, 10 of 100 responses of the horizon."""
    adaptive = build_kl(config_of("grpo", kl_in="loss", kl_coef=0.1, kl_target=1.0, kl_horizon=100).algorithm)
    assert adaptive.update(2.0, 10) == pytest.approx(0.1 * 1.02)
    assert build_kl(config_of("grpo", kl_in="loss", kl_coef=0.1).algorithm).update(2.0, 10) == 0.1


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed beside burnish")
@pytest.mark.parametrize(("staleness", "workers", "said"), [(0, 0, 0), (0, 1, 0), (2, 0, 1), (2, 1, 0)])
def test_sampling_ahead_in_the_processes_that_train_saves_no_time(staleness: int, workers: int, said: int) -> None:
    data = {"model": "m", "rewards": "exact", "max_staleness": staleness, "cluster": {"rollout_workers": workers}}
    config = RlConfig.model_validate(data)
    lines = no_overlap_lines(config)
    assert len(lines) == said
    assert all("max_staleness is 2, which saves no time without cluster.rollout_workers" in line for line in lines)


JUDGE = {"name": "judge", "options": {"model_path": "somewhere"}}
SERVED = {"name": "judge", "options": {"url": "http://localhost/v1", "model": "m"}}
AHEAD = {"max_staleness": 1, "cluster": {"rollout_workers": 1}}


@pytest.mark.parametrize(
    ("rewards", "settings", "twice"),
    [
        ([JUDGE], {}, False),
        (["model:rm"], {}, False),
        ([JUDGE, "model:rm"], {}, True),
        ([JUDGE, "model:rm"], {"cluster": {"own_process": ["reward_model"]}}, False),
        (["exact"], AHEAD, False),
        ([JUDGE], AHEAD, True),
        (["model:rm"], AHEAD, True),
        (["model:rm"], {"cluster": {"rollout_workers": 1}}, False),
        (["model:rm"], {"max_staleness": 1, "cluster": {"rollout_workers": 1, "trainers": 2}}, False),
        ([SERVED, "model:rm"], AHEAD, True),
        ([SERVED], AHEAD, False),
    ],
)
def test_no_faster_precision_where_two_models_compute_at_once(rewards, settings, twice: bool) -> None:
    config = RlConfig.model_validate({"model": "m", "rewards": rewards, **settings})
    assert computes_twice_at_once(config) is twice
    assert len(precision_lines(config)) == twice


def test_pages_are_chosen_by_the_trained_model_before_rewards_have_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    scorer = Mock(side_effect=lambda *_, **__: done.append("rewards") or MagicMock())
    monkeypatch.setattr(parts, "choose_pages", lambda model: done.append(f"pages of {model.path}"))
    monkeypatch.setattr(parts, "ProcessRewardScorer", scorer)
    with open_scorer(config_of("grpo"), Console(quiet=True), FastPaths()):
        assert done == ["pages of m", "rewards"]


def test_vllm_needs_an_interpreter_that_has_it() -> None:
    with pytest.raises(ConfigError, match="has no vllm") as caught:
        traits_of("vllm").check_here(RolloutConfig())
    assert f"{sys.executable} -m pip install vllm" in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be started"):
        traits_of("vllm").check_here(RolloutConfig(vllm=VllmConfig(python="no/such/python")))


def unloaded_model() -> Any:
    facts = {"eos_token_ids": (), "pad_token_id": 0, "context_length": 100, "plain": False, "kernels": "auto"}
    return SimpleNamespace(model=None, tokenizer=None, paths=None, vocabulary=16, **facts)


class Held(Engine):
    """An engine that holds something."""

    held = False

    def __init__(self, model: Any, **arguments: Any) -> None:
        assert arguments["context_length"] == 50

    def __enter__(self) -> Held:
        Held.held = True
        return self

    def __exit__(self, *exception: object) -> None:
        Held.held = False


def test_an_engine_that_holds_something_is_let_go_however_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("engines_of_mine")
    vars(made).update(Held=Held)
    monkeypatch.setitem(sys.modules, "engines_of_mine", made)
    config = limited("out")
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"engine": "engines_of_mine:Held"})})

    def fail() -> None:
        with open_rl_engine(config, unloaded_model(), Console()):
            assert Held.held
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not Held.held


def test_vllm_is_told_the_longest_context_that_the_run_needs(tmp_path: Path) -> None:
    config, request = limited(tmp_path, engine="vllm"), RolloutRequest.of("p", 0, (1,) * 60, (0,))
    opening = open_rl_engine(config, unloaded_model(), Console())
    with opening as engine, pytest.raises(RolloutError, match="context of 50"):
        engine.generate([request], Sampling(4), seed=0, step=0)


def test_the_local_engine_is_told_as_well_and_says_what_is_slower(tmp_path: Path) -> None:
    """A window that no text of the run is long enough for needs no care; a model that samples row by row says so."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 90}
    layers = {"attention_types": [[["global", "local"], 1]], "window_size": 50, "initializer_range": 0.3}
    loaded = unloaded_model()
    loaded.model = GPTNeoForCausalLM(GPTNeoConfig(**sizes, **layers)).eval()
    said = []
    for tokens in (30, 31):
        console = Console(record=True, width=200)
        with open_rl_engine(limited(tmp_path, tokens), loaded, console):
            said.append(console.export_text())
    assert said[0] == ""
    assert "sampling is slower than for most models: this gpt_neo model" in said[1]
