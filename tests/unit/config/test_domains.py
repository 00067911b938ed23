"""The `domains` section: what it resolves to, and what it refuses."""

import re
from typing import Any

import pytest

from burnish.config.domains import ALL, domain_settings, responses_per_step
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.planning.rl import plan_rl


def load(domains: dict[str, Any], *overrides: str, **fields: Any) -> RlConfig:
    return load_run_data({"model": "m", "domains": domains, **fields}, overrides).config


RAW = {"algorithm": {"estimator": "raw"}}
RAW_OF_ONE = {**RAW, "rollout": {"group_size": 1}}
MATH = {"train": "math.jsonl", "rewards": "math"}
CODE = {"train": "code.jsonl", "rewards": [{"name": "code", "weight": 2.0}]}


def test_without_domains_there_is_one_for_all_prompts() -> None:
    config = load_run_data({"model": "m", "data": {"train": "x.jsonl"}, "rewards": "math"}).config
    (one,) = domain_settings(config)
    assert (one.name, one.key, one.group_size, one.shares) == (None, ALL, config.rollout.group_size, {0: 1.0})
    assert ([source.path for source in one.train], [reward.name for reward in one.rewards]) == (["x.jsonl"], ["math"])
    assert config.all_rewards == config.rewards
    assert responses_per_step(config) == config.rollout.prompts_per_step * config.rollout.group_size


def test_a_domain_takes_what_it_does_not_set_from_the_other_sections() -> None:
    config = load({"math": {**MATH, "max_response_tokens": 64}, "code": {**CODE, "group_size": 4}})
    math, code = domain_settings(config)
    assert (math.max_response_tokens, math.group_size) == (64, config.rollout.group_size)
    assert (code.max_response_tokens, code.group_size) == (config.rollout.max_response_tokens, 4)


def test_rewards_are_bound_from_either_side() -> None:
    rewards = [{"name": "length", "options": {"target": 9}}, {"name": "format", "domains": "code"}]
    math, code = domain_settings(load({"math": MATH, "code": CODE}, rewards=rewards))
    assert [reward.log_label for reward in math.rewards] == ["length", "math"]
    assert [reward.log_label for reward in code.rewards] == ["length", "format", "code"]


def test_a_reward_that_two_domains_name_is_there_once() -> None:
    config = load({"easy": MATH, "hard": {**MATH, "train": "hard.jsonl"}})
    assert [(reward.log_label, reward.domains) for reward in config.all_rewards] == [("math", ("easy", "hard"))]


def test_shorthand_and_overrides_reach_into_domains() -> None:
    overrides = "domains.code.rewards.0.weight=3", "domains.math.share={0: 0.8, 5: 0.2}"
    config = load({"math": MATH, "code": CODE}, *overrides)
    assert config.domains["code"].rewards[0].weight == 3.0
    assert domain_settings(config)[0].shares == {0: 0.8, 5: 0.2}


def test_the_most_responses_of_a_step() -> None:
    """Of 7 prompts 2.8 and 4.2: at most 3 of groups of 10, then 4 of groups of 2."""
    domains = {"math": {**MATH, "share": 0.4, "group_size": 10}, "code": {**CODE, "share": 0.6, "group_size": 2}}
    assert responses_per_step(load(domains, rollout={"prompts_per_step": 7})) == 3 * 10 + 4 * 2


def test_the_plan_says_what_each_domain_has_in_each_stage() -> None:
    """Of 6 prompts: 5 and 1 at first, 3 and 3 from step 2 on."""
    domains = {"math": {**MATH, "share": 0.5}, "code": {**CODE, "share": {0: 0.1, 2: 0.5}}}
    plan = plan_rl(load(domains, rollout={"prompts_per_step": 6}, steps=9))
    found = {line.name: line.value for line in plan.lines if line.name.startswith("prompts of")}
    assert found == {"prompts of math": "5, 3 from step 2", "prompts of code": "1, 3 from step 2"}


