"""Rewards: plain functions with named parameters, run in killable processes. No torch, because workers import this.

`burnish.rewards.exact()`, `burnish.rewards.length(maximum=64)` and so on configure a built-in reward in Python.
"""

from burnish.rewards.constructors import (
    FunctionReward,
    choice,
    code,
    command,
    environment,
    exact,
    format,
    function,
    instructions,
    json_schema,
    judge,
    length,
    math,
    model,
    overlong,
    reasoning_gym,
    regex,
    repetition,
)
from burnish.rewards.gold import GoldFailure, GoldReport, check_gold, gold_response
from burnish.rewards.protocol import RewardScorer
from burnish.rewards.registry import BUILT_INS, BuiltIn
from burnish.rewards.scorer import ProcessRewardScorer

__all__ = [
    "BUILT_INS",
    "BuiltIn",
    "FunctionReward",
    "GoldFailure",
    "GoldReport",
    "ProcessRewardScorer",
    "RewardScorer",
    "check_gold",
    "choice",
    "code",
    "command",
    "environment",
    "exact",
    "format",
    "function",
    "gold_response",
    "instructions",
    "json_schema",
    "judge",
    "length",
    "math",
    "model",
    "overlong",
    "reasoning_gym",
    "regex",
    "repetition",
]
