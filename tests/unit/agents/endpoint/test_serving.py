"""A model served on its own: trajectories by name, their records, and clients that choose how to sample."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from watching import wait_for

from burnish.agents.endpoint.request_queue import Order
from burnish.agents.endpoint.requests import RewardCall, Terms, read_chat, read_completion
from burnish.agents.endpoint.serving import ServedModel, StandingLoop
from burnish.forward.divergences import Likeliest, PromptScores
from burnish.outside.listening import RefusedError
from burnish.rollouts.engine import StoppableEngine
from burnish.types import Begun

from .conftest import MODEL, ROOM, SAMPLING, Script

Start = Callable[..., StandingLoop]
TERMS = Terms(SAMPLING, MODEL, ROOM.context)
HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def hello(name: str = "") -> Order:
    return Order(name, read_chat(HELLO, TERMS))


def ask(loop: StandingLoop, name: str, text: str = "hi", **more: Any) -> Any:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}
    return placed(loop, Order(name, read_chat(asked, loop.desk.find(name))))  # type: ignore[arg-type]


def placed(loop: StandingLoop, order: Order) -> Any:
    loop.desk.place(order)
    return order.answer.result(timeout=20)


def test_a_reward_ends_and_records_a_trajectory(serving: Start) -> None:
    lines: list[str] = []
    loop = serving(record=lines)
    ask(loop, "a", "one")
    ask(loop, "b", "two")
    assert lines == []
    assert placed(loop, Order("a", RewardCall(0.5))) is None
    (row,) = map(json.loads, lines)
    assert (row["trajectory"], row["environment_reward"]) == ("a", 0.5)
    with pytest.raises(RefusedError, match="no such trajectory"):
        placed(loop, Order("a", RewardCall(0.5)))
    ask(loop, "a", "one")  # the name is free again
    loop.desk.close()
    wait_for(lambda: len(lines) >= 3)
    assert {json.loads(line)["trajectory"] for line in lines[1:]} == {"a", "b"}
    assert all("environment_reward" not in json.loads(line) for line in lines[1:])


def test_requests_without_a_name_are_alone_and_have_noise_of_their_own(serving: Start, script: Any) -> None:
    lines: list[str] = []
    loop = serving(record=lines)
    for _ in range(3):
        ask(loop, "")
    assert [request.prompt_id for request in script.seen] == ["request 0", "request 1", "request 2"]
    wait_for(lambda: len(lines) >= 3)
    assert all("trajectory" not in json.loads(line) for line in lines)


def test_clients_may_choose_where_that_is_allowed(serving: Start, script: Any) -> None:
    loop = serving(others="follow")
    ask(loop, "", temperature=0.3, top_p=0.5, seed=7, stop=["x"], max_tokens=9)
    ask(loop, "", temperature=0)
    ask(serving(others="follow", sampling=replace(SAMPLING, greedy=True)), "", temperature=0.7)
    first, second, third = script.samplings
    assert (third.temperature, third.greedy) == (0.7, False)
    assert (first.temperature, first.top_p, first.stop, first.max_response_tokens) == (0.3, 0.5, ("x",), 9)
    assert (second.temperature, second.greedy) == (1.0, True)


def test_prompts_are_scored_where_the_model_can(speech: Any, script: Any) -> None:
    """Likeliest first, and the prompt's own token once; 20 of them at most, and of no server that cannot score."""
    asked: list[Any] = []

    def score(prompt: Any, k: int) -> PromptScores:
        asked.append((prompt, k))
        likeliest = Likeliest(torch.tensor([[4, 5], [6, 4]]), torch.full((2, 3), -0.5))
        return PromptScores(torch.tensor([-0.5, -3.0]), torch.tensor([1, 9]), likeliest)

    terms = Terms(SAMPLING, MODEL, ROOM.context, scores_prompts=True)
    loop = StandingLoop(ServedModel(script, speech, terms, ROOM, score=score))
    wanted = {"model": MODEL, "prompt": [7, 4, 5], "max_tokens": 1, "prompt_logprobs": 2}
    order = Order("", read_completion(wanted, terms))
    loop._serve([order])
    first, second, third = order.answer.result().body()["choices"][0]["prompt_logprobs"]
    assert (first, asked) == (None, [((7, 4, 5), 2)])
    assert {token: (one["logprob"], one["rank"]) for token, one in second.items()} == {"4": (-0.5, 1), "5": (-0.5, 2)}
    assert {token: one["rank"] for token, one in third.items()} == {"6": 1, "4": 2, "5": 9}
    assert third["5"] == {"logprob": -3.0, "rank": 9, "decoded_token": speech.text(5)}
    for settings, value in ((terms, 129), (terms, -1), (TERMS, 0)):
        with pytest.raises(RefusedError, match="prompt_logprobs"):
            read_completion({**wanted, "prompt_logprobs": value}, settings)


def test_the_same_seed_has_the_same_noise(serving: Start, script: Any) -> None:
    loop = serving(others="follow")
    for seed in (7, 7, 8):
        ask(loop, "", seed=seed)
    first, second, third = [request.prompt_id for request in script.seen]
    assert first == second != third


def test_a_turn_that_takes_longer_than_the_wait_ends_no_trajectory(
    speech: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of its own client, nor one whose request came meanwhile. Each turn takes 500 s."""
    lines: list[str] = []
    monkeypatch.setattr("burnish.agents.endpoint.serving.time.monotonic", lambda: 500.0 * len(script.seen))
    loop = StandingLoop(ServedModel(script, speech, TERMS, ROOM, idle_seconds=400.0), lines.append)
    loop._serve([hello("a")])
    loop._serve([hello("b")])  # within which "a" asks again
    loop._end_idle(but={"a"})
    assert lines == []
    loop._serve([hello("a")])
    loop._end_idle()
    assert [json.loads(line)["trajectory"] for line in lines] == ["b"]


def test_idle_trajectories_end_and_too_many_are_refused(speech: Any, script: Any) -> None:
    lines: list[str] = []
    loop = StandingLoop(ServedModel(script, speech, TERMS, ROOM, idle_seconds=0.0, open=1), lines.append)
    first, second = hello("a"), hello("b")
    loop._serve([first, second])
    assert first.answer.result(timeout=0) is not None
    with pytest.raises(RefusedError, match="1 trajectories are open"):
        second.answer.result(timeout=0)
    time.sleep(0.01)
    loop._end_idle()
    assert [json.loads(line)["trajectory"] for line in lines] == ["a"]


def test_names_are_short(serving: Start) -> None:
    assert serving().desk.find("x" * 129) is None


class StoppableScript(Script, StoppableEngine):
    """Samples a token each time that it is asked whether to stop; remembers which requests it was left with."""

    def generate_until(self, requests: Any, sampling: Any, *, stopped: Any, on_finished: Any, **given: Any) -> Any:
        self.seen += requests
        while not stopped():
            if len(requests) == 1:
                return self.generate(requests, sampling, on_finished=on_finished), []
        return [], [replace(request, begun=(Begun((1,), (0.0,), ()),)) for request in requests]


def test_what_is_sampled_for_a_client_that_goes_away_ends(serving: Start, speech: Any) -> None:
    engine = StoppableScript(speech.tokenizer)
    going, staying = hello(), hello()
    serving(engine=engine).desk.place(going, staying)
    wait_for(lambda: len(engine.seen) == 2)
    going.withdraw()
    assert staying.answer.result(timeout=20).said.text == "yes"
    assert [request.begun for request in engine.seen[2:]] == [(Begun((1,), (0.0,), ()),)] * 2
