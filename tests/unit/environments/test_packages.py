"""Games of Gymnasium, GEM and TextArena."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from burnish.environments.loading import find_environment
from burnish.environments.protocol import Step
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.types import Json


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("gym:FrozenLake-v1", "gymnasium", "gymnasium"),
        ("gem:game:GuessTheNumber-v0-easy", "gem", "gem-llm"),
        ("textarena:GuessTheNumber-v0", "textarena", "textarena"),
    ],
)
def test_what_to_install(name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [key for key in sys.modules if key.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "path", [])  # nothing can be found any more
    with pytest.raises(ConfigError, match=f"but {package} is not installed\n  -> pip install {package}"):
        find_environment(name, {})


def test_a_package_that_fails_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gem.py").write_text("import nothing_of_this_name\n")
    monkeypatch.delitem(sys.modules, "gem", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match="importing gem failed: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    ):
        find_environment("gem:any", {})


def test_gymnasium() -> None:
    pytest.importorskip("gymnasium", reason="needs gymnasium")
    source = find_environment("gym:FrozenLake-v1", {"is_slippery": False})
    assert (source.answers_text, source.schemas) == (True, ())
    lake = source.start({"prompt": "Cross.", "options": ["A"]}, 3)
    assert lake.opening == "0"
    assert lake.step("I go right: 2") == Step("1", 0.0, False)
    assert lake.step("9") == Step("Error: write one integer from 0 to 3.", 0.0, False)
    for action in ("2", "1", "1", "1"):
        last = lake.step(action)
    assert last == Step("14", 0.0, False)
    assert lake.step("2") == Step("15", 1.0, True)
    assert (lake.ended(), lake.reward()) == (True, 1.0)
    lake.close()
    blackjack = find_environment("gym:Blackjack-v1", {})
    hands = [blackjack.start({}, seed).opening for seed in (5, 5, 6, 7, 8)]
    assert hands[0] == hands[1]
    assert len(set(map(str, hands))) > 1


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("FrozenLak-v1", {}, ConfigError, "which Gymnasium does not have: .*FrozenLake"),
        ("Pendulum-v1", {}, ConfigError, "whose actions are Box"),
        ("CartPole-v1", {}, EnvironmentFailedError, "a value of the type numpy.ndarray"),
        (
            "Blackjack-v1",
            {"nothing": 1},
            EnvironmentFailedError,
            "making the environment gym:Blackjack-v1 failed: TypeError",
        ),
    ],
)
def test_what_gymnasium_does_not_have(
    name: str, options: Mapping[str, Json], kind: type[Exception], message: str
) -> None:
    pytest.importorskip("gymnasium", reason="needs gymnasium")
    with pytest.raises(kind, match=message):
        find_environment(f"gym:{name}", options).start({}, 0)


def test_a_class_of_gymnasium_in_a_file(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="needs gymnasium")
    (tmp_path / "corridor.py").write_text(
        "import gymnasium\n"
        "class Corridor(gymnasium.Env):\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        assert options is None\n"
        "        self.place = int(self.np_random.integers(3))\n"
        "        return str(self.place), {}\n"
        "    def step(self, action):\n"
        "        self.place += int(action)\n"
        "        return str(self.place), 0.5, self.place > 3, False, {}\n"
        "    def neighbours(self): return []\n"  # a public helper does not make it a class of tools
    )
    source = find_environment(f"{tmp_path / 'corridor.py'}:Corridor", {})
    first, second = (source.start({"options": ["A", "B"]}, 4) for _ in range(2))
    assert first.opening == second.opening
    assert isinstance(first.opening, str)
    assert first.step("1").text == str(int(first.opening) + 1)


def test_textarena() -> None:
    pytest.importorskip("textarena", reason="needs textarena")
    source = find_environment("textarena:GuessTheNumber-v0", {})
    game = source.start({"prompt": "x"}, 7)
    assert isinstance(game.opening, str)
    assert game.opening.startswith("You are Player 0. You are playing Guess The Number.")
    said = game.step("[10]")
    assert said.text in ("The target number is higher.", "The target number is lower.")  # nothing is repeated
    assert (said.reward, game.reward()) == (None, None)
    game.close()
    game = source.start({}, 7)
    low, high = 1, 20
    while not game.ended():
        guess = (low + high) // 2
        said = game.step(f"[{guess}]")
        low, high = (guess + 1, high) if "higher" in said.text else (low, guess - 1)
    assert game.reward() == 1.0
    game.close()


def test_what_textarena_does_not_have() -> None:
    pytest.importorskip("textarena", reason="needs textarena")
    with pytest.raises(ConfigError, match="which TextArena does not have\n  -> did you mean 'GuessTheNumber-v0'"):
        find_environment("textarena:GuessTheNumba-v0", {})
    with pytest.raises(EnvironmentFailedError, match="textarena:TicTacToe-v0 with one player failed"):
        find_environment("textarena:TicTacToe-v0", {}).start({}, 0)


def test_gem() -> None:
    pytest.importorskip("gem", reason="needs gem-llm")
    source = find_environment("gem:game:GuessTheNumber-v0-easy", {"max_number": 8})
    game = source.start({"prompt": "x"}, 7)
    assert isinstance(game.opening, str)
    assert "between 1 and 8" in game.opening
    assert game.step("\\boxed{4}") == source.start({}, 7).step("\\boxed{4}")
    assert game.step("nothing").ended
    with pytest.raises(ConfigError, match="which GEM does not have"):
        find_environment("gem:nothing", {})
