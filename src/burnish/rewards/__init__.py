"""Rewards: plain functions with named parameters, run in killable processes. No torch, because workers import this."""

from burnish.rewards.gold import GoldFailure, GoldReport, check_gold, gold_response
from burnish.rewards.protocol import RewardScorer
from burnish.rewards.registry import BUILT_INS, BuiltIn
from burnish.rewards.scorer import ProcessRewardScorer

__all__ = [
    "BUILT_INS",
    "BuiltIn",
    "GoldFailure",
    "GoldReport",
    "ProcessRewardScorer",
    "RewardScorer",
    "check_gold",
    "gold_response",
]
