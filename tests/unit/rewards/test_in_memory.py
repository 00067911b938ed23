"""Functions in memory as rewards: forked workers with the limits of all others."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from burnish.errors import RewardError
from burnish.rewards import ProcessRewardScorer
from burnish.rewards.loading import functions_at_hand
from burnish.types import RewardStatus

MakeScorer = Callable[..., ProcessRewardScorer]


@pytest.fixture
def scorer_of(make_scorer: MakeScorer) -> MakeScorer:
    """A scorer with one worker for one function."""

    def make(function: Callable[..., Any], *, further: tuple[str, ...] = (), **fields: Any) -> ProcessRewardScorer:
        with functions_at_hand({"python:mine": function}):
            return make_scorer({"name": "python:mine", **fields}, *further)

    return make


@pytest.mark.slow
def test_a_closure_and_a_lambda(scorer_of, make_items) -> None:
    limit = 3

    def capped(response: str) -> float:
        return min(len(response), limit)

    items = make_items(["ab", "abcd"])
    assert [r.reward for r in scorer_of(capped).score(items)] == [2.0, 3.0]
    scorer = scorer_of(lambda response, answer: int(answer) + len(response))
    assert [r.reward for r in scorer.score(items)] == [9.0, 11.0]
    assert [r.reward for r in scorer_of(lambda responses: [len(r) for r in responses]).score(items)] == [2.0, 4.0]


def test_asynchronous(scorer_of, make_items) -> None:
    async def counted(response: str) -> float:
        return len(response)

    assert [r.reward for r in scorer_of(counted).score(make_items(["ab", "abcd"]))] == [2.0, 4.0]


@pytest.mark.slow
def test_a_hang_and_a_death_cost_their_response_only_and_the_closure_is_still_there(scorer_of, make_items) -> None:
    bonus = 10

    def nasty(response: str) -> float:
        if response == "loop":
            while True:
                pass
        if response == "exit":
            os._exit(3)
        return len(response) + bonus

    scorer = scorer_of(nasty, timeout_seconds=0.5)
    scored = scorer.score(make_items(["a", "loop", "bb", "exit", "ccc"]))
    ok, late, dead = RewardStatus.OK, RewardStatus.TIMEOUT, RewardStatus.ERROR
    assert [(r.reward, r.status) for r in scored] == [(11.0, ok), (None, late), (12.0, ok), (None, dead), (13.0, ok)]
    assert "exit status 3" in scored[3].status_detail


def test_a_worker_outlives_the_stop_signals(scorer_of, make_items) -> None:
    scorer = scorer_of(lambda response: len(response))
    scorer.score(make_items(["a"]))
    (worker,) = scorer.worker_pids
    os.kill(worker, signal.SIGTERM)
    assert [r.reward for r in scorer.score(make_items(["ab"]))] == [2.0]
    assert scorer.worker_pids == [worker]


def test_variables_are_hidden_unless_they_are_named(scorer_of, make_items, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")

    def sees(response: str) -> float:
        return float("MY_KEY" in os.environ)

    assert [r.reward for r in scorer_of(sees).score(make_items(["a"]))] == [0.0]
    assert [r.reward for r in scorer_of(sees, environment=["MY_KEY"]).score(make_items(["a"]))] == [1.0]
    assert os.environ["MY_KEY"] == "secret"


def test_files_of_the_program_are_closed_in_it(scorer_of, make_items, tmp_path: Any) -> None:
    with (tmp_path / "mine").open("w") as file:
        number = file.fileno()

        def is_open(response: str) -> float:
            try:
                os.fstat(number)
            except OSError:
                return 0.0
            return float(os.readlink(f"/proc/self/fd/{number}").endswith("mine"))

        assert [r.reward for r in scorer_of(is_open).score(make_items(["a"]))] == [0.0]
        file.write("still open here")


def test_what_it_prints_does_not_mix_with_our_output(scorer_of, make_items, capfd: pytest.CaptureFixture[str]) -> None:
    print("ours", end="")  # waits in the buffer, of which the fork has a copy

    def loud(response: str) -> float:
        print("a reward speaks")
        return 1.0

    scorer = scorer_of(loud)
    scorer.score(make_items(["a"]))
    scorer.close()
    said = capfd.readouterr()
    assert said.out == "ours"
    assert "a reward speaks" in said.err


def test_large_products_do_not_hang_after_the_program_has_used_its_threads(scorer_of, make_items) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        size = 700
        torch.ones(size, size) @ torch.ones(size, size)

        def product(response: str) -> float:
            return float((torch.ones(size, size) @ torch.ones(size, size))[0, 0])

        assert [r.reward for r in scorer_of(product, timeout_seconds=60.0).score(make_items(["a"]))] == [700.0]
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_next_to_a_reward_in_a_file(scorer_of, make_items, reward_file) -> None:
    """They do not share a worker: what stands in a file has an interpreter without anything of this program."""
    path = reward_file("import os\ndef parent(response): return float(os.getppid())")
    scorer = scorer_of(lambda response: float(os.getppid()), further=(f"{path}:parent",))
    (scored,) = scorer.score(make_items(["a"]))
    assert scored.reward_parts["mine"] != scored.reward_parts["parent"]


def test_a_function_that_is_not_at_hand_is_named(make_scorer) -> None:
    with pytest.raises(RewardError, match=r"'python:gone' is a function of the Python program") as caught:
        make_scorer("python:gone")
    assert "path/to/file.py:function" in str(caught.value)


def test_functions_are_at_hand_inside_only(make_scorer) -> None:
    with functions_at_hand({"python:mine": len}), functions_at_hand({}), pytest.raises(RewardError):
        make_scorer("python:mine")


def test_a_worker_that_starts_later_sees_the_program_as_it_is_then(scorer_of, make_items) -> None:
    state = {"bonus": 1.0}
    scorer = scorer_of(lambda response: state["bonus"])
    assert [r.reward for r in scorer.score(make_items(["a"]))] == [1.0]
    state["bonus"] = 2.0
    assert [r.reward for r in scorer.score(make_items(["a"]))] == [1.0]
    os.kill(scorer.worker_pids[0], signal.SIGKILL)
    time.sleep(0.2)  # it has ended between two calls
    assert [r.reward for r in scorer.score(make_items(["a"]))] == [2.0]
