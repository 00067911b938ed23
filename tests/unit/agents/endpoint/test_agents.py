"""Agents of a training run, in processes of their own: what they are given, what they cost, and how they fail."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from watching import wait_for

from burnish.agents.endpoint.agents import AgentEngine, AgentServer, AgentTalk
from burnish.agents.environments.warm_parent import ConversationHost, Wanted
from burnish.errors import ConfigError, RolloutError
from burnish.rollouts.engine import Sampling
from burnish.types import FinishReason, Message, Prompt, Rollout, RolloutRequest

from .conftest import Script, speech_of

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

AGENTS = """
import asyncio, json, os, subprocess, sys, time, urllib.error, urllib.request

def post(base_url, api_key, path, body):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(base_url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)

def say(base_url, api_key, model, messages, **more):
    body = {"model": model, "messages": messages, **more}
    return post(base_url, api_key, "/chat/completions", body)["choices"][0]["message"]

def run(base_url, api_key, model, messages, answer, turns=2, **row):
    for _ in range(turns):
        messages = [*messages, say(base_url, api_key, model, messages), {"role": "user", "content": "more"}]
    return float(messages[-2]["content"] == answer)

async def waits(base_url, api_key, model, messages):
    await asyncio.sleep(0)
    say(base_url, api_key, model, messages)
    return True

def pays_by_call(base_url, api_key, model, messages):
    say(base_url, api_key, model, messages)
    post(base_url, api_key, "/reward", {"reward": 0.25})

def branches(base_url, api_key, model, messages):
    for text in "ab":
        say(base_url, api_key, model, [{"role": "user", "content": text}])
    return 2.0

def too_many(base_url, api_key, model, messages):
    try:
        run(base_url, api_key, model, messages, "", turns=9)
    except urllib.error.HTTPError as error:
        assert json.load(error)["error"]["code"] == "turns_exhausted"
        return -1.0

def by_row(base_url, api_key, model, messages, kind):
    if kind == "hangs":
        time.sleep(60)
    say(base_url, api_key, model, messages)
    if kind == "hangs later":
        time.sleep(60)
    if kind == "dies":
        os._exit(3)
    if kind == "raises":
        raise ValueError("of its own")
    return {"returns text": "good", "returns nan": float("nan")}.get(kind, 1.0)

def measures(base_url, api_key, model, messages, cases):
    say(base_url, api_key, model, messages)
    return float(len(cases))
def leaves(base_url, api_key, model, messages):
    say(base_url, api_key, model, messages)
    return float(subprocess.Popen(["sleep", "600"]).pid)
def silent(**row): return 1.0
def hot(base_url, api_key, model, messages):
    say(base_url, api_key, model, messages, temperature=0.123)
    return 1.0
def needs(colour): ...
def seeded(base_url, api_key, model, messages, seed):
    say(base_url, api_key, model, messages)
    return seed

if __name__ == "__main__":
    given = json.load(sys.stdin)
    url, key, model = (os.environ["OPENAI_" + name] for name in ("BASE_URL", "API_KEY", "MODEL"))
    said = say(url, key, model, given["messages"])
    print("said", said["content"])
    print(given["answer"] == said["content"])
    print(0.75)
