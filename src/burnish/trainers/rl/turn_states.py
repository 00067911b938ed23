"""In which state of its environment each turn of the policy was taken, as numbers that can be compared.

A state is known by what the environment showed. Two turns of a group are in the same state if what they answer is the
same, or, more strictly, if everything before them is.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Sequence

from burnish.types import Rollout, Turn

Numbers = list[list[int]]
"""One number for each turn of the policy, row by row."""


def turn_states(rollouts: Sequence[Rollout]) -> tuple[Numbers, Numbers]:
    """The states by the last observation, and by the whole history. Numbers are comparable within a group, whose rows
    have the same prompt."""
    observations: dict[Hashable, int] = {}
    histories: dict[Hashable, int] = {}
    by_observation: Numbers = []
    by_history: Numbers = []
    for rollout in rollouts:
        group = rollout.group_id
        keys = [(group, observed(rollout, turn)) for turn in rollout.policy_turns()]
        by_observation.append([observations.setdefault(key, len(observations)) for key in keys])
        pasts = [(group, digest) for digest in _digests(rollout)]
        by_history.append([histories.setdefault(past, len(histories)) for past in pasts])
    return by_observation, by_history


def observed(rollout: Rollout, turn: Turn) -> Hashable:
    """What this turn of the policy answers: what was said since the policy's turn before, and nothing for the first
    one, which answers the prompt.

    By author, role and content, because the tokens around a message depend on how the policy's turn before it ended.
    """
    before = rollout.turns[: rollout.turns.index(turn)] if rollout.turns else ()
    since: list[Hashable] = []
    for other in reversed(before):
        if other.author == "policy":
            break
        said = tuple((message.role, message.content) for message in other.messages)
        since.append((other.author, said or rollout.response_tokens[other.start : other.stop]))
    return tuple(reversed(since))


def _digests(rollout: Rollout) -> list[bytes]:
    """A hash of all tokens of the response before each turn of the policy."""
    hashed, position, digests = hashlib.blake2b(digest_size=16), 0, []
    for turn in rollout.policy_turns():
        hashed.update(array("q", rollout.response_tokens[position : turn.start]).tobytes())
        digests.append(hashed.copy().digest())
        position = turn.start
    return digests
