"""Games of Gymnasium, and those of other packages by the files of examples/environments."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from burnish.agents.environments.loading import find_environment
from burnish.agents.environments.protocol import EnvironmentSource, Step
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.types import Json

EXAMPLES = Path(__file__).parents[4] / "examples" / "environments"


def found(package: str, name: str, options: dict[str, Json]) -> EnvironmentSource:
    """Games of a package, or of the file that is an example for it."""
    pytest.importorskip(package, reason=f"the package {package} is not installed")
    source = find_environment(name if ".py:" not in name else f"{EXAMPLES / name}", options)
    assert (source.answers_text, source.schemas) == (True, ())
    return source


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"but gymnasium is not installed .*\n  -> pip install gymnasium"):
        find_environment("gym:FrozenLake-v1", {})


def test_gymnasium() -> None:
    lake = found("gymnasium", "gym:FrozenLake-v1", {"is_slippery": False}).start({"prompt": "?", "options": ["A"]}, 3)
    assert lake.opening == "0"
    assert lake.step("I go right: 2") == Step("1", 0.0, False)
    assert lake.step("9") == Step("Error: write one integer from 0 to 3.", 0.0, False)
    assert [lake.step(action).text for action in ("2", "1", "1", "1")] == ["2", "6", "10", "14"]
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
        ("Blackjack-v1", {"nothing": 1}, ConfigError, "gym:Blackjack-v1', but calling it failed: TypeError"),
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
    assert first.step("1").text == str(int(first.opening) + 1)


def test_textarena() -> None:
    source = found("textarena", "textarena_game.py:Game", {"id": "GuessTheNumber-v0"})
    game = source.start({"prompt": "x"}, 7)
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
    two = find_environment(f"{EXAMPLES / 'textarena_game.py'}:Game", {"id": "TicTacToe-v0"})
    with pytest.raises(EnvironmentFailedError, match=r"reset of the environment .*textarena_game\.py:Game failed"):
        two.start({}, 0)


def test_gem() -> None:
    source = found("gem", "gem_game.py:Game", {"id": "game:GuessTheNumber-v0-easy", "max_number": 8})
    game = source.start({"prompt": "x"}, 7)
    assert "between 1 and 8" in game.opening
    assert game.step("\\boxed{4}") == source.start({}, 7).step("\\boxed{4}")
    assert game.step("nothing").ended


def test_skyrl_gym() -> None:
    source = found("skyrl_gym", "skyrl_gym_task.py:Task", {"id": "gsm8k_multi_turn"})
    row: dict[str, Json] = {"prompt": "1+1?", "reward_spec": {"ground_truth": "2"}, "extra_info": {"max_turns": 2}}
    task = source.start(row, 0)
    assert task.opening is None
    said = task.step("#### 3")
    assert said.text.startswith("Now provide only the final numeric answer")
    assert (said.reward, said.ended) == (0.1, False)
    assert task.step("#### 2") == Step("", 1.0, True)
    assert task.reward() == 1.1
    task.close()
