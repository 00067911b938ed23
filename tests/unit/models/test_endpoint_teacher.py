"""A teacher behind an endpoint: numbers worked out by hand, faults, and answers that are refused."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from batches import batch_of
from hypothesis import given
from hypothesis import strategies as st
from stub_judge import StubTeacher

from burnish.errors import ModelError, OutageError
from burnish.models import endpoint_teacher
from burnish.models.characters import character_tokenizer
from burnish.models.endpoint_teacher import EndpointTeacher, probe

TOKENIZER: Any = character_tokenizer("0123456789+=", eos="$", pad="_")
Start = Callable[..., StubTeacher]


def entries(prompt: list[int]) -> list[Any]:
    """The token t at position p has the log-probability -t - p / 10."""
    texts = [TOKENIZER.decode([token]) for token in prompt]
    named = [
        {str(token): {"logprob": -token - place / 10, "rank": 1, "decoded_token": text}}
        for place, (token, text) in enumerate(zip(prompt, texts, strict=True))
    ]
    return [None, *named[1:]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(endpoint_teacher, "growing_pause", lambda request, tries: 0.01)
    stubs: list[StubTeacher] = []

    def start(*arguments: Any, **settings: Any) -> StubTeacher:
        stubs.append(StubTeacher(*(arguments or (entries,)), **settings))
        return stubs[-1]

    yield start
    for stub in stubs:
        stub.close()


def teacher(stub: StubTeacher, **settings: Any) -> EndpointTeacher:
    return EndpointTeacher(stub.url, "big", **{"timeout_seconds": 20.0, **settings})


def test_responses_are_scored_after_their_prompts_by_hand(start: Start) -> None:
    stub = start()
    batch = batch_of([[5], [1, 2, 3], [4]], [[7, 8], [9], [3, 2, 1]])
    found_BT = teacher(stub, key="secret-1").logprobs(batch)
    expected = [[-7.1, -8.2, 0.0], [-9.3, 0.0, 0.0], [-3.1, -2.2, -1.3]]
    assert found_BT.tolist() == [pytest.approx(row) for row in expected]
    assert {"model": "big", "prompt": [1, 2, 3, 9], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0} in (
        stub.bodies
    )
    assert {headers["Authorization"] for headers in stub.headers} == {"Bearer secret-1"}


def test_the_likeliest_tokens_by_hand(start: Start) -> None:
    """The text's own token, 7, is not among them; others together have what is left, nothing at the second place."""
    half, quarter = math.log(0.5), math.log(0.25)
    first = {"7": {"logprob": -9.0}, "3": {"logprob": quarter}, "4": {"logprob": half}}
    second = {"8": {"logprob": 1e-6}, "2": {"logprob": -50.0}}
    stub = start(lambda prompt: [None, first, second])
    (found,) = teacher(stub).likeliest([((5,), (7, 8))], 2)
    assert found.ids_NK.tolist() == [[4, 3], [8, 2]]
    assert found.logprobs_NC.tolist() == [pytest.approx([half, quarter, quarter]), pytest.approx([1e-6, -50, -1e4])]
    assert stub.bodies[0]["prompt_logprobs"] == 2
    with pytest.raises(ModelError, match=r"names 2 of the 3 likeliest tokens at position 2(.|\n)*--max-logprobs"):
        teacher(stub).likeliest([((5,), (7, 8))], 3)


def test_no_more_requests_than_allowed_are_on_their_way(start: Start) -> None:
    stub = start(entries, lambda count, prompt: "slow", slow_seconds=0.02)
    teacher(stub, concurrency=3).ask([[1, number] for number in range(12)], list)
    assert (stub.requests, stub.most_in_flight) == (12, 3)


@pytest.mark.parametrize("fault", ["429", "reset", "503"])
def test_what_may_pass_is_tried_again(start: Start, fault: str) -> None:
    stub = start(entries, lambda count, prompt: fault if count < 2 else "")
    assert teacher(stub).logprobs(batch_of([[5]], [[7]])).tolist() == [[pytest.approx(-7.1)]]
    assert stub.requests == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [("500", r"big' at http.*/v1 has not answered .* last: status 500: .*stub says 500"), ("slow", "last: no answer")],
)
def test_an_endpoint_that_stays_away_ends_the_run(start: Start, fault: str, said: str) -> None:
    stub = start(entries, lambda count, prompt: fault, slow_seconds=0.4)
    with pytest.raises(OutageError, match=said):
        teacher(stub, timeout_seconds=0.2).logprobs(batch_of([[5]], [[7]]))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("401:no key like secret-1 here", r"status 401: .*no key like \(masked\) here(.|\n)*key_variable"),
        ("400:maximum context length is 8", "refuses to score a text of 2 tokens: status 400: .*maximum context"),
        ("404", "status 404(.|\n)*check teacher.url"),
        ("nonsense", "gives no log-probabilities"),
    ],
)
def test_a_refusal_ends_the_run_at_once(start: Start, fault: str, said: str) -> None:
    stub = start(entries, lambda count, prompt: fault)
    with pytest.raises(ModelError, match=said):
        teacher(stub, key="secret-1").logprobs(batch_of([[5]], [[7]]))
    assert stub.requests == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, r"gives no log-probabilities \(prompt_logprobs\) for 2 tokens"),
        ([None], r"gives 1 log-probabilities \(prompt_logprobs\) for 2 tokens"),
        ([None, None], "gives None as the log-probability of the id 7 at position 1"),
        ([None, {"8": {"logprob": -1.0}}], "None as the log-probability of the id 7"),
        ([None, {"7": {"logprob": "-1"}}], "'-1' as the log-probability of the id 7"),
        ([None, {"7": {"logprob": math.nan}}], "nan as the log-probability of the id 7"),
        ([None, {"7": {"logprob": -math.inf}}], "-inf as the log-probability of the id 7"),
        ([None, {"7": {"logprob": 0.5}}], "0.5 as the log-probability of the id 7"),
    ],
)
def test_no_number_is_made_of_an_answer_that_has_none(start: Start, given: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        teacher(start(lambda prompt: given)).logprobs(batch_of([[5]], [[7]]))


def test_vocabularies_are_compared_by_the_texts_of_ids(start: Start) -> None:
    other: Any = character_tokenizer("9876543210+=", eos="$", pad="_")
    teacher(start()).check(TOKENIZER, 6, compare_texts=True)
    with pytest.raises(ModelError, match=r"another vocabulary: id \d+ is '\d' here and '\d' th"):
        teacher(start()).check(other, 6, compare_texts=True)
    teacher(start()).check(other, 6, compare_texts=False)  # their tokenizers have been compared
    silent = start(lambda prompt: [None, *({str(token): {"logprob": -1.0}} for token in prompt[1:])])
    with pytest.raises(ModelError, match=r"is '\d' here and None there(.|\n)*set teacher.tokenizer"):
        teacher(silent).check(TOKENIZER, 6, compare_texts=True)


@given(st.integers(1, 40))
def test_a_probe_follows_every_id_with_another_in_texts_of_full_length(longest: int) -> None:
    texts = probe(TOKENIZER, longest)
    assert {len(text) for text in texts} == {max(longest, 2)}
    assert {token for text in texts for token in text[1:]} == set(TOKENIZER.encode("0123456789+="))
