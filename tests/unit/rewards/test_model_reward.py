"""The reward `model:PATH`: mixed with rule rewards, on the policy's tokens or through text, clear errors."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.config.schema_data import ModelConfig
from burnish.errors import ConfigError, ModelError, RewardError
from burnish.models.characters import character_tokenizer
from burnish.models.reward_model import Readout, RewardModel, new_reward_model
from burnish.rewards.inputs import Item
from burnish.rewards.outcome import Outcome, read_result
from burnish.rewards.pool import WorkerPool
from burnish.types import FinishReason, Prompt, RewardStatus

Trained = tuple[Path, RewardModel]


@pytest.fixture(scope="module")
def policy(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("abcWht? ", context_length=16, seed=2)


@pytest.fixture(scope="module")
def trained(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("rm")
    model = new_reward_model(ModelConfig(path=str(policy), device="cpu"), Readout(), seed=0)
    model.normalise([0.3, -0.2, 1.0], scale=True, measured_on="three")
    model.save(folder)
    return folder, model


def items_of(model: RewardModel, texts: list[str], make_items: Any) -> list[Item]:
    """Rollouts whose tokens are those of the texts and an end."""
    tokenizer = model.loaded.tokenizer
    prompt = tuple(tokenizer("What?", add_special_tokens=False)["input_ids"])
    found = []
    for (asked, rollout), text in zip(make_items(texts), texts, strict=True):
        tokens = (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
        found.append((asked, dataclasses.replace(rollout, prompt_tokens=prompt, response_tokens=tokens)))
    return found


def test_it_is_mixed_with_rule_rewards_by_weight(trained: Trained, make_scorer, make_items) -> None:
    folder, model = trained
    scorer = make_scorer(
        {"name": f"model:{folder}", "weight": 0.5, "label": "learned"},
        {"name": "length", "options": {"maximum": 3}, "weight": 2.0},
    )
    (line,) = scorer.attach_policy(model.loaded.tokenizer)
    assert "the policy's own tokens" in line
    items = items_of(model, ["a", "bc", "abc"], make_items)
    expected = model.score([(rollout.prompt_tokens, rollout.response_tokens) for _, rollout in items])
    for rollout, score in zip(scorer.score(items), expected, strict=True):
        learned, rule = rollout.reward_parts["learned"], rollout.reward_parts["length"]
        assert (learned, rollout.reward) == pytest.approx((score, 0.5 * score + 2.0 * rule), abs=1e-5)


def test_text_goes_through_another_tokenizer(trained: Trained, make_scorer, make_items) -> None:
    folder, model = trained
    scorer = make_scorer(f"model:{folder}")
    (line,) = scorer.attach_policy(character_tokenizer("xyz", eos="$", pad="_"))
    assert "a different tokenizer" in line
    assert "text" in line
    expected = model.score([(r.prompt_tokens, r.response_tokens) for _, r in items_of(model, ["ab", "c"], make_items)])
    strange = {"prompt_tokens": (1,), "response_tokens": (9999,)}
    foreign = [(prompt, dataclasses.replace(rollout, **strange)) for prompt, rollout in make_items(["ab", "c"])]
    assert [rollout.reward for rollout in scorer.score(foreign)] == pytest.approx(expected, abs=1e-5)
    cut = [(p, dataclasses.replace(r, finish_reason=FinishReason.LENGTH)) for p, r in foreign]
    assert [rollout.reward for rollout in scorer.score(cut)] != pytest.approx(expected, abs=1e-5)


def test_what_it_cannot_read_is_an_error_and_no_zero(trained: Trained, make_scorer, make_items) -> None:
    folder, model = trained
    scorer = make_scorer(f"model:{folder}")
    scorer.attach_policy(model.loaded.tokenizer)
    good, long = items_of(model, ["a", "abcabcabcabcabcabc"], make_items)
    scored = scorer.score([long, good])
    assert [rollout.status for rollout in scored] == [RewardStatus.ERROR, RewardStatus.OK]
    assert scored[0].reward is None
    assert "its context holds 16" in scored[0].status_detail
    scorer.attach_policy(character_tokenizer("xyz", eos="$", pad="_"))
    (unknown,) = scorer.score([(Prompt("p", text="ZZZ"), good[1])])
    assert unknown.status is RewardStatus.ERROR


def test_an_error_of_its_passes_names_the_reward(trained, make_scorer, make_items, monkeypatch) -> None:
    folder, model = trained
    scorer = make_scorer({"name": f"model:{folder}", "label": "learned"})
    scorer.attach_policy(model.loaded.tokenizer)
    monkeypatch.setattr(RewardModel, "score", Mock(side_effect=RuntimeError("CUDA error: out of memory")))
    with pytest.raises(RewardError, match=r"reward 'learned': its reward model could not score 1 responses: .*CUDA"):
        scorer.score(items_of(model, ["a"], make_items))


def test_models_elsewhere_are_asked_before_other_rewards_score(trained, make_scorer, make_items, monkeypatch) -> None:
    folder, model = trained
    happened: list[str] = []

    class Elsewhere:
        def begin(self, label: str, items: Sequence[Item]) -> Callable[[], list[Outcome]]:
            def outcomes() -> list[Outcome]:
                happened.append(f"{label} is awaited")
                return [read_result(2.5, label) for _ in items]

            happened.append(f"{label} begins")
            return outcomes

    run = WorkerPool.run

    def others(pool: WorkerPool, tasks: Any) -> Any:
        happened.append("others score")
        return run(pool, tasks)

    monkeypatch.setattr(WorkerPool, "run", others)
    learned = {"name": f"model:{folder}", "label": "learned"}
    scorer = make_scorer(learned, {"name": "length", "options": {"maximum": 3}}, models_elsewhere=True)
    assert scorer.attach_policy(model.loaded.tokenizer) == []
    scorer.ask_models(Elsewhere())
    (scored,) = scorer.score(items_of(model, ["a"], make_items))
    assert scored.reward_parts["learned"] == 2.5
    assert happened == ["learned begins", "others score", "learned is awaited"]


def test_models_elsewhere_are_checked_without_being_loaded(policy, trained, make_scorer, monkeypatch) -> None:
    monkeypatch.setattr("burnish.rewards.model_reward.load_reward_model", None)
    make_scorer(f"model:{trained[0]}", models_elsewhere=True)
    with pytest.raises(ModelError, match="is not a reward model"):
        make_scorer(f"model:{policy}", models_elsewhere=True)


def test_wrong_names_and_options(policy: Path, trained: Trained, make_scorer, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not a reward model: it is a LlamaForCausalLM"):
        make_scorer(f"model:{policy}")
    with pytest.raises(ModelError, match=r"reward 'model:.*nothing'.*does not exist"):
        make_scorer(f"model:{tmp_path / 'nothing'}")
    with pytest.raises(RewardError, match="does not name a folder"):
        make_scorer("model:")
    with pytest.raises(ConfigError, match=r"no option 'devise'\n.*did you mean 'device'"):
        make_scorer({"name": f"model:{trained[0]}", "options": {"devise": "cpu"}})
    with pytest.raises(ConfigError, match="option dtype of reward 'model' is 'int8'"):
        make_scorer({"name": f"model:{trained[0]}", "options": {"dtype": "int8"}})
