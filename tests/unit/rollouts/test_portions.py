"""Requests in portions of about equal work."""

from burnish.rollouts.portions import cut, in_order
from burnish.types import FinishReason, Rollout, RolloutRequest


def request(number: int, prompt_tokens: int, samples: int) -> RolloutRequest:
    return RolloutRequest.of(f"p{number}", number, (1,) * prompt_tokens, tuple(range(samples)))


def test_portions_are_of_about_equal_work() -> None:
    requests = [request(0, 10, 1), request(1, 10, 4), request(2, 10, 1), request(3, 30, 1)]
    # With responses of 5 tokens they cost 15, 30, 15 and 35.
    found = [[r.group_id for r in portion.requests] for portion in cut(requests, 2, max_response_tokens=5)]
    assert found == [[2, 3], [0, 1]]


def test_there_are_no_empty_portions() -> None:
    assert [portion.index for portion in cut([request(0, 3, 2)], 4, 5)] == [0]
    assert cut([], 4, 5) == []


def test_rollouts_in_the_order_of_their_requests() -> None:
    rollouts = [
        Rollout(f"p{group}", group, sample, (), (), (), FinishReason.STOP, 0) for group in (1, 0) for sample in (1, 0)
    ]
    ordered = in_order([request(0, 1, 2), request(1, 1, 2)], rollouts)
    assert [(rollout.group_id, rollout.sample_index) for rollout in ordered] == [(0, 0), (0, 1), (1, 0), (1, 1)]
