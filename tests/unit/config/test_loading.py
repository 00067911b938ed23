"""Layers, shorthand forms, overrides, provenance, and YAML without surprises."""

import functools
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from burnish.checkpointing.run import dump_config
from burnish.config.loading import load_run_data, load_run_file
from burnish.config.presets import PRESETS
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.config.yaml_text import dump_yaml, parse_yaml
from burnish.errors import ConfigError

MINIMAL = "model: m\ndata: {train: a.jsonl}\nrewards: math\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load(tmp_path: Path, text: str, *overrides: str) -> RlConfig:
    return load_run_file(write(tmp_path, text), overrides).config


def refused(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_file(write(tmp_path, text), overrides)
    return str(caught.value)


def test_shorthand_forms_are_the_long_ones(tmp_path: Path) -> None:
    short = load(tmp_path, "model: m\ndata: {train: a.jsonl, eval: [b.csv]}\nrewards: math\nalgorithm: rloo\n")
    data = "data: {train: [{path: a.jsonl}], eval: [{path: b.csv}]}\n"
    assert short == load(
        tmp_path, f"model: {{path: m}}\n{data}rewards: [{{name: math}}]\nalgorithm: {{preset: rloo}}\n"
    )
    assert short.data.eval[0].path == "b.csv"
    assert short.rewards[0].weight == 1.0


def test_layers_win_in_their_order(tmp_path: Path) -> None:
    text = MINIMAL + "algorithm: {preset: grpo, kl_coef: 0.1}\nrollout: {group_size: 6}\n"
    loaded = load_run_file(write(tmp_path, text), ["rollout.group_size=2", "seed=7"])
    assert loaded.config.algorithm.kl_coef == 0.1  # file over preset (0.04)
    assert loaded.config.algorithm.kl_in == "loss"  # preset over default (none)
    assert loaded.config.rollout.group_size == 2  # command line over file
    assert (
        dict(loaded.provenance).items()
        >= {
            **{"algorithm.kl_coef": "file", "algorithm.kl_in": "preset grpo", "rollout.group_size": "command line"},
            **{"seed": "command line", "rollout.top_k": "default", "model.path": "file"},
        }.items()
    )


def test_every_value_has_a_provenance(tmp_path: Path) -> None:
    file = write(tmp_path, MINIMAL + "rollout: {stop: [x, y]}\n")
    loaded = load_run_file(file, ["algorithm.loss_options.dual_clip=3"])
    assert loaded.provenance["rollout.stop.1"] == "file"
    assert loaded.provenance["algorithm.loss_options.dual_clip"] == "command line"
    assert set(loaded.provenance.values()) == {"default", "preset grpo", "file", "command line"}


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_loads_and_sets_what_it_says(name: str) -> None:
    config = load_run_data({"model": "m", "data": {"train": "a"}, "rewards": "model:rm", "algorithm": name}).config
    found = config.model_dump(mode="json")
    for path, value in PRESETS[name].values.items():
        assert functools.reduce(lambda section, key: section[key], path.split("."), found) == value, path


def test_an_override_switches_the_preset_but_keeps_the_files_values(tmp_path: Path) -> None:
    chosen = load(tmp_path, MINIMAL + "algorithm: {preset: grpo, reward_clip: 5}\n", "algorithm=dr_grpo").algorithm
    assert (chosen.estimator, chosen.reward_clip, chosen.kl_in) == ("dr_grpo", 5.0, "none")


@pytest.mark.parametrize("word", ["kl_in: none", "kl_coef: 0"])
def test_a_preset_kl_is_turned_off_by_one_word(tmp_path: Path, word: str) -> None:
    config = load(tmp_path, MINIMAL + f"algorithm: {{preset: rloo, {word}}}\n")
    assert (config.algorithm.kl_in, config.algorithm.kl_coef) == ("none", 0.0)


def test_list_entries_are_reached_by_number(tmp_path: Path) -> None:
    text = "model: m\ndata: {train: [a, b]}\nrewards: [math, {name: length, options: {target: 5}}]\n"
    config = load(tmp_path, text, "data.train.1.limit=100", "rewards.0.weight=2", "rewards.1.options.target=9")
    assert [source.limit for source in config.data.train] == [None, 100]
    assert config.rewards[0].weight == 2.0
    assert config.rewards[1].options == {"target": 9}


def test_an_override_of_a_whole_list_replaces_it(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL, "data.train=[x.csv, y.csv]", "rewards=exact")
    assert [source.path for source in config.data.train] == ["x.csv", "y.csv"]
    assert [reward.name for reward in config.rewards] == ["exact"]


def test_an_index_outside_of_the_list_is_told(tmp_path: Path) -> None:
    message = refused(tmp_path, MINIMAL, "data.train.3.limit=5")
    assert "data.train.3.limit=5" in message
    assert "data.train has 1 entries" in message


@pytest.mark.parametrize(("word", "number"), [("1e-6", 1e-6), ("1E+2", 100.0), ("5.e-1", 0.5), ("3", 3.0), (".5", 0.5)])
def test_numbers_as_people_write_them(tmp_path: Path, word: str, number: float) -> None:
    assert load(tmp_path, MINIMAL + f"optimization: {{learning_rate: {word}}}\n").optimization.learning_rate == number


@pytest.mark.parametrize("word", ["on", "yes", "true", "On"])
def test_yes_is_true_where_a_boolean_is_expected(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, MINIMAL + f"algorithm: {{mask_truncated: {word}}}\n").algorithm.mask_truncated is True


def test_words_are_text_and_round_numbers_counts_where_these_are_expected(tmp_path: Path) -> None:
    text = "model: no\ndata: {train: [{path: a, domain: 2024-01-01}]}\nrewards: math\noutput: off\nsteps: 1e3\n"
    config = load(tmp_path, text)
    found = (config.model.path, config.output, config.data.train[0].domain, config.steps)
    assert found == ("no", "off", "2024-01-01", 1000)


def test_lines_are_told(tmp_path: Path) -> None:
    message = refused(tmp_path, MINIMAL + "rollout:\n  group_size: 4\n  group_sise: 5\n")
    assert "run.yaml:6: rollout.group_sise is not a known key" in message
    assert "did you mean rollout.group_size?" in message


def test_several_problems_are_told_together(tmp_path: Path) -> None:
    text = "steps: many\nseed: -1\nlearning_rate: 1e-5\noptimization: {tokens_per_microbatch: '8', betas: [0.9]}\n"
    text += "domains: {a: {train: x, share: {0: true}, stop: [1], difficulty: {keep: ['0', 1]}}}\n"
    message = refused(tmp_path, MINIMAL + text)
    assert "8 problems" in message
    words = ("steps is 'many'", "seed is -1", "optimization.learning_rate?", "batch is '8'", "betas is [0.9]")
    for part in (*words, "share is {'0': True}", "not empty (put it in quotes", "keep is ['0', 1]"):
        assert part in message


@pytest.mark.slow
def test_a_resolved_file_reads_back_to_the_same_configuration(tmp_path: Path) -> None:
    for name in PRESETS:
        config = load(tmp_path, MINIMAL + f"algorithm: {name}\n", "rewards=model:rm")
        assert load(tmp_path, dump_config(config)) == config


def test_the_data_given_is_left_alone() -> None:
    data = {"model": "m", "data": {"train": "a"}, "rewards": ["math"], "algorithm": {"preset": "rloo"}}
    load_run_data(data, ["algorithm.kl_coef=0.5", "rewards.0.weight=3"])
    assert data == {"model": "m", "data": {"train": "a"}, "rewards": ["math"], "algorithm": {"preset": "rloo"}}


def test_supervised_files_load_as_their_own_kind(tmp_path: Path) -> None:
    path = write(tmp_path, "model: m\ndata: {train: a}\nmax_tokens: 128\n")
    loaded = load_run_file(path, ["optimization.epochs=2"], "sft")
    numbers = loaded.config.optimization
    assert (loaded.config.max_tokens, numbers.epochs, numbers.learning_rate) == (128, 2, 1e-5)
    with pytest.raises(ConfigError, match="burnish sft"):
        loaded.of(RlConfig)


def test_direct_construction_is_checked_too() -> None:
    with pytest.raises(ValueError, match="group_size"):
        RlConfig(model={"path": "m"}, rollout={"group_size": 1})
    assert AlgorithmConfig(loss_options={"dual_clip": 3.0}).loss == "ppo_clip"


def test_aliases_that_nest_without_end_are_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for letter, before in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{letter}: &{letter} [" + ", ".join([f"*{before}"] * 10) + "]\n"
    assert "aliases" in parse_yaml(bomb).problems[0].message
    assert "aliases" in parse_yaml("a: &a [*a]\n").problems[0].message


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(plain)
@example({"<<": None})
def test_dumped_text_reads_back(value: object) -> None:
    assert parse_yaml(dump_yaml({"value": value})).data == {"value": value}


@pytest.mark.parametrize("kind", ["sft", "rm"])
@pytest.mark.parametrize(
    "override",
    [
        "optimization.minibatches=2",
        "evaluation.temperature=0.5",
        "logging.record_rollouts=false",
        "cluster.rollout_workers=2",
    ],
)
def test_a_field_that_only_rl_reads_is_refused_with_the_reason(kind: str, override: str) -> None:
    field = override.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{field} is not read by runs of this kind: \w+.*\n.*remove it"):
        load_run_data({"model": "m", "data": {"train": "a"}}, [override], kind)


def test_a_path_through_a_value_in_a_list_is_refused_in_words() -> None:
    data = {"model": "m", "data": {"train": "a"}, "rewards": "math", "rollout": {"stop": ["x"]}}
    with pytest.raises(ConfigError, match=r"rollout\.stop\.0.* is"):
        load_run_data(data, ["rollout.stop.0.text=y"])
