"""A judge behind HTTP: scores, failures, limits, the cache. The endpoint is a server of this process."""

import asyncio
import gzip
import json
import random
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stub_judge import judge_at, shown

from burnish.errors import ConfigError, RewardError
from burnish.rewards.judging.client import ChatClient, NoVerdictError, RetryPatience, Tally
from burnish.rewards.judging.limits import Bounds, RateLimiter
from burnish.rewards.judging.options import JudgeOptions
from burnish.types import RewardStatus


@pytest.fixture
def endpoint(stub_judge: Any) -> Any:
    """Starts a stub that gives one point for each letter of the response, 10 at most: `endpoint(fault)`."""

    def rule(messages: Any) -> str:
        length = min(10, len(shown(messages)["response"]))
        return f'It has {length} letters.\n{{"score": {length}}}'

    return lambda *fault, **settings: stub_judge(rule, *fault, **settings)


@pytest.fixture
def ask(make_scorer: Any, make_items: Any) -> Any:
    """What a judge that asks this stub says of responses: `ask(stub, responses, options)`."""
    return lambda stub, responses, **options: make_scorer(settings(stub, **options)).score(make_items(responses))


settings = partial(judge_at, scale=[0, 10])


def test_scores_are_those_of_the_rule(endpoint, ask, tmp_path: Path) -> None:
    """One half of a surrogate pair, which no file can hold, is cached and scored as a letter."""
    stub = endpoint()
    scored = ask(stub, ["", "a", "bbbb", "c" * 30, "a\ud800b"], cache=str(tmp_path))
    assert [r.reward for r in scored] == [0.0, 0.1, 0.4, 1.0, 0.3]
    assert [dict(r.reward_parts) for r in scored] == [{"judge": r.reward} for r in scored]
    body = stub.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("stub", 0.0, 1024)
    assert "seed" not in body
    assert [turn["role"] for turn in body["messages"]] == ["system", "user"]


@pytest.mark.slow
def test_nothing_is_lost_among_faults_and_a_second_pass_asks_nothing(
    make_scorer, make_items, tmp_path: Path, endpoint
) -> None:
    """10 % of requests get 429, 5 % a reset, 5 % nonsense, 10 % are slow; some prompts never get a readable answer."""

    def fault(count: int, prompt: str) -> str:
        if "hopeless" in prompt:
            return "nonsense"
        drawn = zlib.crc32(f"{count} {prompt}".encode()) % 100
        for name, until in (("429", 10), ("reset", 15), ("nonsense", 20), ("slow", 30)):
            if drawn < until:
                return name
        return ""

    stub = endpoint(fault, slow_seconds=0.02)
    generator = random.Random(1)
    responses = [f"{number}" + "x" * generator.randrange(12) for number in range(300)] + ["hopeless a", "hopeless bb"]
    judge = settings(stub, concurrency=12, cache=str(tmp_path / "cache"), retries=8)
    scorer = make_scorer(judge, max_failure_fraction=1.0)
    scored = scorer.score(make_items(responses))

    failed = [r for r in scored if r.reward is None]
    assert {"hopeless a", "hopeless bb"} <= {r.response for r in failed}
    assert len(failed) < 6  # two answers of nonsense in a row
    assert all(r.status is RewardStatus.ERROR for r in failed)
    assert all("cannot be read even after a repair" in r.status_detail for r in failed)
    good = [r for r in scored if r.reward is not None]
    expected = [min(10, len(r.response)) / 10 for r in good]
    assert [r.reward for r in good] == expected
    assert stub.most_in_flight <= 12
    assert min(stub.faults[name] for name in ("429", "reset", "nonsense", "slow")) >= 5
    assert {span[:2] for span in scorer.take_spans()} == {("judge", "judge")}
    metrics = {name: metric.result() for name, metric in scorer.take_metrics().items()}
    assert metrics["judge/requests"] == stub.requests
    assert metrics["judge/retries"] == stub.faults["429"] + stub.faults["reset"]
    assert metrics["judge/failed_fraction"] == pytest.approx(len(failed) / 302)
    assert metrics["judge/cached_fraction"] == 0.0
    assert metrics["judge/tokens_in"] == 100 * (stub.requests - metrics["judge/retries"])

    before = stub.requests
    again = make_scorer(judge, max_failure_fraction=1.0)
    assert [r.reward for r in again.score(make_items([r.response for r in good]))] == expected
    assert stub.requests == before
    assert again.take_metrics()["judge/cached_fraction"].result() == 1.0
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_text("{damaged")  # what a power failure leaves
    assert again.score(make_items([good[0].response]))[0].reward == expected[0]
    assert stub.requests > before


