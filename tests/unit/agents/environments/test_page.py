"""The classes of docs/environments.md, as they are printed there."""

import re
from pathlib import Path

import pytest

from burnish.agents.environments.loading import find_environment
from burnish.agents.environments.protocol import Step

PAGE = Path(__file__).parents[4] / "docs" / "environments.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every block of Python as the file that its first line names."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in re.findall(r"^```python\n# (\w+\.py)(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M):
        (folder / name).write_text(f"#{text}", encoding="utf-8")
    assert len(list(folder.iterdir())) == 4
    return folder


def test_the_shop(folder: Path) -> None:
    source = find_environment(f"{folder / 'shop.py'}:Shop", {})
    assert len(source.schemas) == 1
    shop = source.start({"stock": {"tea": 2}, "prompt": "Sell all."}, 0)
    assert shop.opening == "The shop has tea."
    with pytest.raises(ValueError, match="there are only 2 of tea"):
        shop.call("sell", {"item": "tea", "number": 3})
    assert shop.call("sell", {"item": "tea"}) == "sold"
    assert not shop.ended()
    assert shop.call("sell", {"item": "tea"}) == "sold"
    assert (shop.ended(), shop.reward()) == (True, 2.0)


def test_the_lottery(folder: Path) -> None:
    lottery = find_environment(f"{folder / 'lottery.py'}:Lottery", {}).start({}, 0)
    assert lottery.call("draw", {}) == Step("a blank", -0.1, False)
    lottery.call("draw", {})
    assert lottery.call("draw", {}) == Step("a blank", -0.1, True)
    assert (lottery.ended(), lottery.reward()) == (True, pytest.approx(-0.3))


def test_the_corridor(folder: Path) -> None:
    source = find_environment(f"{folder / 'games.py'}:Corridor", {"length": 2})
    assert source.answers_text
    corridor = source.start({}, 0)
    assert corridor.opening == "Write forward or back. The door is 2 steps away."
    assert corridor.step("forward") == Step("1 to go", 0.0, False)
    assert corridor.step(" forward\n") == Step("0 to go", 1.0, True)
    assert (corridor.ended(), corridor.reward()) == (True, 1.0)
