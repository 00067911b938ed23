"""The words of the configuration and the tables of the mathematics say the same."""

import re

import pytest
import yaml

from burnish.algorithms.advantages import ESTIMATORS
from burnish.algorithms.pair_losses import PAIR_LOSSES
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.config import explain, names
from burnish.config.fields import all_fields
from burnish.config.kinds import all_kinds
from burnish.config.loading import load_run_data
from burnish.config.presets import PRESETS
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError


def test_the_tables_have_the_same_names() -> None:
    assert tuple(ESTIMATORS) == names.ESTIMATOR_NAMES
    assert tuple(POLICY_LOSSES) == names.LOSS_NAMES


def test_what_estimators_need_agrees_with_their_signatures() -> None:
    assert {n for n, e in ESTIMATORS.items() if "group_ids_B" in e.inputs} == set(names.GROUP_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if e.needs_values} == set(names.CRITIC_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if e.needs_greedy} == set(names.GREEDY_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if "teacher_logprobs_BT" in e.inputs} == set(names.TEACHER_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if "ref_logprobs_BT" in e.inputs} == set(names.REFERENCE_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if "old_logprobs_BT" in e.inputs} == set(names.OLD_ESTIMATORS)
    for option, users in (("gamma", names.GAMMA_ESTIMATORS), ("lam", names.LAM_ESTIMATORS)):
        assert {n for n, e in ESTIMATORS.items() if option in e.options} == set(users)
    assert {n for n, e in ESTIMATORS.items() if "turn_index_BT" in e.optional_inputs} == set(names.DISCOUNT_ESTIMATORS)
    assert {n for n, e in ESTIMATORS.items() if e.compares_turns} == set(names.TURN_ESTIMATORS)


def test_what_losses_clip_agrees_with_their_signatures() -> None:
    for option, users in (("clip_low", names.CLIP_LOW_LOSSES), ("clip_high", names.CLIP_HIGH_LOSSES)):
        assert {n for n, row in POLICY_LOSSES.items() if option in row.option_names} == set(users)


def test_losses_on_preferences_agree_with_their_table() -> None:
    assert {name: row.option_names for name, row in PAIR_LOSSES.items()} == names.PAIR_LOSSES
    assert tuple(n for n, row in PAIR_LOSSES.items() if row.needs_reference) == names.REFERENCE_LOSSES
    assert tuple(n for n, row in PAIR_LOSSES.items() if row.order) == names.REORDERING_LOSSES
    assert [n for n, row in PAIR_LOSSES.items() if row.inputs != ("pairs",)] == [names.RATED_LOSS]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_presets_give_their_loss_and_estimator_options_they_know(preset) -> None:  # type: ignore[no-untyped-def]
    loss = POLICY_LOSSES[preset.values.get("algorithm.loss", "ppo_clip")]
    loss.check_options(preset.values.get("algorithm.loss_options", {}))
    estimator = ESTIMATORS[preset.values.get("algorithm.estimator", "grpo")]
    estimator.check_options(preset.values.get("algorithm.estimator_options", {}))


SECTIONS = "rollout|optimization|algorithm|model|data|critic|scoring|evaluation|checkpoint|logging"
FIELD = re.compile(rf"\b(?:{SECTIONS})\.[a-z_.]+")


@pytest.mark.parametrize("section", [kind.section for kind in all_kinds()], ids=[kind.name for kind in all_kinds()])
def test_words_of_other_systems_lead_to_fields_that_exist(section) -> None:  # type: ignore[no-untyped-def]
    known = {field.path for field in all_fields(section)}
    table = yaml.safe_load(explain.WORDS_OF_OTHERS.read_text())
    assert set(table["same"]) <= {field.path for field in all_fields(RlConfig)}
    words = [word for words in table["same"].values() for word in words]
    words += [word for entry in table["differs"] for word in entry["words"]]
    assert len(words) == len(set(words))
    told = [text for text in (explain.advice(word, section) for word in words) if text is not None]
    assert len(told) > 30
    for named in FIELD.findall(" ".join(told)):
        assert named.rstrip(".") in known, named


