"""Numbers of responses, and which of them a reward still has to be given."""

from __future__ import annotations

import dataclasses
from typing import Any

from burnish.rewards.begun import BegunResponses


def test_a_response_keeps_the_number_with_which_it_was_begun(make_items: Any) -> None:
    begun, (first, second, third) = BegunResponses(), make_items(["a", "b", "c"])
    assert begun.begin([third]) == [0]
    assert begun.begin([first]) == [1]
    assert [begun.has(rollout) for _, rollout in (first, second, third)] == [True, False, True]
    assert begun.finish([first, second, third]) == [1, 2, 0]


def test_another_response_of_the_same_name_gets_a_new_number(make_items: Any) -> None:
    begun, ((prompt, rollout),) = BegunResponses(), make_items(["a"])
    begun.begin([(prompt, rollout)])
    assert begun.finish([(prompt, dataclasses.replace(rollout, response="b"))]) == [1]


def test_each_reward_is_given_a_response_once(make_items: Any) -> None:
    begun, items = BegunResponses(), make_items(["a", "b"])
    (number,) = begun.begin(items[:1])
    assert begun.to_give(0, [(number, items[0])]) == [(number, items[0])]
    numbered = list(zip(begun.finish(items), items, strict=True))
    assert begun.to_give(0, numbered) == numbered[1:]
    assert begun.to_give(1, numbered) == numbered