"""


@pytest.fixture(scope="module")
def agents_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("agents") / "agents.py"
    path.write_text(AGENTS)
    return path


@pytest.fixture
def hold(agents_file: Path) -> Iterator[Callable[..., AgentEngine]]:
    """An engine whose prompts are held by this agent."""
    with ExitStack() as stack:

        def start(agent: str, *, rows: Sequence[dict[str, Any]] = ({},), **settings: Any) -> Any:
            name = agent if agent.startswith("command:") else f"{agents_file}:{agent}"
            options = settings.pop("options", {})
            host = ConversationHost(Wanted(environment=f"agent:{name}", options=options))
            stack.callback(host.close)
            server = AgentServer()
            stack.callback(server.close)
            speech = speech_of()
            settings = {"turns": 4, "call_seconds": 20.0, "open_seconds": 20.0, **settings}
            talk = AgentTalk(host, speech, Sampling(0, temperature=1.0), **settings)
            asked = (Message("user", "q"),)
            columns = {f"p{i}": {"answer": "yes", **row} for i, row in enumerate(rows)}
            talks = {name: (talk, Prompt(name, messages=asked, columns=row)) for name, row in columns.items()}
            script = Script(speech.tokenizer)
            return AgentEngine(script, script, talks, server, context_length=4_000), script

        yield start


def ask(engine: AgentEngine, *samples: Sequence[int], **wanted: bool) -> list[Rollout]:
    """Samples of the prompts 0, 1 and so on."""
    requests = [RolloutRequest.of(f"p{i}", i, (1, 2), tuple(some)) for i, some in enumerate(samples)]
    return engine.generate(requests, Sampling(max_response_tokens=400, **wanted), seed=0, step=1)


def read(engine: AgentEngine) -> dict[str, float | None]:
    return {name: metric.result() for name, metric in engine.take_metrics().items()}


@pytest.mark.slow
def test_agents_are_given_their_row_and_pay_for_it(hold: Any) -> None:
    engine, script = hold("run", rows=[{}, {"answer": "no", "turns": 1}])
    rows = ask(engine, (0, 1), (0,))
    paid = {(row.group_id, row.sample_index): row.environment_reward for row in rows}
    assert paid == {(0, 0): 1.0, (0, 1): 1.0, (1, 0): 0.0}
    assert [len(row.turns) for row in rows] == [3, 3, 1]
    assert {request.name for request in script.seen} == {"p0", "p0, turn 2", "p1"}
    assert all(row.prompt_tokens == script.seen[0].prompt_tokens for row in rows)
    zeros = dict.fromkeys(("agent/failed_fraction", "agent/timed_out_fraction", "agent/refused"), 0)
    assert read(engine) == {"agent/started": 3, "agent/turns": 5, "agent/branches_mean": 1, **zeros}
    assert read(engine) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "reward"), [("waits", 1.0), ("pays_by_call", 0.25), ("too_many", -1.0)])
def test_rewards_come_in_several_ways(hold: Any, agent: str, reward: float) -> None:
    engine, _ = hold(agent)
    (row,) = ask(engine, (0,))
    assert row.environment_reward == reward
    assert row.finish_reason is (FinishReason.TURNS if agent == "too_many" else FinishReason.STOP)
    assert read(engine)["agent/refused"] == (agent == "too_many")


@pytest.mark.slow
def test_a_row_may_be_larger_than_a_socket_holds(hold: Any) -> None:
    (row,) = ask(hold("measures", rows=[{"cases": "x" * 3_000_000}])[0], (0,))
    assert row.environment_reward == 3_000_000


def test_what_an_agent_has_started_ends_with_it(hold: Any) -> None:
    (row,) = ask(hold("leaves")[0], (0,))
    pid = int(row.environment_reward)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.slow
def test_a_command_is_an_agent(hold: Any, agents_file: Path) -> None:
    (row,) = ask(hold(f"command:{sys.executable} {agents_file}")[0], (0,))
    assert row.environment_reward == 0.75


@pytest.mark.slow
def test_branches_are_rows_except_in_evaluations(hold: Any) -> None:
    engine, _ = hold("branches")
    assert [row.key[1:] for row in ask(engine, (4, 5))] == [(4, 0), (4, 1), (5, 0), (5, 1)]
    assert {row.environment_reward for row in ask(engine, (4,))} == {2.0}
    assert [row.key[1:] for row in ask(engine, (4, 5), only_scored=True)] == [(4, 0), (5, 0)]
    assert [row.sample_index for row in ask(engine, (-1,), greedy=True)] == [-1]


FAILING = {
    "raises": r"ValueError: of its own .*agents\.py:",
    "dies": "its process has ended",
    "returns text": "returned is of the type str",
    "returns nan": "returned is nan",
    "hangs later": "no request and no end within 1 s",
    "hangs": "no request and no end within 2 s",
}


@pytest.mark.slow
def test_an_agent_that_fails_fails_alone(hold: Any) -> None:
    kinds = ["fine", *FAILING]
    engine, _ = hold("by_row", rows=[{"kind": kind} for kind in kinds], call_seconds=1.0, open_seconds=2.0)
    began = time.monotonic()
    fine, *failed = ask(engine, *[(0,)] * len(kinds))
    assert time.monotonic() - began < 30
    assert (fine.environment_reward, fine.status_detail) == (1.0, "")
    for row, why in zip(failed, FAILING.values(), strict=True):
        assert re.search(why, row.status_detail)
        assert (row.finish_reason, row.environment_reward) == (FinishReason.FAILED, None)
    metrics = read(engine)
    assert metrics["agent/failed_fraction"] == pytest.approx(6 / 7)
    assert metrics["agent/timed_out_fraction"] == pytest.approx(2 / 7)


@pytest.mark.slow
def test_an_agent_that_asks_for_nothing_has_failed(hold: Any) -> None:
    (row,) = ask(hold("silent")[0], (0,))
    assert (row.finish_reason, row.response_tokens) == (FinishReason.FAILED, ())
    assert "requested no turn" in row.status_detail


@pytest.mark.slow
def test_other_settings_are_refused_unless_they_are_to_be_ignored(hold: Any) -> None:
    assert "HTTP Error 400" in ask(hold("hot")[0], (0,))[0].status_detail
    assert ask(hold("hot", others="ignore")[0], (0,))[0].environment_reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"open": 1}, {"in_rounds": True}, {"in_rounds": True, "open": 2}])
def test_how_many_run_at_a_time_changes_nothing(hold: Any, settings: dict[str, Any]) -> None:
    def rows(**settings: Any) -> list[Any]:
        engine, script = hold("run", rows=[{}, {"turns": 1}], **settings)
        script.say = lambda request: f"{request.prompt_id}{request.sample_indices}"
        found = ask(engine, range(3), range(3))
        return [(row.sample_index, row.response_tokens, row.environment_reward) for row in found]

    assert rows(**settings) == rows()


@pytest.mark.slow
def test_in_rounds_everyone_is_sampled_together(hold: Any) -> None:
    engine, script = hold("run", in_rounds=True)
    ask(engine, range(5))
    places = [request.group_id for request in script.seen]  # of a request in its call
    assert places == [0, 1, 2, 3, 4] * 2


@pytest.mark.slow
def test_agents_of_a_group_have_one_seed(hold: Any) -> None:
    seeds = {row.environment_reward for row in ask(hold("seeded")[0], range(3))}
    assert len(seeds) == 1
    assert len({row.environment_reward for row in ask(hold("seeded", same_start=False)[0], range(3))}) == 3


@pytest.mark.slow
def test_an_engine_that_fails_ends_the_call(hold: Any) -> None:
    engine, script = hold("run")
    script.say = Mock(side_effect=RolloutError("broken"))
    with pytest.raises(RolloutError, match="broken"):
        ask(engine, (0, 1))
    script.say = lambda request: "yes"
    assert ask(engine, (0,))[0].environment_reward == 1.0


@pytest.mark.slow
def test_a_row_without_what_the_agent_wants_fails_with_its_name(hold: Any) -> None:
    (row,) = ask(hold("needs")[0], (0,))
    assert "needs 'colour', which the row does not have" in row.status_detail


@pytest.mark.slow_cases("needs-options2-cannot be called with the options")
@pytest.mark.parametrize(
    ("agent", "options", "wrong"),
    [
        ("nothing", {}, "has no nothing"),
        ("__name__", {}, "is a str"),
        ("needs", {"size": 1}, "cannot be called with the options"),
        ("command:", {}, "names no command"),
        ("command: node 'x", {}, "cannot be told apart: No closing quotation"),
        ("command: no-such-program --fast", {}, "the program 'no-such-program' was not found"),
    ],
)
def test_agents_that_cannot_be_used_are_refused_at_the_start(
    hold: Any, agent: str, options: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        hold(agent, options=options)
    assert caught.value.message.startswith("conversation.agent is ")


@pytest.mark.slow
def test_rows_are_plain_data(hold: Any) -> None:
    (row,) = ask(hold("run")[0], (0,))
    assert Rollout.from_dict(json.loads(json.dumps(row.to_dict()))) == row
