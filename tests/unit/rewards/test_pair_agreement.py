"""How often a reward scores the better response of a pair higher."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stub_judge import shown

from burnish.algorithms.statistics import wilson_interval
from burnish.cli import main
from burnish.config.schema_data import ModelConfig
from burnish.data.preference_tokens import PreferenceExample
from burnish.errors import DataError
from burnish.models.characters import character_tokenizer
from burnish.models.reward_model import Readout, new_reward_model
from burnish.rewards.pair_agreement import PairAgreement, pair_agreement
from burnish.types import Prompt

TOKENIZER = character_tokenizer("0123456789ab?", eos="<end>", pad="<pad>", bos="<bos>", unk=None, context_length=64)


def example(row: str, better: str, *worse: str, **fields: Any) -> PreferenceExample:
    texts = tuple(tuple(TOKENIZER(text)["input_ids"]) for text in (better, *worse))
    return PreferenceExample(row, (1,), texts, 0, **fields)


def agreement(scorer: Any, examples: Sequence[PreferenceExample]) -> PairAgreement:
    prompts = {str(n): Prompt(str(n), text="4+4?", answer="8", columns={"answer": "8"}) for n in range(9)}
    return pair_agreement(examples, prompts, TOKENIZER, scorer)


def test_pairs_are_counted_by_the_scores_of_a_reward(make_scorer) -> None:
    pairs = [example("0", "8", "7"), example("1", "8", "9"), example("2", "5", "8"), example("3", "3", "4")]
    found = agreement(make_scorer("math"), pairs)
    assert [pair.lead for pair in found.pairs] == [1, 1, -1, 0]
    low, high = wilson_interval(0.5, 4)
    assert list(found.lines()) == [
        f"the better response scores higher in 50.0% of 4 pairs (95 %: {low:.1%} to {high:.1%})",
        "both score the same in 25.0%, the worse response scores higher in 25.0%",
    ]
    (pair,) = found.disagreements()
    assert (pair.row, pair.better.response, pair.worse.response) == ("2", "5", "8")


def test_disagreements_begin_with_the_largest(make_scorer, reward_file: Callable[[str], Path]) -> None:
    own = reward_file("def size(response):\n    return len(response) / 2")
    longest = make_scorer(f"{own}:size")
    found = agreement(longest, [example("0", "a", "ab"), example("1", "a", "abababab", "b"), example("2", "ab", "a")])
    assert [pair.lead for pair in found.pairs] == [-0.5, -3.5, 0, 0.5]
    assert [pair.row for pair in found.disagreements()] == ["1", "0"]


def test_a_pair_that_cannot_be_scored_is_counted(make_scorer, reward_file: Callable[[str], Path]) -> None:
    own = reward_file("def picky(response):\n    return {'a': 1.0, 'b': 0.0}[response]")
    picky = make_scorer(f"{own}:picky")
    (higher, _, failed) = agreement(picky, [example("0", "a", "b"), example("1", "a", "ab")]).lines()
    assert "in 100.0% of 1 pairs" in higher
    assert "could not be scored: 1 (the first: 1: " in failed


@pytest.mark.parametrize("fields", [{"good": True}, {"tie": True}])
def test_without_a_better_response_there_is_nothing_to_compare(make_scorer, fields: dict[str, bool]) -> None:
    with pytest.raises(DataError, match="no pair to score"):
        agreement(make_scorer("math"), [example("0", "8", "7", **fields)])


@pytest.fixture
def run_file(save_tiny_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run file of `burnish prefer` with four pairs, and a reward model in the folder `rm`."""
    model = save_tiny_llama("0123456789+=?ab")
    new_reward_model(ModelConfig(path=str(model), device="cpu"), Readout(), seed=0).save(tmp_path / "rm")
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "9", "answer": str(n + 1)} for n in range(4)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f"model: {{path: {model}, device: cpu}}\ndata: {{train: pairs.jsonl}}\nlosses: sigmoid\nmax_tokens: 16\n"
    (tmp_path / "prefer.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "prefer.yaml"


@pytest.mark.slow
def test_check_compares_pairs_with_a_reward(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(run_file), "--reward", "math"]) == 0
    said = "math: the better response scores higher in 100.0% of 4 pairs (95 %: 51.0% to 100.0%)"
    assert said in capsys.readouterr().out
    assert main(["check", str(run_file), "--reward", "{name: 'model:rm', options: {device: cpu}}"]) == 0
    assert "of 4 pairs" in capsys.readouterr().out
    assert main(["check", str(run_file), "--reward", "maths"]) == 2
    assert "did you mean 'math'" in capsys.readouterr().err


@pytest.mark.slow
def test_check_compares_pairs_with_judges(run_file: Path, stub_judge, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that scores finds 4 as good as 9; the one that compares prefers the smaller number."""

    def score(messages: Any) -> str:
        return json.dumps({"score": 1 if int(shown(messages)["response"]) < 4 else 0})

    def compare(messages: Any) -> str:
        said = shown(messages)
        return json.dumps({"better": "A" if said["response_a"] < said["response_b"] else "B"})

    for rule, options, said in (
        (score, {"scale": [0, 1]}, "scores higher in 75.0% of 4 pairs"),
        (compare, {"form": "pairwise"}, "scores higher in 100.0% of 4 pairs"),
    ):
        judge = {"name": "judge", "options": {"url": stub_judge(rule).url, "model": "stub", **options}}
        assert main(["check", str(run_file), "--reward", json.dumps(judge)]) == 0
        assert said in capsys.readouterr().out


@pytest.mark.slow
def test_check_refuses_a_reward_for_other_runs(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_file.parent / "rl.yaml").write_text("model: m\ndata: {train: pairs.jsonl}\nrewards: math\n")
    assert main(["check", "rl.yaml", "--reward", "math"]) == 2
    assert "--reward is for pairs, and a run of `rl` has none" in capsys.readouterr().err
