"""Weights, parts, dense rewards, failure policy, counts; and one message for each thing that can be wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from burnish.config.schema import ScoringConfig
from burnish.errors import BurnishError, ConfigError, OutageError, RewardError
from burnish.rewards import ProcessRewardScorer
from burnish.types import FinishReason, RewardStatus

REWARDS = """
    import time
    from burnish.types import Score

    def size(response, **columns): return len(response)
    def judged(response): return {"?": None, "nan": float("nan"), "inf": float("inf")}.get(response, 1.0)
    def sometimes(response): return 1 / len(response)
    def parts(response): return Score(3.0, parts={"style": 1.0, "sense": 2.0})
    def dense(response_tokens): return Score(len(response_tokens), token_rewards=(1.0,) * len(response_tokens))
    def dense_short(response, response_tokens): return Score(1.0, token_rewards=(1.0,))
    def dense_off(response, response_tokens): return Score(5.0, token_rewards=(1.0,) * len(response_tokens))
    def dense_nan(response, response_tokens): return Score(1.0, token_rewards=(float("nan"),) * len(response_tokens))
    def text(response): return "good"
    async def text_async(response): return "good"
    def raises(response): raise RuntimeError("bad day")
    def batch_long(responses): return [1.0] * (len(responses) + 1)
    def batch_number(responses): return 1.0
    def batch_none(responses): return [None if r == "?" else 1 for r in responses]
    def lonely(): return 1.0
    def unknown(response, colour): return 1.0
    def scaled(response, factor, shift=0.0): return factor * len(response) + shift
    class Stateful:
        def __init__(self, start=10): self.start = start
        def __call__(self, response): return self.start + len(response)
    class Picky:
        def __init__(self, start): raise ValueError(f"start must not be {start}")
        def __call__(self, response): return 0.0
    NUMBER = 3