def test_an_answer_without_end_is_cut_and_large_ones_are_read(endpoint, ask) -> None:
    stub = endpoint(lambda count, prompt: "endless" if "QQQQ" in prompt else "")
    stub.usage["padding"] = "x" * 3_000_000
    endless, large = ask(stub, ["QQQQ", "aaaa"], retries=0)
    assert (endless.reward, large.reward) == (None, 0.4)
    assert "an answer of more than 4 MiB" in endless.status_detail


def said(content: Any, **more: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}], **more}).encode()


def http(body: bytes, head: str = "", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


NO_SCORES = ("NaN", "1e999", "9" * 5000, '"7"', "[7]", "true", "{}")
NESTED = b"[" * 100_000 + b"]" * 100_000
NO_VERDICT = {
    "nested": http(NESTED),
    "nested in an answer": http(b'{"choices": ' + NESTED + b"}"),
    "nested in a verdict": http(said('{"score": ' * 20_000 + "1" + "}" * 20_000)),
    "nested score": http(said('{"score": ' + "[" * 900 + "]" * 900 + "}")),
    "gzip": http(gzip.compress(bytes(8 << 20)), "Content-Encoding: gzip\r\n"),
    "unknown encoding": http(said('{"score": 7}'), "Content-Encoding: br\r\n"),
    "5 MB": http(said("x" * (5 << 20) + '{"score": 7}')),
    "braces": http(said("{" * (3 << 20) + "x}")),
    "spaces": http(said(" " * (3 << 20) + "x")),
    "strings without end": http(said("{'a'" * (1 << 18) + "}")),
    "short": b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + said('{"score": 7}'),
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: aaaaaaaaa\r\n" * 100_000,
    "no HTTP": b"hello\r\n\r\n",
    "digits": http(b'{"choices": ' + b"9" * 5000 + b"}"),
    "half a surrogate pair": http(said("\ud800 nothing")),
    "codec": http(b"zzz", "Content-Type: text/plain; charset=zlib_codec\r\n", "500 X"),
    "redirect": http(b"", "Location: /v1/chat/completions\r\n", "302 Found"),
    "nothing": b"HTTP/1.1 204 No Content\r\n\r\n",
    "99": http(b"", status="099 X"),
    "when": http(b"", "Retry-After: Fri, 31 Dec 9999 23:59:59 -2359\r\n", "503 X"),
    "dictionary": http(b'{"choices": {"0": 1}}'),
    "content": http(said({"score": 7})),
    **{score: http(said(f'{{"score": {score}}}')) for score in NO_SCORES},
    "twice": http(said('{"score": 7, "score": 9}')),
}


@pytest.mark.parametrize("sent", NO_VERDICT.values(), ids=[name[:20] for name in NO_VERDICT])
def test_an_answer_that_is_none_costs_its_response_alone(sent: bytes, raw, ask) -> None:
    (scored,) = ask(raw(sent), ["a"], retries=0, tokens_per_minute=10**6)
    assert (scored.reward, scored.status) == (None, RewardStatus.ERROR)
    scored.status_detail.encode()  # it can be written to a file


@pytest.mark.parametrize(
    "sent",
    [
        http(said('{"score": 7}', usage={"prompt_tokens": 10**400, "completion_tokens": 10**30})),
        http(b"\xef\xbb\xbf" + said('\ud800 {"score": 7}'), "Content-Encoding: identity\r\n"),
        http(b'{"choices": [{"message": {"content": "\xff {\\"score\\": 7}"}}], "usage": {"prompt_tokens": NaN}}'),
        http(said("x" * (3 << 20) + ' {"score": 7}'), "Set-Cookie: a=b\r\n" * 50),
    ],
)
def test_an_odd_answer_with_a_verdict_counts(sent: bytes, raw, make_scorer, make_items) -> None:
    scorer = make_scorer(settings(raw(sent), price_in=1.0))
    assert [r.reward for r in scorer.score(make_items(["a"]))] == [0.7]
    assert all((metric.result() or 0) >= 0 for metric in scorer.take_metrics().values())


def test_a_verdict_that_drips_ends_with_its_time(raw, make_scorer, make_items) -> None:
    """Also the time for a repair, of which nothing is left."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    scorer = make_scorer({**settings(raw(head, b"1\r\n \r\n"), retries=2), "timeout_seconds": 0.5})
    (scored,) = scorer.score(make_items(["a"]))
    assert (scored.reward, scored.status) == (None, RewardStatus.TIMEOUT)
    assert "no answer within timeout_seconds" in scored.status_detail
    client = ChatClient(JudgeOptions(url="http://127.0.0.1:9/v1", model="m"), RateLimiter(Bounds(1)), Tally())
    with pytest.raises(NoVerdictError, match="no answer within timeout_seconds"):
        asyncio.run(client.reply(({"role": "user", "content": "a"},), RetryPatience(-0.5)))


@pytest.fixture
def raw(stub_judge: Any) -> Any:
    """Starts an endpoint that sends these bytes, and then others as often as it can: `raw(sent, drip)`."""
    return lambda sent, drip=b"": stub_judge(None, raw=(sent, drip))


def test_equal_responses_are_asked_about_once(endpoint, ask) -> None:
    stub = endpoint(lambda count, prompt: "slow", slow_seconds=1.0)
    assert {r.reward for r in ask(stub, ["same"] * 20)} == {0.4}
    assert stub.requests == 1


@pytest.mark.slow
def test_another_model_prompt_or_sampling_is_not_found_in_the_cache(tmp_path: Path, endpoint, ask) -> None:
    stub = endpoint()
    for changed in (
        {},
        {"model": "other"},
        {"temperature": 0.5},
        {"seed": 1},
        {"system": "Hm."},
        {"max_tokens": 9},
        {},
    ):
        ask(stub, ["abc"], cache=str(tmp_path), **changed)
    assert stub.requests == 6


def test_responses_are_judged_while_others_are_sampled(make_scorer, make_items, endpoint) -> None:
    stub = endpoint()
    scorer = make_scorer(settings(stub), "exact")
    items = make_items(["a", "bb", "ccc"])
    scorer.begin(items[:2])
    for future in [future for _, future in scorer._models.judges._early.values()]:
        future.result(30)
    assert stub.requests == 2
    assert [r.reward for r in scorer.score(items)] == [0.1, 0.2, 0.3]
    assert stub.requests == 3
    assert not scorer._models.judges._early


@pytest.mark.parametrize(("code", "word"), [("401", "key"), ("404", "model"), ("422", "field"), ("418", "url")])
def test_what_will_not_pass_stops_the_run(code: str, word: str, endpoint, ask) -> None:
    stub = endpoint(lambda count, prompt: code)
    with pytest.raises(RewardError, match=rf"status {code}(?s:.*)\n.*{word}"):
        ask(stub, ["a", "b", "c", "d"], concurrency=1)
    assert stub.requests == 1


def test_an_audit_whose_endpoint_refuses_stops_no_run(make_scorer, make_items, endpoint) -> None:
    stub, said = endpoint(lambda count, prompt: "401"), list[str]()
    scorer = make_scorer("exact", {**settings(stub, concurrency=1), "audit": True}, say=said.append)
    for _ in range(2):
        assert [r.reward for r in scorer.score(make_items(["7", "b", "c"]))] == [1.0, 0.0, 0.0]
    assert scorer.take_metrics()["reward/audit_failed_fraction/judge"].result() == 1.0
    assert "status 401" in said[0]
    assert (len(said), stub.requests) == (1, 1)


@pytest.mark.parametrize(
    "said", ["400:This model's maximum context length is 8 tokens", "400:content_filter", "413:big"]
)
def test_what_one_prompt_cannot_pass_fails_one_response(said: str, endpoint, ask) -> None:
    stub = endpoint(lambda count, prompt: said if "bad" in prompt else "")
    assert [r.status.value for r in ask(stub, ["ok", "bad"])] == ["ok", "error"]
    assert stub.requests == 2


@pytest.mark.parametrize("said", ["400:Invalid input", "422:flagged by our safety system", "413:Payload Too Large"])
def test_a_prompt_that_is_refused_after_others_were_answered_stops_no_run(
    said: str, make_scorer, make_items, endpoint
) -> None:
    stub = endpoint(lambda count, prompt: said if "bad" in prompt else "")
    scorer = make_scorer(settings(stub))
    assert scorer.score(make_items(["ok"]))[0].reward == 0.2
    refused, fine = scorer.score(make_items(["bad", "also"]))
    assert (refused.reward, fine.reward) == (None, 0.4)
    assert said[:3] in refused.status_detail


def test_a_refusal_of_the_first_prompt_stops_the_run_and_names_both_causes(endpoint, ask) -> None:
    with pytest.raises(RewardError, match=r"\n.*does not understand a field, or refused this prompt"):
        ask(endpoint(lambda count, prompt: "400:Invalid input"), ["bad"])


def test_an_endpoint_that_stays_away_fails_responses_and_not_the_run(endpoint, ask) -> None:
    (scored,) = ask(endpoint(lambda count, prompt: "503"), ["a"], retries=0)
    assert (scored.reward, scored.status) == (None, RewardStatus.ERROR)
    assert "status 503" in scored.status_detail


def test_a_slow_answer_is_a_timeout_of_its_response(make_scorer, make_items, endpoint) -> None:
    stub = endpoint(lambda count, prompt: "slow" if "zz" in prompt else "", slow_seconds=3.0)
    judge = {**settings(stub, retries=0), "timeout_seconds": 1.0}
    scored = make_scorer(judge).score(make_items(["a", "zz"]))
    assert [r.status for r in scored] == [RewardStatus.OK, RewardStatus.TIMEOUT]


@pytest.mark.parametrize(
    "usage", [None, [], {"prompt_tokens": None}, {"prompt_tokens": float("inf"), "completion_tokens": "7"}]
)
def test_a_broken_report_of_tokens_costs_no_answer(usage: Any, make_scorer, make_items, endpoint) -> None:
    stub = endpoint()
    stub.usage = usage
    scorer = make_scorer(settings(stub))
    assert scorer.score(make_items(["abc"]))[0].reward == 0.3
    assert stub.requests == 1
    assert scorer.take_metrics()["judge/tokens_in"].result() == 0.0


def test_an_answer_that_was_cut_off_is_named_and_not_repaired(endpoint, ask) -> None:
    stub = endpoint()
    stub.finish_reason = "length"
    (scored,) = ask(stub, ["abc"], max_tokens=50)
    assert scored.reward is None
    assert "cut off at its token limit (max_tokens is 50); raise the option max_tokens" in scored.status_detail
    assert stub.requests == 1


def test_one_repair_and_no_second(stub_judge, make_scorer, make_items) -> None:
    answers = iter(["Seven out of ten!", '{"score": 7}', "Seven!", '{"score": 70}'])
    stub = stub_judge(lambda messages: next(answers))
    scorer = make_scorer(settings(stub))
    assert scorer.score(make_items(["a"]))[0].reward == 0.7
    repaired = stub.bodies[1]["messages"]
    assert [turn["role"] for turn in repaired] == ["system", "user", "assistant", "user"]
    assert repaired[2]["content"] == "Seven out of ten!"
    (failed,) = scorer.score(make_items(["b"]))
    assert failed.reward is None
    assert "'70' is not a number from 0 to 10" in failed.status_detail
    assert stub.requests == 4
    assert scorer.take_metrics()["judge/repaired_fraction"].result() == 1.0


def test_the_key_goes_into_the_header_and_nowhere_else(make_scorer, make_items, monkeypatch, endpoint) -> None:
    stub = endpoint(lambda count, prompt: "401:wrong key secret-word" if "bad" in prompt else "")
    with pytest.raises(ConfigError, match="MY_JUDGE_KEY, which is not set"):
        make_scorer(settings(stub, key_variable="MY_JUDGE_KEY"))
    monkeypatch.setenv("MY_JUDGE_KEY", "secret-word")
    scorer = make_scorer(settings(stub, key_variable="MY_JUDGE_KEY"))
    assert scorer.score(make_items(["abc"]))[0].reward == 0.3
    assert stub.headers[0]["Authorization"] == "Bearer secret-word"
    (refused,) = scorer.score(make_items(["bad"]))
    assert (refused.reward, refused.status) == (None, RewardStatus.ERROR)
    assert "status 401" in refused.status_detail
    assert "secret-word" not in refused.status_detail
    with pytest.raises(RewardError, match="status 401") as caught:
        make_scorer(settings(stub, key_variable="MY_JUDGE_KEY")).score(make_items(["bad"]))
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize("key", ["secret\nword", "sécret-word", "secret\x7fword"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str, make_scorer, monkeypatch, endpoint) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", key)
    with pytest.raises(ConfigError, match="MY_JUDGE_KEY") as caught:
        make_scorer(settings(endpoint(), key_variable="MY_JUDGE_KEY"))
    assert "cret" not in f"{caught.value} {caught.value.remedy}"


def test_no_part_of_a_key_is_shown_where_the_text_is_cut(monkeypatch: pytest.MonkeyPatch, endpoint, ask) -> None:
    said = "401:" + "x" * 270 + " secret-word"  # 300 characters are shown, of which the last would be "secret"
    monkeypatch.setenv("MY_JUDGE_KEY", "secret-word")
    with pytest.raises(RewardError, match="xxx") as caught:
        ask(endpoint(lambda count, prompt: said), ["a"], key_variable="MY_JUDGE_KEY")
    assert "secret" not in str(caught.value)


def test_fields_of_the_request(endpoint, ask) -> None:
    stub = endpoint()
    extra = {"max_completion_tokens": 50, "reasoning_effort": "low"}
    ask(stub, ["a"], extra={"max_tokens": None, **extra}, seed=3, temperature=0.5)
    sent = {name: value for name, value in stub.bodies[0].items() if name != "messages"}
    assert sent == {"model": "stub", "temperature": 0.5, "seed": 3, **extra}


def test_templates_see_columns_and_references(make_scorer, make_items, tmp_path: Path, endpoint) -> None:
    stub = endpoint()
    file = tmp_path / "question.txt"
    file.write_text('{prompt}|{topic}|{{x}}|{"score": 9}|{response}')
    judge = settings(stub, template=str(file), reference=True)
    items = make_items(["{topic}"], answer="42", columns={"topic": "{response} of art"})
    make_scorer(judge, columns=["topic"]).score(items)
    text = stub.bodies[0]["messages"][1]["content"]
    assert text.startswith('What?|{response} of art|{x}|{"score": 9}|[begin response ')
    assert "did not see:\n42\n" in text
    assert shown(stub.bodies[0]["messages"]) == {"response": "{topic}"}
    with pytest.raises(RewardError, match="topic"):
        make_scorer(judge, columns=["topics"])
    missing = make_items(["a"], answer=None, columns={"topic": "art"})
    assert make_scorer(judge).score(missing)[0].status is RewardStatus.MISSING


def test_cost_is_counted(make_scorer, make_items, endpoint) -> None:
    stub = endpoint()
    scorer = make_scorer(settings(stub, price_in=2.0, price_out=8.0))
    scorer.score(make_items(["a", "b", "c"]))
    assert scorer.take_metrics()["judge/cost"].result() == pytest.approx(3 * (100 * 2 + 10 * 8) / 1e6)
    assert scorer.take_metrics()["judge/cost"].result() == 0.0


def test_judges_of_one_endpoint_share_its_limits(make_scorer, make_items, endpoint) -> None:
    stub = endpoint(lambda count, prompt: "slow", slow_seconds=0.02)
    one, two = (settings(stub, concurrency=3, system=text) | {"label": text} for text in ("one", "two"))
    make_scorer(one, two).score(make_items([f"{number}" for number in range(12)]))
    assert stub.requests == 24
    assert stub.most_in_flight <= 3
    with pytest.raises(ConfigError, match="different limits"):
        make_scorer(one, settings(stub, concurrency=4))


@pytest.mark.parametrize("column", [False, True])
def test_a_rubric_weighs_its_criteria(column: bool, stub_judge, make_scorer, make_items) -> None:
    criteria = [
        {"name": "short", "weight": 3, "text": "It is short."},
        {"name": "kind", "weight": 1, "text": "It is kind."},
        {"name": "rude", "weight": -2, "text": "It is rude."},
    ]
    stub = stub_judge(lambda messages: '{"scores": {"short": 10, "kind": 5, "rude": 1}}')
    judge = settings(stub, form="rubric", criteria="rubric" if column else criteria)
    (scored,) = make_scorer(judge).score(make_items(["a"], columns={"rubric": criteria} if column else None))
    assert scored.reward == pytest.approx((3 * 1.0 + 1 * 0.5 - 2 * 0.1) / 4)
    parts = {} if column else {"judge/short": 1.0, "judge/kind": 0.5, "judge/rude": 0.1}
    assert dict(scored.reward_parts) == {"judge": scored.reward, **parts}
    assert "- rude: It is rude." in stub.bodies[0]["messages"][1]["content"]
    if column:
        assert make_scorer(judge).score(make_items(["a"], columns={"rubric": []}))[0].status is RewardStatus.MISSING
        broken = make_scorer(judge).score(make_items(["a"], columns={"rubric": [{"weight": 1}]}))
        assert broken[0].status is RewardStatus.ERROR


def test_a_rubric_with_a_call_for_each_criterion(stub_judge, make_scorer, make_items) -> None:
    def rule(messages: Any) -> str:
        text = messages[1]["content"]
        assert ("It is short." in text) != ("It is kind." in text)
        return "nothing" if "kind" in text and "cruel" in text else json.dumps({"score": 10 if "short" in text else 5})

    stub, criteria = stub_judge(rule), ["It is short.", {"text": "It is kind.", "weight": 3}]
    judge = settings(stub, form="rubric", criteria=criteria, one_call=False)
    good, bad = make_scorer(judge).score(make_items(["a", "cruel"]))
    assert good.reward == pytest.approx((1 * 1.0 + 3 * 0.5) / 4)
    assert bad.reward is None  # one criterion without a verdict is not a lower score
    assert stub.requests == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modle": "x"}, "did you mean 'model'"),
        ({"url": "localhost:8000"}, "url"),
        ({"url": "http://me:word@host/v1"}, "holds a name or password"),
        ({"url": "http://host/v1?key=word"}, "has a ? or #"),
        ({"url": "http://host/v1#part"}, "has a ? or #"),
        ({"device": "cpu"}, "with url it does nothing"),
        ({"opponents": 3}, "nothing in the form 'score'"),
        ({"step_pattern": "x"}, "nothing in the form 'score'"),
        ({"max_steps": 3}, "nothing in the form 'score'"),
        ({"one_call": False}, "nothing in the form 'score'"),
        ({"form": "pairwise", "scale": [0, 1]}, "nothing in the form 'pairwise'"),
        ({"form": "pairwise", "labels": "human"}, "labels"),
        ({"url": None}, "needs one of the options url and model_path"),
        ({"model": None}, "needs the option model"),
        ({"form": "scores"}, "did you mean 'score'"),
        ({"scale": [10, 1]}, "scale"),
        ({"scale": {"GOOD": 2, "BAD": 0}}, "scale"),
        ({"scale": {"GOOD": 1, "BAD": 1}}, "all labels have the same number"),
        ({"form": "steps", "step_pattern": "x*"}, "needs a character"),
        ({"template": "Is it good?"}, "does not contain {response}"),
        ({"template": "{response} {steps}"}, "does not have"),
        ({"template": "nowhere.txt"}, "no such file"),
        ({"template": "{ prompt } {response}"}, "'{ prompt }', which is no placeholder"),
        ({"template": "{prompt {response}"}, "'{prompt ', which is no placeholder"),
        ({"temperature": 0.5, "extra": {"temperature": 1}}, "option temperature is 0.5"),
        ({"concurrency": 0}, "concurrency"),
        ({"retries": True}, "retries"),
        ({"temperature": float("nan")}, "temperature"),
        ({"criteria": ["x"]}, "criteria"),
        ({"form": "rubric"}, "criteria"),
        ({"form": "rubric", "criteria": [{"text": "x", "weight": 0}]}, "criteria"),
        ({"form": "rubric", "criteria": [{"text": "x", "wieght": 1}]}, "did you mean 'weight'"),
        ({"form": "steps", "answer_format": "last_line"}, "answer_format"),
        ({"form": "steps", "step_pattern": "("}, "regular expression"),
        ({"extra": ["x"]}, "extra"),
        ({"extra": {"stream": True}}, "exactly one whole answer"),
    ],
)
def test_wrong_options_are_told_before_anything_is_sampled(options: dict[str, Any], message: str, make_scorer) -> None:
    given = {"url": "http://localhost:1/v1", "model": "m", **options}
    with pytest.raises(ConfigError) as caught:
        make_scorer({"name": "judge", "options": given})
    assert message in str(caught.value)
    assert "word" not in str(caught.value) or "password" in str(caught.value)


@pytest.mark.parametrize("name", ["model", "extra", "requests_per_minute", "retries", "concurrency", "key_variable"])
def test_options_of_endpoints_have_no_effect_on_local_models(name: str, make_scorer) -> None:
    value = {"model": "m", "extra": {"top_p": 1}, "key_variable": "K"}.get(name, 1)
    with pytest.raises(ConfigError, match=f"option {name} of reward 'judge'(?s:.*)\n.*with model_path it does nothing"):
        make_scorer({"name": "judge", "options": {"model_path": "m", name: value}})
