"""The dense reward of the arithmetic-sequence task.

A prompt `a,b:m,n` asks for the next n terms of the sequence a, b, ... modulo m, joined by commas, and then the end of
the response. Each right token of the answer, including its end, earns something, up to the first wrong one.
"""

from __future__ import annotations

from burnish.types import Score

VOCABULARY = "SEPU0123456789,:"  # by token id; E ends a response
END = "E"


def expected(prompt: str) -> str:
    """The right answer with its end: `expected("8,3:9,4") == "7,2,6,1E"`."""
    start, rest = prompt.split(":")
    first, second = (int(number) for number in start.split(","))
    modulus, count = (int(number) for number in rest.split(","))
    terms = ((second + (second - first) * k) % modulus for k in range(1, count + 1))
    return ",".join(map(str, terms)) + END


def right_tokens(given: str, wanted: str) -> int:
    """How many tokens agree before the first that does not."""
    agree = [a == b for a, b in zip(given, wanted, strict=False)]
    return agree.index(False) if False in agree else len(agree)


def prefix(prompt: str, response_tokens: list[int], per_token: float | None = None) -> Score:
    """Fraction of the answer's tokens that the response gets right before its first mistake: 0 to 1, and 1 is solved.

    With `per_token` every right token earns that much instead, whatever the length of the answer. Parts: `fraction`, as
    above; `fraction_without_end`, the same without the share for the end, as in the original setup of this task (a
    perfect answer then earns less than 1, an answer without terms nothing); `solved`.
    """
    wanted = expected(prompt)
    right = right_tokens("".join(VOCABULARY[token] for token in response_tokens), wanted)
    earned = 1 / len(wanted) if per_token is None else per_token
    token_rewards = tuple(earned if index < right else 0.0 for index in range(len(response_tokens)))
    parts = {
        "fraction": right / len(wanted),
        "fraction_without_end": min(right, len(wanted) - 1) / len(wanted),
        "solved": float(right == len(wanted)),
    }
    return Score(value=sum(token_rewards), parts=parts, token_rewards=token_rewards)
