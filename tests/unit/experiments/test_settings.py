"""The words of a sweep: grids, ranges, lists, files, and the names of the runs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import ConfigError
from burnish.experiments.settings import read_listed, settings_of


def overrides(*words: str, together: bool = False) -> list[tuple[str, ...]]:
    return [setting.overrides for setting in settings_of(words, together=together)]


def test_a_grid_has_all_combinations_and_names_them() -> None:
    found = settings_of(["algorithm=grpo,rloo", "seed=0..1", "steps=5", "output=runs/x"])
    assert [(one.name, one.overrides) for one in found] == [
        ("algorithm=grpo,seed=0", ("steps=5", "algorithm=grpo", "seed=0")),
        ("algorithm=grpo,seed=1", ("steps=5", "algorithm=grpo", "seed=1")),
        ("algorithm=rloo,seed=0", ("steps=5", "algorithm=rloo", "seed=0")),
        ("algorithm=rloo,seed=1", ("steps=5", "algorithm=rloo", "seed=1")),
    ]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("a=1,2", ["1", "2"]),
        ("a=0..3", ["0", "1", "2", "3"]),
        ("a=0..1,7", ["0", "1", "7"]),
        ("a=-1..1", ["-1", "0", "1"]),
        ("a=[0.9,0.99],[0.9,0.95]", ["[0.9,0.99]", "[0.9,0.95]"]),
        ("a={b: 1, c: [2,3]},null", ["{b: 1, c: [2,3]}", "null"]),
        ("a='x,y',z", ["'x,y'", "z"]),
        ('a=["x]",y],"a\'b"', ['["x]",y]', '"a\'b"']),
        ("a=don't,won't", ["don't", "won't"]),
    ],
)
def test_values_are_cut_at_commas_outside_of_quotes_and_brackets(word: str, values: list[str]) -> None:
    assert overrides(word) == [(f"a={value}",) for value in values]


def test_values_that_go_together() -> None:
    assert overrides("a=1,2", "b=x,y", together=True) == [("a=1", "b=x"), ("a=2", "b=y")]
    with pytest.raises(ConfigError, match="a has 2, b has 3"):
        settings_of(["a=1,2", "b=0..2"], together=True)


def test_a_file_of_settings_is_combined_with_the_grid(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    given = "- {algorithm: grpo, optimization.learning_rate: 1e-3}\n- {algorithm: {preset: rloo, kl_in: none}}\n"
    file.write_text(given)
    found = settings_of(["seed=0,1"], read_listed(file))
    assert [one.name for one in found] == [
        "algorithm=grpo,learning_rate=0.001,seed=0",
        "algorithm=grpo,learning_rate=0.001,seed=1",
        "algorithm=preset-rloo-kl_in-none,seed=0",
        "algorithm=preset-rloo-kl_in-none,seed=1",
    ]
    assert found[2].overrides == ('algorithm={"preset": "rloo", "kl_in": "none"}', "seed=0")
    file.write_text("algorithm: grpo\n")
    with pytest.raises(ConfigError, match="is not a list of settings"):
        read_listed(file)


def test_names_are_short_unique_and_safe() -> None:
    long = settings_of([f"model={'m/' * 100}a,{'m/' * 100}b"])
    assert all(len(one.name) < 140 and "/" not in one.name for one in long)
    assert long[0].name != long[1].name
    assert len({one.name for one in settings_of(["model=a/b,a:b"])}) == 2
    rates = settings_of(["optimization.learning_rate=1,2", "critic.learning_rate=3,4"])
    assert rates[0].name == "optimization.learning_rate=1,critic.learning_rate=3"
    assert [one.name for one in settings_of(["a=-1,1"])] == ["a=-1", "a=1"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["seed"], "'seed' is not of the form"),
        (["seed=1"], "needs a field with several values"),
        (["seed=4..0"], "4..0 is not a range"),
        (["seed=1,2", "seed=3"], "seed is given twice"),
        (["seed=1,1"], "two runs of the sweep are the same"),
        (["rate=1e-3,0.001"], "two runs of the sweep are the same"),
        (["seed=0..20000"], "more than 10,000 values"),
        (["seed=1,2", "output=a,b"], "output is the folder of the sweep"),
        (["seed=0..9999", "steps=1,2"], "20,000 runs"),
    ],
)
def test_words_that_make_no_sweep(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings_of(words)


PLAIN = st.lists(st.text("abc019._-", min_size=1), min_size=2, max_size=4, unique=True)


@given(PLAIN.filter(lambda values: ".." not in "".join(values)))
def test_plain_values_come_back(values: list[str]) -> None:
    assert overrides(f"a={','.join(values)}") == [(f"a={value}",) for value in values]