SAME = "that is its name here"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("optimization.gradient_accumulation_steps=4", ("leave it out", "optimization.tokens_per_microbatch")),
        ("num_train_epochs=3", ("Set steps", "passes over the data", "passes over the responses of one step")),
        ("optimization.ppo_mini_batch_size=256", ("size in prompts", "rollout.prompts_per_step / ppo_mini_batch_size")),
        ("algorithm.loss_type=dapo", ("algorithm.aggregation", "dapo is token_mean")),
        ("optimization.per_device_train_batch_size=8", ("rollout.prompts_per_step", "counts tokens, for memory")),
        ("micro_train_batch_size=8", ("sequences of a pass", "counts tokens")),
        ("train_batch_size=128", ("verl's counts the prompts", "OpenRLHF's counts the responses")),
        ("max_steps=10", ("counts optimizer steps", "rounds of sampling")),
        ("algorithm.beta=0.04", ("algorithm.kl_coef", "algorithm.kl_in: loss")),
        ("optimization.beta=0.04", ("algorithm.kl_coef",)),
        ("algorithm.epsilon=0.1", ("algorithm.clip_low and algorithm.clip_high",)),
        ("optimization.warmup_ratio=0.1", ("a number of optimizer steps",)),
        ("missing_eos_penalty=1.0", ("instead of its own",)),
        ("rollout.max_prompt_length=9", ("rollout.max_prompt_tokens", "truncate keeps their end")),
        ("target_kl=0.1", ("algorithm.kl_target", "algorithm.max_epoch_kl")),
        ("save_steps=3", ("rounds of sampling",)),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=64", ("verl's sections", "ppo_mini_batch_size: it is a size")),
        ("critics={optim: {lr: 1e-5}}", (f"lr: did you mean critic.learning_rate? ({SAME})",)),
        ("rollout.n=8", (f"did you mean rollout.group_size? ({SAME})",)),
        ("optimization.ppo_epochs=8", (f"did you mean optimization.epochs? ({SAME})",)),
        ("optimization.num_mini_batches=8", (f"did you mean optimization.minibatches? ({SAME})",)),
    ],
)
def test_the_same_is_claimed_only_of_the_same(word: str, says: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_data({"model": "m", "data": {"train": "a"}, "rewards": "math"}, [word])
    told = str(caught.value)
    assert all(part in told for part in says), told
    assert (SAME in told) == any(SAME in part for part in says)


@pytest.mark.parametrize(
    ("kind", "word", "says"),
    [
        ("prefer", "per_device_train_batch_size=8", "set optimization.comparisons_per_batch"),
        ("prefer", "loss_type=sigmoid_norm", "sigmoid with length_normalised: true"),
        ("prefer", "f_divergence_type=js_divergence", "set divergence: js_divergence is js"),
        ("prefer", "ref_model=runs/sft", "set reference: the folder or run"),
        ("prefer", "rpo_alpha=1", "name: sft, weight: 1.0"),
        ("distill", "lmbda=0.5", "set sampled_share"),
        ("distill", "max_length=512", "set max_tokens"),
    ],
)
def test_words_of_preferences_and_distillation_are_known(kind: str, word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_run_data({"model": "m", "data": {"train": "a"}}, [word], kind)


@pytest.mark.parametrize("kind", ["sft", "rm", "prefer", "distill"])
def test_a_word_may_mean_the_same_in_another_kind_of_run(kind: str) -> None:
    for word, field in (("num_train_epochs=2", "optimization.epochs"), ("max_steps=2", "steps")):
        with pytest.raises(ConfigError, match=rf"did you mean {field}\? \({SAME}\)"):
            load_run_data({"model": "m", "data": {"train": "a"}}, [word], kind)
    with pytest.raises(ConfigError, match="leave it out: passes are cut by tokens") as caught:
        load_run_data({"model": "m", "data": {"train": "a"}}, ["gradient_accumulation_steps=2"], kind)
    assert "minibatches" not in str(caught.value)
