"""Numbers of responses, and which of them a reward still has to be given."""

import dataclasses

from burnish.rewards.in_workers import BegunResponses


def test_another_response_of_the_same_name_gets_a_new_number(make_items) -> None:
    begun, ((prompt, rollout),) = BegunResponses(), make_items(["a"])
    begun.begin([(prompt, rollout)])
    assert begun.finish([(prompt, dataclasses.replace(rollout, response="b"))]) == [1]
