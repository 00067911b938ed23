"""Guess a number from 1 to 16 in five guesses. Halving what is left always finds it; with luck it takes fewer."""

from __future__ import annotations

import math
import random
import re

LARGEST = 16
GUESSES = 5
UNREADABLE = f"write one number from 1 to {LARGEST}"


class GuessTheNumber:
    """A game: every turn of the model is a guess, and is answered by `step`.

    hints: answer a wrong guess with "higher" or "lower", not just with "wrong". Without them nobody can do better than
    five guesses in sixteen, so whoever does has seen the number.
    turn_rewards: pay each guess for what it has ruled out, in bits, such that a number that is found pays 1 in sum, and
    one that is known but not said about 0.76. Otherwise only the guess that finds it is paid, with 1.
    """

    def __init__(self, hints: bool = True, turn_rewards: bool = False) -> None:
        self._hints = hints
        self._turn_rewards = turn_rewards

    def reset(self, number: int | None = None, **row: object) -> str:
        """Take the number of the row, if it has one, or draw one. `random` is seeded before, equally for a group."""
        self._number = random.randint(1, LARGEST) if number is None else number
        if self._number not in range(1, LARGEST + 1):
            raise ValueError(f"the row's number is {number!r}, not an integer from 1 to {LARGEST}")
        self._left = set(range(1, LARGEST + 1))  # what it can be, for somebody who knows the answers alone
        self._found = False
        self._guesses = 0
        return f"Guess a number from 1 to {LARGEST}. You have {GUESSES} guesses."

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, object]]:
        """Answer a guess: observation, reward, terminated (found), truncated (out of guesses), info."""
        self._guesses += 1
        guess = read(text)
        found = guess == self._number
        before = self._bits_to_go()
        if guess is not None:
            self._left = {number for number in self._left if self._answer(guess) == self._answer_if(guess, number)}
        self._found = found
        reward = (before - self._bits_to_go()) / math.log2(LARGEST + 1) if self._turn_rewards else float(found)
        return self._answer(guess), reward, found, not found and self._guesses == GUESSES, {}

    def _bits_to_go(self) -> float:
        return 0.0 if self._found else math.log2(len(self._left) + 1)  # 1 for the guess that says it

    def _answer(self, guess: int | None) -> str:
        return UNREADABLE if guess is None else self._answer_if(guess, self._number)

    def _answer_if(self, guess: int, number: int) -> str:
        if guess == number:
            return "correct"
        if not self._hints:
            return "wrong"
        return "higher" if guess < number else "lower"


def read(text: str) -> int | None:
    """The guess in a turn: the one number that it holds."""
    numbers = re.findall(r"[0-9]+", text)
    return int(numbers[0]) if len(numbers) == 1 and len(numbers[0]) < 4 and 1 <= int(numbers[0]) <= LARGEST else None
