"""The game of examples/guess_the_number."""

from pathlib import Path

import pytest

from burnish.agents.environments.loading import find_environment
from burnish.agents.environments.protocol import EnvironmentSource, Step
from burnish.errors import EnvironmentFailedError
from burnish.types import Json

PLACE = Path(__file__).parents[4] / "examples" / "guess_the_number" / "environment.py"


def source(**options: Json) -> EnvironmentSource:
    return find_environment(f"{PLACE}:GuessTheNumber", options)


def bisected(number: int, **options: Json) -> tuple[list[Step], float | None]:
    """All steps of a player who halves what is left, and the reward."""
    game = source(**options).start({"number": number, "prompt": "Play."}, 0)
    steps: list[Step] = []
    low, high = 1, 16
    while not game.ended():
        guess = (low + high) // 2
        steps.append(game.step(f"I guess {guess}."))
        low, high = (guess + 1, high) if steps[-1].text != "lower" else (low, guess - 1)
    return steps, game.reward()


def test_halving_finds_every_number() -> None:
    for number in range(1, 17):
        steps, reward = bisected(number)
        assert (steps[-1].text, reward) == ("correct", 1.0)
        assert sum(step.reward or 0.0 for step in steps[:-1]) == 0.0
    assert len(bisected(16)[0]) == 5


def test_turn_rewards_sum_to_one_for_a_number_that_is_found() -> None:
    for number in range(1, 17):
        assert bisected(number, turn_rewards=True)[1] == pytest.approx(1.0)
    # 8 leaves 9 to 16: log2(17) = 4.087463 bits to go become log2(9) = 3.169925, in units of the former.
    first = bisected(16, turn_rewards=True)[0][0]
    assert first == Step("higher", pytest.approx(0.2244761), False)  # type: ignore[arg-type]


def test_nothing_is_paid_twice() -> None:
    game = source(turn_rewards=True).start({"number": 16}, 0)
    assert game.step("15").reward == pytest.approx(0.7553495)  # 1 - 1 / 4.087463: 16 is known, but not said
    for _ in range(3):
        assert game.step("15").reward == 0.0
    assert game.step("no number") == Step("write one number from 1 to 16", 0.0, True)
    assert game.reward() == pytest.approx(0.7553495)


def test_without_hints_there_is_only_luck() -> None:
    steps, reward = bisected(16, hints=False)
    assert [step.text for step in steps] == ["wrong", "wrong", "wrong", "wrong", "correct"]
    assert (bisected(3, hints=False)[1], reward) == (0.0, 1.0)


@pytest.mark.parametrize("text", ["", "seven", "0", "17", "3 or 4", "1" * 5000])
def test_a_turn_without_a_guess_is_lost(text: str) -> None:
    game = source().start({"number": 3}, 0)
    for _ in range(5):
        step = game.step(text)
    assert step == Step("write one number from 1 to 16", 0.0, True)


def test_a_group_gets_the_same_number() -> None:
    def answers(seed: int) -> list[str]:
        game = source().start({}, seed)
        return [game.step(str(guess)).text for guess in (8, 4, 12)]

    assert answers(1) == answers(1)
    assert len({tuple(answers(seed)) for seed in range(20)}) > 1
    with pytest.raises(EnvironmentFailedError, match="the row's number is '7', not an integer from 1 to 16"):
        source().start({"number": "7"}, 0)