def test_the_deciding_reward_of_all_decides_only_where_it_scores() -> None:
    math, code = domain_settings(load({"math": MATH, "code": CODE}, evaluation={"success": "math"}))
    assert (math.evaluation.success, code.evaluation.success) == ("math", None)


@pytest.mark.parametrize(
    ("domains", "fields", "message"),
    [
        ({"math": {"rewards": "math"}}, {}, "domains.math.train is empty"),
        ({"math": {"train": "x.jsonl"}}, {}, "domains.math.rewards is empty"),
        ({"math": {**MATH, "share": 0}}, {}, "all have the share 0"),
        ({"math": {**MATH, "share": {5: 1.0}}}, {}, "add a value for step 0"),
        ({"math": {**MATH, "share": {0: 1.0, 101: 2.0}}}, {"steps": 100}, "but the run has 100 steps"),
        ({"math": {**MATH, "max_response_tokens": 999}}, {}, "above rollout.max_response_tokens"),
        ({"math": {**MATH, "group_size": 1}}, {}, "compares the responses to each prompt"),
        ({"math": {**MATH, "difficulty": {"keep": [0.9, 0.1]}}}, {}, "write the lower bound first"),
        ({"math": {**MATH, "difficulty": {"kep": [0.1, 0.9]}}}, {}, "did you mean domains.math.difficulty.keep?"),
        ({"math": {**MATH, "shares": 1}}, {}, "did you mean domains.math.share?"),
        ({"math": {**MATH, "normalize": "grup"}}, {}, "did you mean 'group'?"),
        ({"math": {**MATH, "evaluation": {"success": "mat"}}}, {}, "not the label of a reward of this domain"),
        ({"math": {**MATH, "train": {"path": "x", "domain": "y"}}}, {}, "its rows belong to math"),
        ({"math": MATH}, {"data": {"train": "x.jsonl"}}, "every domain names its own train data"),
        ({"math": MATH}, {"rewards": {"name": "exact", "domains": "maths"}}, "names 'maths', which is not a domain"),
        ({"math": {**MATH, "rewards": {"name": "math", "domains": "math"}}}, {}, "belongs to the domain math"),
        ({"math": MATH, "more": {**MATH, "rewards": {"name": "math", "weight": 2}}}, {},
         "also the label of domains.math.rewards.0"),
        ({"a.b": MATH}, {}, "domains has the key 'a.b', which cannot be part of dotted paths"),
        ({"math": {**MATH, "share": {"soon": 1.0}}}, {}, "domains.math.share is {'soon': 1.0}"),
        ({"math": {**MATH, "group_size": 1, "normalize": "group"}}, RAW,
         "group_size is 1, and domains.math.normalize leaves 0 of scores"),
        ({"math": {**MATH, "dynamic_sampling": True}}, RAW_OF_ONE,
         "rollout.group_size is 1, and domains.math.dynamic_sampling replaces groups"),
        ({"math": {**MATH, "difficulty": {"window": 4}}}, {}, "domains.math.difficulty leaves nothing out"),
        ({"math": {**MATH, "difficulty": {"min_spread": 0.1}}}, RAW_OF_ONE, "difficulty.min_spread leaves out groups"),
        ({"math": {**MATH, "difficulty": {"keep": [0.1, 0.9]}}}, RAW_OF_ONE, "no share of 1 responses (group_size)"),
        ({"math": {**MATH, "group_size": 4, "difficulty": {"keep": {0: [0.1, 0.9], 5: [0.3, 0.4]}}}}, {},
         "is [0.3, 0.4], but no share of 4 responses"),
        ({"math": {**MATH, "difficulty": {"outside": "drop"}}}, {"algorithm": "dapo"},
         "outside is drop, but algorithm.dynamic_sampling replaces"),
        ({"math": {**MATH, "rewards": "model:rm", "evaluation": {"success": "model"}}}, {},
         "domains.math.evaluation.success_score is not set, but"),
        ({"math": {**MATH, "rewards": ["math", "math"]}}, {},
         "domains.math.rewards.1.label 'math' is also the label of domains.math.rewards.0"),
        ({"math": MATH, "more": {**MATH, "rewards": ["math", "math"]}}, {},
         "domains.more.rewards.1.label 'math' is also"),
        ({"math": MATH}, {"rewards": "math"}, "domains.math.rewards.0.label 'math' is also the label of rewards.0"),
        ({"math": {**MATH, "rewards": [{"name": "math", "weight": 0}, {"name": "length", "audit": True}]}}, {},
         "domains.math.rewards has only weights of 0"),
        ({"math": {**MATH, "rewards": {"name": "math", "audit": True}}}, {}, "domains.math.rewards has only audits"),
        ({"math": MATH, "more": {"share": 0, "rewards": "math"}}, {}, "neither trained nor evaluated"),
        ({"math": MATH, "gym": {"train": {"reasoning_gym": {"game_of_life_halting": {}}}, "rewards": "reasoning_gym"}},
         {}, "domains.gym.rewards.0.options.allow does not name game_of_life_halting"),
        ({"math": MATH, "chat": {"train": "x", "rewards": {"name": "model:rm", "options": {"device": "cuda:1"}}}},
         {"cluster": {"own_process": ["reward_model"]}}, "domains.chat.rewards.0.options.device is cuda:1"),
        ({"math": {**MATH, "group_size": 2}, "off": {**MATH, "share": 0, "eval": "x", "group_size": 1}},
         {"rollout": {"prompts_per_step": 4}, "optimization": {"minibatches": 9}},
         "only 8 responses (rollout.prompts_per_step 4 x domains.math.group_size 2)"),
        ({"math": {**MATH, "max_response_tokens": 8}}, {"scoring": {"truncate_token": ".", "truncate_after": 8}},
         "a response of the domain math has at most 8 tokens"),
        ({"math": {**MATH, "stop": ["."]}, "code": CODE},
         {"rollout": {"ignore_eos": True}, "scoring": {"incomplete_score": 0}},
         "no response of the domain code ends"),
        ({"math": {**MATH, "evaluation": {"max_prompts": "al"}}}, {}, "domains.math.evaluation.max_prompts is 'al'"),
        ({"math": {**MATH, "loss_weight": 2}},
         {"algorithm": {"whiten_advantages": True, "whiten_over": "minibatch"}, "optimization": {"minibatches": 2}},
         "would undo the weights"),
    ],
)  # fmt: skip
def test_contradictions_are_named(domains: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(domains, **fields)


@pytest.mark.parametrize(
    ("domains", "fields"),
    [
        ({"math": {**MATH, "group_size": 4}}, {"rollout": {"group_size": 1}}),
        ({"math": MATH, "more": {"share": 0, "eval": "x.jsonl", "rewards": "math", "group_size": 1}}, {}),
        ({"math": {**MATH, "difficulty": {"keep": [0.0, 0.9]}}}, RAW_OF_ONE),
        ({"math": {**MATH, "stop": ["."]}}, {"rollout": {"ignore_eos": True}, "scoring": {"incomplete_score": 0}}),
        ({"math": MATH, "more": {"share": 0, "rewards": "math"}}, {"data": {"eval": "mixed.jsonl"}}),
        ({"math": MATH, "more": MATH}, {}),
    ],
)
def test_what_works_is_not_refused(domains: dict[str, Any], fields: dict[str, Any]) -> None:
    assert set(load(domains, **fields).domains) == set(domains)


def test_all_prompts_of_one_domain_can_be_evaluated() -> None:
    """Where `evaluation.max_prompts` limits the others."""
    math = {**MATH, "evaluation": {"max_prompts": "all"}}
    config = load({"math": math, "code": CODE}, evaluation={"max_prompts": 8})
    assert [domain.evaluation.max_prompts for domain in domain_settings(config)] == [None, 8]
