"""A model of this process as a judge."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stub_judge import judge_at, shown

from burnish.errors import ConfigError, DataError, ModelError
from burnish.forward.fast_paths import FastPaths
from burnish.rewards.judging.local import ModelAnswer
from burnish.rewards.judging.options import JudgeOptions
from burnish.rollouts.answering import open_model

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}a:"
ALPHABET = "abcdefghijklmnopqrstuvwxyzTAUS0123456789:;. "


class Model:
    """Answers in the third batch only what it was asked first."""

    name = "own"
    special_tokens = frozenset({"<turn>"})

    def __init__(self, answer: Callable[[Any], str]) -> None:
        self.batches: list[int] = []
        self.own = answer

    def answer(self, conversations: Sequence[Any]) -> list[ModelAnswer | DataError]:
        self.batches.append(len(conversations))
        return [
            DataError("too long") if "long" in messages[1]["content"] else ModelAnswer(self.own(messages), 5, 2)
            for messages in conversations
        ]


def judge(**options: Any) -> dict[str, Any]:
    return {"name": "judge", "options": {"model_path": "somewhere", **options}}


def test_what_is_asked_at_once_is_answered_in_one_batch(make_scorer, make_items) -> None:
    def answer(messages: Any) -> str:
        length = len(shown(messages)["response"])
        return f'{{"score": {length}}}' if length != 3 or len(messages) == 4 else "three"

    model = Model(answer)
    scorer = make_scorer(judge(scale=[0, 4]), open_model=lambda options: model)
    items = make_items(["<turn>a", "bb", "ccc", "bb", "long"])
    scorer.begin(items)
    assert model.batches == []  # it would be in the way of those that sample
    scored = scorer.score(items)
    assert [r.reward for r in scored] == [0.25, 0.5, 0.75, 0.5, None]
    assert scored[4].status_detail == "judge 'judge': too long"
    assert model.batches == [4, 1]  # each text once, and a repair
    assert scorer.take_metrics()["judge/tokens_in"].result() == 4 * 5


def test_a_model_at_work_holds_no_other_judge_up(make_scorer, make_items, stub_judge) -> None:
    """The model answers when the endpoint has been asked for a repair, which only a free event loop can do."""
    repaired = threading.Event()

    def of_endpoint(messages: Any) -> str:
        if len(messages) < 4:
            return "three"
        repaired.set()
        return '{"score": 10}'

    model = Model(lambda messages: '{"score": 4}' if repaired.wait(10) else "the other judge was held up")
    far = {**judge_at(stub_judge(of_endpoint)), "label": "far"}
    scorer = make_scorer({**judge(scale=[0, 4]), "label": "local"}, far, open_model=lambda options: model)
    (scored,) = scorer.score(make_items(["a"]))
    assert dict(scored.reward_parts) == {"local": 1.0, "far": 1.0}


def test_an_answer_of_a_local_model_that_was_cut_off_has_no_verdict(make_scorer, make_items) -> None:
    class Cut(Model):
        def answer(self, conversations: Sequence[Any]) -> list[ModelAnswer | DataError]:
            return [ModelAnswer('{"score": 1}', 5, 2, is_cut_off=True) for _ in conversations]

    (scored,) = make_scorer(judge(), open_model=lambda options: Cut(str)).score(make_items(["a"]))
    assert "cut off" in scored.status_detail


@pytest.fixture(scope="module")
def folder(save_tiny_llama: Callable[..., Path]) -> Path:
    path = save_tiny_llama(ALPHABET, context_length=160)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.mark.slow
def test_a_loaded_model_answers_the_same_alone_and_among_others(folder: Path) -> None:
    turns = [({"role": "user", "content": text},) for text in ("ab", "cd 1", "x" * 200)]
    for temperature in (0.0, 1.0):
        options = JudgeOptions(model_path=str(folder), max_tokens=6, temperature=temperature, seed=3)
        model = open_model(options)
        first, second, long = model.answer(turns)
        assert isinstance(first, ModelAnswer)
        assert isinstance(long, DataError)
        assert first.tokens_in == len("u:ab;a:")
        assert 1 <= first.tokens_out <= 6
        assert first.is_cut_off == (first.tokens_out == 6)
        assert model.answer([turns[1], turns[0]]) == [second, first]
        assert model.name == open_model(options).name
        assert model.special_tokens == {"$", "_"}


def test_what_cannot_be_a_judge_is_told_when_it_is_loaded(folder, save_tiny_llama, tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be asked"):
        open_model(JudgeOptions(model_path=str(save_tiny_llama("abc"))))
    with pytest.raises(ModelError, match="model_path"):
        open_model(JudgeOptions(model_path=str(tmp_path / "nothing")))


def test_a_run_keeps_how_its_judge_is_decoded(folder: Path) -> None:
    paths = FastPaths()
    open_model(JudgeOptions(model_path=str(folder)), paths)
    assert any(entry.startswith("decoding (") for entry in paths.record())
