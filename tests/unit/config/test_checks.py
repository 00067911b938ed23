"""Roles that cannot rest are refused with the reason; those of the run are taken."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.config.loading import load_run_data
from burnish.config.schema import Kind
from burnish.errors import ConfigError

RUNS: dict[str, dict[str, Any]] = {
    "rl": {"model": "m", "data": {"train": "a"}, "rewards": "math"},
    "sft": {"model": "m", "data": {"train": "a"}},
    "rm": {"model": "m", "data": {"train": "a"}},
}


def refusal(kind: Kind, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_data(RUNS[kind], words, kind)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("rl", ("cluster.offload=[optimizer,optimizer]",), "names optimizer twice"),
        ("rl", ("algorithm=dapo", "cluster.offload=[reference]"), "names reference, but algorithm.kl_in is none"),
        (
            "rl",
            ("algorithm.kl_in=loss", "model.lora.rank=4", "cluster.offload=[reference]"),
            "the reference is the policy with its adapters off",
        ),
        ("rl", ("algorithm=grpo", "cluster.offload=[critic]"), "the estimator 'grpo' has no critic"),
        ("rl", ("algorithm=ppo", "critic.kind=shared", "cluster.offload=[critic]"), "a head on the policy's own"),
        ("rl", ("cluster.offload=[reward_model]",), "no reward is a reward model"),
        (
            "rl",
            ("rewards=model:rm", "cluster.own_process=reward_model", "cluster.offload=[reward_model]"),
            "names reward_model, but the reward model has a process of its own (own_process)",
        ),
        ("rl", ("cluster.offload=[rollout_engine]",), "names rollout_engine, but rollout.engine is 'local'"),
        (
            "rl",
            ("cluster.offload=[rollout_engine]", "rollout.engine=vllm", "cluster.rollout_workers=1"),
            "rollout workers have GPUs of their own",
        ),
        ("rl", ("cluster.offload=[rollout_engine]", "rollout.engine=vllm", "model.device=cpu"), "on GPUs only"),
        ("sft", ("cluster.offload=[rollout_engine]",), "names rollout_engine, but only runs of `burnish rl`"),
        ("sft", ("cluster.offload=[critic]",), "names critic, but only runs of `burnish rl`"),
        ("rm", ("cluster.offload=[optimizer,reference]",), "names reference, but only runs of `burnish rl`"),
        (
            "sft",
            ("cluster.offload=[optimizer]", "cluster.trainers=2", "cluster.sharding=full"),
            "does not work with cluster.sharding: full",
        ),
    ],
)
def test_what_cannot_rest_is_refused_with_the_reason(kind: Kind, words: tuple[str, ...], reason: str) -> None:
    text = refusal(kind, *words)
    assert "cluster.offload" in text
    assert reason in text


def test_a_role_that_is_not_known_is_refused() -> None:
    assert "cluster.offload" in refusal("rl", "cluster.offload=[policy]")


@pytest.mark.parametrize(
    ("kind", "words", "roles"),
    [
        ("rl", ("algorithm=ppo", "cluster.offload=optimizer"), ("optimizer",)),
        (
            "rl",
            ("algorithm=ppo", "rewards=model:rm", "cluster.offload=[critic,reference,reward_model,optimizer]"),
            ("critic", "reference", "reward_model", "optimizer"),
        ),
        ("rl", ("cluster.offload=rollout_engine", "rollout.engine=vllm"), ("rollout_engine",)),
        ("sft", ("cluster.offload=[optimizer]",), ("optimizer",)),
        ("rm", ("cluster.offload=[optimizer]",), ("optimizer",)),
    ],
)
def test_what_a_run_has_can_rest(kind: Kind, words: tuple[str, ...], roles: tuple[str, ...]) -> None:
    loaded = load_run_data(RUNS[kind], words, kind)
    assert loaded.config.cluster.offload == roles  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("rl", ("cluster.own_process=reward_model",), "is reward_model, but no reward is a reward model (model:PATH)"),
        (
            "rl",
            ("rewards=model:rm", "cluster.own_process=[reward_model,reward_model]"),
            "reward_model is named twice",
        ),
        (
            "rl",
            ("rewards=model:rm", "cluster.own_process=reward_model", "cluster.backend=inline"),
            "a process of its own for the reward model",
        ),
        ("rm", ("cluster.own_process=reward_model",), "only `burnish rl` has a reference, a critic or rewards"),
    ],
)
def test_what_has_no_process_of_its_own_is_refused_with_the_reason(
    kind: Kind, words: tuple[str, ...], reason: str
) -> None:
    assert reason in refusal(kind, *words)


def test_a_reward_model_of_its_own_process_cannot_choose_among_gpus() -> None:
    data = {**RUNS["rl"], "rewards": [{"name": "model:rm", "options": {"device": "cuda:1"}}]}
    with pytest.raises(ConfigError, match=r"rewards\.0\.options\.device.*cuda:1.*which sees one GPU"):
        load_run_data(data, ("cluster.own_process=reward_model",), "rl")
    assert load_run_data(data, (), "rl").rl.cluster.own_process == ()