"""


def test_weighted_sum_and_parts(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(
        {"name": f"{file}:size", "weight": 2.0},
        {"name": f"{file}:parts", "weight": -1.0, "label": "quality"},
        {"name": "exact", "weight": 0.5},
    )
    first, second = scorer.score(make_items(["7", "abc"]))
    assert first.reward == pytest.approx(2 * 1 - 3 + 0.5)
    assert second.reward == pytest.approx(2 * 3 - 3)
    expected = {"size": 3.0, "quality": 3.0, "quality/style": 1.0, "quality/sense": 2.0, "exact": 0.0}
    assert (second.reward_parts, second.status, second.token_rewards) == (expected, RewardStatus.OK, None)


def test_dense_and_whole_rewards_meet_on_the_tokens(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer({"name": f"{file}:dense", "weight": 0.5}, {"name": f"{file}:size", "weight": 2.0})
    (scored,) = scorer.score(make_items(["abc"]))
    assert scored.token_rewards == (0.5, 0.5, 6.5)
    assert scored.reward == pytest.approx(sum(scored.token_rewards))


def test_failed_responses_are_excluded_by_default(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:judged", "exact")
    scored = scorer.score(make_items(["7", "nan", "inf"]))
    assert [r.status for r in scored] == [RewardStatus.OK, RewardStatus.ERROR, RewardStatus.ERROR]
    assert [r.reward for r in scored] == [2.0, None, None]
    assert "nan" in scored[1].status_detail
    assert scored[1].reward_parts == {"exact": 0.0}


@pytest.mark.slow
def test_a_reward_that_returns_none_is_not_for_a_response_that_another_scores(make_scorer, make_items, file) -> None:
    both, alone = make_scorer(f"{file}:judged", "exact"), make_scorer(f"{file}:judged")
    (scored,) = both.score(make_items(["?"], answer="?"))
    assert (scored.reward, scored.status, scored.reward_parts) == (1.0, RewardStatus.OK, {"exact": 1.0})
    (missing,) = alone.score(make_items(["?"]))
    assert (missing.reward, missing.status) == (None, RewardStatus.MISSING)


def test_a_reward_that_returns_none_for_some_responses_to_a_prompt_is_missing_there(
    make_scorer, make_group, file: Path
) -> None:
    """`judged` gives 1 or None, so to be unjudgeable would cost nothing. To the second prompt it gives only None."""
    items = make_group(["7", "?", "8"]) + make_group(["?", "?"], number=1, answer="?")
    scored = make_scorer(f"{file}:judged", "exact").score(items)
    assert [r.reward for r in scored] == [2.0, None, 1.0, 1.0, 1.0]
    assert [r.status.value for r in scored] == ["ok", "missing", "ok", "ok", "ok"]
    why = "it cannot judge this response, yet it is for the prompt: it did not return None for every response to it"
    assert scored[1].status_detail == f"reward 'judged' returned None: {why}"


def test_the_greedy_response_counts_as_one_of_its_group(make_scorer, make_group, file: Path) -> None:
    scored = make_scorer(f"{file}:judged", "exact").score(make_group(["?", "?", "7"], greedy=True))
    assert [r.reward for r in scored] == [None, None, 2.0]


def test_an_audit_is_logged_and_neither_counts_nor_fails_anything(make_scorer, make_group, file: Path) -> None:
    scorer = make_scorer("exact", {"name": f"{file}:judged", "audit": True})
    scored = scorer.score(make_group(["7", "?", "nan"]))
    assert [r.reward for r in scored] == [1.0, 0.0, 0.0]
    assert [r.reward_parts for r in scored] == [{"exact": 1.0, "judged": 1.0}, {"exact": 0.0}, {"exact": 0.0}]
    assert all(r.status is RewardStatus.OK for r in scored)


def test_an_audit_that_fails_is_counted_and_told_once(make_scorer, make_items, file: Path) -> None:
    """Of four responses two get no finite number. None is an answer."""
    said: list[str] = []
    scorer = make_scorer("exact", {"name": f"{file}:judged", "audit": True}, say=said.append)
    for _ in range(2):
        scorer.score(make_items(["7", "nan", "inf", "?"]))
    read = {name: metric.result() for name, metric in scorer.take_metrics().items()}
    assert read["reward/audit_failed_fraction/judged"] == 0.5
    assert "reward/audit_failed_fraction/exact" not in read
    assert read["reward/failed_fraction"] == 0.0
    (line,) = said
    for words in ("audit 'judged'", "row-1", "nan", "reward/audit_failed_fraction/judged"):
        assert words in line


@pytest.mark.slow
@pytest.mark.parametrize("function", ["text", "text_async", "batch_long", "batch_number", "raises"])
def test_an_audit_that_breaks_its_contract_ends_no_run(make_scorer, make_items, file: Path, function: str) -> None:
    scorer = make_scorer("exact", {"name": f"{file}:{function}", "audit": True}, workers=2)
    items = make_items(["7", "b", "c", "7"])
    scorer.begin(items[:2])
    scored = scorer.score(items)
    assert [(r.reward, r.status.value) for r in scored] == [(1.0, "ok"), (0.0, "ok"), (0.0, "ok"), (1.0, "ok")]
    assert scorer.take_metrics()[f"reward/audit_failed_fraction/{function}"].result() == 1.0
    assert [r.reward for r in scorer.score(items)] == [1.0, 0.0, 0.0, 1.0]


def test_a_reward_is_for_the_domains_that_it_names(make_scorer, make_items, file: Path) -> None:
    """`judged` fails for this response, but is not asked about it in the domain `text`."""
    scorer = make_scorer({"name": f"{file}:judged", "domains": ["math"]}, {"name": "exact", "domains": "text"})
    items = make_items(["nan"], domain="text", answer="nan")
    scored = scorer.score(items + make_items(["7"], domain="math") + make_items(["7"], domain="other"))
    assert [r.reward for r in scored] == [1.0, 1.0, None]
    assert [r.reward_parts for r in scored[:2]] == [{"exact": 1.0}, {"judged": 1.0}]
    assert scored[2].status is RewardStatus.MISSING
    assert scored[2].status_detail == "no reward is for the domain 'other'"


def test_failed_responses_may_get_a_stated_score(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:judged", on_failure="score", failure_score=-1.0)
    scored = [(r.reward, r.status.value) for r in scorer.score(make_items(["7", "?"]))]
    assert scored == [(1.0, "ok"), (-1.0, "missing")]


def test_metrics_count_failures_by_status_and_domain_and_start_again(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:judged")
    items = make_items(["a", "nan"], domain="x") + make_items(["a", "?"], domain="y")
    scorer.score(items + make_items(["b"], domain="z"))
    read = {name: metric.result() for name, metric in scorer.take_metrics().items()}
    assert read["reward/failed_fraction"] == pytest.approx(2 / 5)
    assert read["reward/error_fraction"] == pytest.approx(1 / 5)
    assert read["reward/missing_fraction"] == pytest.approx(1 / 5)
    assert read["reward/timeout_fraction"] == 0.0
    assert [read[f"reward/failed_fraction/{domain}"] for domain in "xyz"] == [0.5, 0.5, 0.0]
    assert "time/reward_seconds" not in read  # which whoever calls measures
    assert read["time/reward_worker_seconds/judged"] > 0
    works = [(span.process, span.work, span.began < span.ended) for span in scorer.take_spans()]
    assert set(works) == {("reward worker 0", "judged", True)}
    assert scorer.take_metrics()["reward/failed_fraction"].result() is None


def test_metrics_tell_how_many_responses_each_reward_is_not_for(make_scorer, make_group, file: Path) -> None:
    """`judged` is not for one of two prompts, and is missing, not left out, for one response to the other."""
    scorer = make_scorer(f"{file}:judged", {"name": "exact", "domains": ["default"]})
    scorer.score(make_group(["?", "?"]) + make_group(["7", "?"], number=1) + make_group(["a"], number=2, domain="b"))
    read = {name: metric.result() for name, metric in scorer.take_metrics().items()}
    assert read["reward/not_mine_fraction/judged"] == pytest.approx(2 / 5)
    assert read["reward/not_mine_fraction/exact"] == 0.0
    assert read["reward/missing_fraction"] == pytest.approx(1 / 5)
    assert not [name for name in scorer.take_metrics() if "not_mine" in name]


def test_too_many_failures_stop_with_the_first_one_in_a_line(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:sometimes", max_failure_fraction=0.5)
    assert len(scorer.score(make_items(["a", "", "b"]))) == 3
    with pytest.raises(RewardError) as caught:
        scorer.score(make_items(["a", "b"], domain="x") + make_items(["", "", ""], domain="y"))
    for words in ("3 of 5 responses", "y: 3", "row-0", "ZeroDivisionError", "my_rewards.py", "max_failure_fraction"):
        assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "Traceback (most recent call last)" in str(caught.value.__cause__)  # which --debug shows


@pytest.mark.parametrize(("lost", "allowed"), [(2, 0.4), (1, 0.4), (5, 0.9), (5, 1.0)])
def test_environments_that_fail_count_as_rewards_that_do(make_scorer, make_items, file, lost, allowed) -> None:
    scorer = make_scorer(f"{file}:sometimes", max_failure_fraction=allowed)
    items = make_items(["a", "b", "", "c", "d"])
    why = "the environment failed: reset: ConnectionError: the database is down"
    failed = {"finish_reason": FinishReason.FAILED, "status": RewardStatus.ERROR, "status_detail": why}
    items = [(p, replace(r, **failed) if n >= 5 - lost else r) for n, (p, r) in enumerate(items)]
    if lost + (lost < 3) <= allowed * 5:  # the third response has no score either
        assert [r.reward for r in scorer.score(items)][5 - lost :] == [None] * lost
        return
    said = f"{lost + (lost < 3)} of 5 responses.*sample.*{why}\n.* environment or agent,"
    with pytest.raises(OutageError, match=said):
        scorer.score(items)


def test_stateful_class_options_and_function_options(make_scorer, make_items, file: Path) -> None:
    given = {"Stateful": {"start": 100}, "scaled": {"factor": 2}}
    scorer = make_scorer(*({"name": f"{file}:{name}", "options": options} for name, options in given.items()))
    assert scorer.score(make_items(["ab"]))[0].reward_parts == {"Stateful": 102.0, "scaled": 4.0}


@pytest.mark.slow
def test_no_items_and_close_twice(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:size")
    assert scorer.score([]) == []
    scorer.close()
    scorer.close()
    assert scorer.worker_pids == []
    assert scorer.score(make_items(["ab"]))[0].reward == 2.0  # fresh workers


LOAD_ERRORS: list[tuple[dict[str, Any], type[BurnishError], str]] = [
    ({"name": "mth"}, RewardError, "(?s)no built-in reward 'mth'.*did you mean 'math'"),
    ({"name": "nowhere.py:size"}, RewardError, "there is no file 'nowhere.py'"),
    ({"name": "FILE:sise"}, RewardError, "(?s)'sise' does not exist in.*did you mean 'size'"),
    ({"name": "FILE:NUMBER"}, RewardError, "is not a function or class"),
    ({"name": "no_such_package.rewards:size"}, RewardError, "No module named 'no_such_package'"),
    ({"name": "json:dumpz"}, RewardError, "did you mean 'dump"),
    ({"name": "FILE:lonely"}, RewardError, "has no parameters"),
    ({"name": "FILE:unknown"}, RewardError, "(?s)'colour', which nothing provides.*color"),
    ({"name": "FILE:scaled"}, RewardError, "(?s)'factor', which nothing provides.*set it under options"),
    ({"name": "FILE:scaled", "options": {"facto": 1}}, ConfigError, "(?s)no option 'facto'.*did you mean 'factor'"),
    ({"name": "FILE:scaled", "options": {"response": 1}}, ConfigError, "no option 'response'"),
    ({"name": "FILE:Stateful", "options": {"begin": 1}}, ConfigError, "(?s)no option 'begin'.*options are start"),
    ({"name": "FILE:Picky"}, ConfigError, "needs the option 'start'"),
    ({"name": "FILE:Picky", "options": {"start": 3}}, RewardError, "start must not be 3"),
    ({"name": "exact", "options": {"stirp": True}}, ConfigError, "did you mean 'strip'"),
    ({"name": "regex"}, ConfigError, "needs the option 'pattern'"),
    ({"name": "overlong", "options": {"max_tokens": 5}}, ConfigError, "needs the option 'buffer_tokens'"),
]


@pytest.mark.parametrize(("reward", "kind", "words"), LOAD_ERRORS)
def test_wrong_rewards_are_errors_at_load_time(make_scorer, file, reward, kind, words) -> None:
    reward = {**reward, "name": reward["name"].replace("FILE", str(file))}
    with pytest.raises(kind, match=words):
        make_scorer(reward, columns=["color"])


def test_a_file_that_does_not_import(make_scorer, reward_file) -> None:
    path = reward_file("import math\nraise OSError('disk on fire')\ndef f(response): return 1.0\n")
    with pytest.raises(RewardError, match=r"(?s)a reward is .*its file fails.*disk on fire.*my_rewards.py"):
        make_scorer(f"{path}:f")


def test_empty_and_ambiguous_lists(make_scorer) -> None:
    with pytest.raises(ConfigError, match="rewards is empty"):
        ProcessRewardScorer([], ScoringConfig())
    with pytest.raises(ConfigError, match="two rewards have the label 'exact'"):
        make_scorer("exact", "exact")


CONTRACT_ERRORS = [
    ("dense_short", "1 token_rewards for a response of 2 tokens"),
    ("dense_off", "value 5, but its token_rewards sum to 2"),
    ("unknown", "'colour', which nothing provides"),
]


@pytest.mark.parametrize(("function", "words"), CONTRACT_ERRORS)
def test_broken_contracts_stop_at_once(make_scorer, make_items, file: Path, function: str, words: str) -> None:
    with pytest.raises(RewardError, match=words):
        make_scorer(f"{file}:{function}").score(make_items(["ab", "cd", "ef"]))


def test_a_column_that_only_some_rows_have(make_scorer, make_items, file: Path) -> None:
    items = make_items(["a"], columns={"colour": 1}) + make_items(["b"])
    with pytest.raises(RewardError, match=r"(?s)column 'colour', which prompt 'row-0' does not have.*default"):
        make_scorer(f"{file}:unknown").score(items)


def test_a_column_that_cannot_travel(make_scorer, make_items, file: Path) -> None:
    with pytest.raises(RewardError, match="cannot be sent to its worker"):
        make_scorer(f"{file}:size").score(make_items(["a"], columns={"what": lambda: None}))


@pytest.mark.slow
def test_batched_none_and_dense_nan(make_scorer, make_items, file: Path) -> None:
    scored = make_scorer(f"{file}:batch_none").score(make_items(["a", "?"]))
    assert [r.status.value for r in scored] == ["ok", "missing"]
    (scored_nan,) = make_scorer(f"{file}:dense_nan").score(make_items(["ab"]))
    assert scored_nan.status is RewardStatus.ERROR
    assert "token_rewards[0]" in scored_nan.status_detail
