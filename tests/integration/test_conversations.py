"""Runs whose responses are conversations: the same numbers however they are held, and no fault ends a run."""

import itertools
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildRl, ctrl_c_in_step, lines_of, rows_of, step_rows, trace, trained
from tiny_models import save_llama

from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.errors import ConfigError, OutageError
from burnish.models.characters import character_tokenizer
from burnish.models.tokenizers import load_tokenizer
from burnish.trainers.rl.measuring import evaluate_run

pytestmark = pytest.mark.slow_cases("*")

QUIET = Console(quiet=True)

TEMPLATE = """
{%- for tool in tools or [] -%}{{ tool.function.name }}?{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == "assistant" -%}{{ message.content }}
{%- if message.tool_calls -%}
[{%- for call in message.tool_calls -%}{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() -%}{{ name }}={{ value | tojson }}
{%- if not loop.last %}, {% endif -%}{%- endfor -%})
{%- if not loop.last %}, {% endif -%}{%- endfor -%}]
{%- endif -%}$
{%- else -%}>{{ message.content }}<
{%- endif -%}
{%- endfor -%}
"""

PARTNERS = '''
import os

from burnish.agents.tools.calls import MalformedCall, Parsed, ToolCall


def brief(response: str) -> float:
    return 1.0 / (1.0 + len(response))


class Eager:
    """A parser for a model that has learned nothing: longer turns are taken for one or two calls."""

    def parse(self, text, tools=()):
        size = len(text)
        if size < 3:
            return Parsed(text)
        calls = [ToolCall("calculator", {"expression": f"{size} * {ord(text[0])}"})]
        if size % 3 == 0:
            calls.append(ToolCall("calculator", {"expression": text[:5]}))
        if size % 7 == 0:
            calls.append(MalformedCall(text, "it is not a call"))
        return Parsed("", tuple(calls))


class Broken(Eager):
    """Calls a tool that never works."""

    def parse(self, text, tools=()):
        return Parsed("", (ToolCall("broken", {}),))


def broken() -> str:
    """Look something up."""
    raise ConnectionError("the database is down")


class Echo:
    """A game: says how long a turn was, pays for short ones, and dies, fails or hangs where it is told to; or is away
    for some of its openings, which it counts in a file."""

    def __init__(self, dies_every=0, how="die", log="", away=(0, 0)):
        self.dies_every, self.how, self.log, self.away = dies_every, how, log, away

    def reset(self, seed, **row):
        if self.log:
            with open(self.log, "a") as log:
                log.write(".")
                log.flush()
                if self.away[0] < os.path.getsize(self.log) <= self.away[1]:
                    raise ConnectionError("the server is away")
        self.bad = self.dies_every and seed % self.dies_every == 0
        self.turns = 0
        if self.bad and self.how == "at once":
            raise ValueError("no")
        return f" {seed % 100}"

    def step(self, action):
        self.turns += 1
        if self.bad:
            if self.how == "die":
                os._exit(1)
            raise ValueError("no")
        return f"{len(action)}", 1.0 / (1 + len(action)), self.turns == 4, False, {}
'''


@pytest.fixture(scope="session")
def talking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of single characters, whose turns have about six of them."""
    folder = tmp_path_factory.mktemp("talking-model")
    alphabet = [c for c in string.digits + "+-*/=()[]<>?,.: " + string.ascii_lowercase + '"']
    tokenizer = character_tokenizer(alphabet, eos="$", pad="_", unk="~", context_length=128, chat_template=TEMPLATE)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_layers": 1, "num_heads": 2, "context_length": 128}
    return save_llama(folder, tokenizer, seed=1, **sizes)


@pytest.fixture
def run(tiny_run: BuildRl, talking_model: Path, tiny_task: Path, tmp_path: Path) -> Callable[..., RlConfig]:
    """The configuration of a run in `tmp_path/NAME`, whose responses are conversations with `partner`."""
    (tmp_path / "partners.py").write_text(PARTNERS)
    partners = {
        "calculator": {"tools": "calculator", "parser": f"{tmp_path / 'partners.py'}:Eager"},
        "echo": {"environment": f"{tmp_path / 'partners.py'}:Echo"},
        "broken": {"tools": f"{tmp_path / 'partners.py'}:broken", "parser": f"{tmp_path / 'partners.py'}:Broken"},
    }

    talk = {"max_turns": 3, "in_rounds": True, "call_timeout_seconds": 20}

    def build(name: str, partner: str = "calculator", conversation: Any = (), **fields: Any) -> RlConfig:
        asked = {
            "model": str(talking_model),
            "data": {part: str(tiny_task / f"{part}.jsonl") for part in ("train", "eval")} | {"chat": "always"},
            "conversation": None if conversation is None else {**talk, **partners[partner], **dict(conversation)},
            "rewards": [{"name": f"{tmp_path / 'partners.py'}:brief"}],
            "steps": 4,
            "rollout": {
                "prompts_per_step": 3, "group_size": 4, "max_prompt_tokens": 32, "max_response_tokens": 60,
                "stop_token_ids": list(range(6, 14)),
            },
            "evaluation": {"every_steps": 2, "max_prompts": 4},
            "checkpoint": {"every_steps": 2},
        }  # fmt: skip
        return tiny_run(f"output={tmp_path}/{name}", **{**asked, **fields})

    return build


def rollouts(folder: Path | str) -> list[dict[str, Any]]:
    return [line for file in sorted(Path(folder).glob("rollouts/step-*.jsonl")) for line in lines_of(file)]


def tokens_and_turns(config: RlConfig) -> list[Any]:
    """What the responses of the run consist of."""
    return [(line["response_tokens"], line["turns"]) for line in rollouts(trained(config))]


def test_a_run_with_a_calculator(run: Callable[..., RlConfig]) -> None:
    folder = trained(run("run"))
    found = step_rows(folder)
    assert len(found) == 4
    for row in found:
        assert row["tool/calls"] > 0
        assert row["conversation/turns_mean"] > 1
        assert 0 < row["conversation/called_fraction"] <= 1
        assert row["conversation/failed_fraction"] == 0
        assert row["rollout/logprob_diff_max"] < 1e-3
    assert sum(row["tool/malformed_fraction"] for row in found) > 0
    assert "eval/conversation/turns_mean" in found[-1]
    lines = rollouts(folder)
    for line in lines:
        tokens, logprobs = line["response_tokens"], line["rollout_logprobs"]
        assert len(tokens) == len(logprobs) <= 60
        assert [turn["author"] for turn in line["turns"]][::2] == ["policy"] * ((len(line["turns"]) + 1) // 2)
        for turn in line["turns"]:
            part = logprobs[turn["start"] : turn["stop"]]
            assert all(number == 0.0 for number in part) == (turn["author"] == "tool")
            if turn["author"] == "tool" and line["kept"]:
                assert len(line["token_advantages"]) == len(tokens)
    assert {line["finish_reason"] for line in lines} <= {"stop", "length", "turns"}
    assert any(len(line["turns"]) == 5 for line in lines)


@pytest.mark.parametrize("partner", ["calculator", "echo"])
def test_in_rounds_two_runs_are_the_same(run: Callable[..., RlConfig], partner: str) -> None:
    first, second = trained(run("first", partner)), trained(run("second", partner))
    assert trace(first) == trace(second)


def test_without_rounds_the_tokens_are_the_same(run: Callable[..., RlConfig]) -> None:
    """Whoever has an answer goes on; its noise does not depend on who else does."""
    first, second = (run(name, "echo", {"in_rounds": name == "rounds"}, steps=1) for name in ("rounds", "free"))
    assert tokens_and_turns(first) == tokens_and_turns(second)


def test_a_resumed_run_is_the_same(run: Callable[..., RlConfig]) -> None:
    expected = trace(trained(run("whole", "echo")))
    with ctrl_c_in_step(2):
        halves = trained(run("halves", "echo"))
    assert rows_of(halves)[-1]["step"] == 2
    assert trace(trained(run("halves", "echo"))) == expected


@pytest.mark.parametrize("partner", ["calculator", pytest.param("echo", marks=pytest.mark.matrix)])
def test_rollout_workers_change_nothing(run: Callable[..., RlConfig], partner: str) -> None:
    """The tokens are those of one process; metrics of the engine itself differ."""
    none, two = (run(f"workers{n}", partner, cluster={"rollout_workers": n, "threads": 1}) for n in (0, 2))
    assert tokens_and_turns(none) == tokens_and_turns(two)


def test_two_trainers_have_the_bits_of_one(run: Callable[..., RlConfig]) -> None:
    lanes = {"lanes": 2, "threads": 1}
    one, two = (trained(run(f"trainers{count}", cluster={**lanes, "trainers": count})) for count in (1, 2))
    assert trace(one).state == trace(two).state
    assert trace(one).rollouts == trace(two).rollouts


def test_a_template_that_writes_earlier_turns_anew(
    run: Callable[..., RlConfig], talking_model: Path, tmp_path: Path
) -> None:
    """Each history is a row, which follows exactly the tokens that the engine saw, and has the score of the end."""
    marked = "{{ '' if loop.last else '+' }}{{ message.content }}"
    model = {"path": str(talking_model), "chat_template": TEMPLATE.replace("{{ message.content }}", marked, 1)}
    with pytest.raises(ConfigError, match="the chat template writes a turn differently"):
        trained(run("refused", "echo", model=model))
    folder = trained(run("forks", "echo", {"trajectory": "fork"}, model=model))
    tokenizer = load_tokenizer(ModelConfig(**model))
    lines = [line for line in rollouts(folder) if line["sample_index"] >= 0]
    conversations: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for line in lines:
        key = line["step"], line["group_id"], line["sample_index"]
        conversations.setdefault(key, []).append(line)
    assert max(map(len, conversations.values())) == 3
    for found in conversations.values():
        assert len({line["reward"] for line in found}) == 1
        assert [line["ends_in"] for line in found[:-1]] == [found[-1]["sample_index"]] * (len(found) - 1)
        history = tokenizer.decode(found[0]["prompt_tokens"])
        for before, after in itertools.pairwise(found):
            # A turn of pluses alone is what its history begins with, so it may have gone on in its row.
            alone = [turn["author"] for turn in before["turns"]] == ["policy"]
            history = f"{history}+{before['response']}$" if alone else history
            written = tokenizer.decode(after["prompt_tokens"])
            assert written.startswith(history)  # and goes on with what the environment has said
            history = written
    assert any(line["kept"] for line in lines if "ends_in" in line)
    alone = [line for line in lines if [turn["author"] for turn in line["turns"]] == ["policy"]]
    assert len(alone) > 0.9 * len(lines)  # what was said in between is in the prompt


@pytest.mark.parametrize("how", ["die", "raise"])
def test_an_environment_that_fails_in_every_third_conversation(run: Callable[..., RlConfig], how: str) -> None:
    conversation = {"environment_options": {"dies_every": 3, "how": how}, "same_start": False}
    algorithm = {"preset": "grpo", "dynamic_sampling": False}
    folder = trained(run("run", "echo", conversation, algorithm=algorithm, scoring={"max_failure_fraction": 0.9}))
    found = step_rows(folder)
    assert len(found) == 4
    lines = rollouts(folder)
    lost = [line for line in lines if line["finish_reason"] == "failed"]
    assert 0.1 < len(lost) / len(lines) < 0.6
    assert all(line["reward"] is None and not line["kept"] and line["status"] == "error" for line in lost)
    why = "its process has ended" if how == "die" else "ValueError: no"
    assert all(why in line["status_detail"] for line in lost)
    assert any(line["kept"] for line in lines)
    for row in found:
        of_step = [line for line in lines if line["step"] == row["step"]]
        failed = sum(line["finish_reason"] == "failed" for line in of_step) / len(of_step)
        assert row["conversation/failed_fraction"] == pytest.approx(failed)
        assert row["environment/failed_fraction"] == pytest.approx(failed)
        assert row["environment/opened"] == len(of_step)
        assert row["reward/failed_fraction"] == 0  # the rewards have done nothing wrong


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("allowed", [0.1, 1.0])
def test_an_environment_that_always_fails_ends_the_run(
    run: Callable[..., RlConfig], staleness: int, allowed: float
) -> None:
    conversation = {"environment_options": {"dies_every": 1, "how": "at once"}}
    fields = {"scoring": {"max_failure_fraction": allowed}, "evaluation": {"every_steps": None}}
    config = run("run", "echo", conversation, max_staleness=staleness, **fields)
    with pytest.raises(OutageError, match=r"The first one: prompt .* ValueError: no"):
        trained(config)
    assert rows_of(config.output) == []


def test_a_tool_that_always_fails_ends_the_run(run: Callable[..., RlConfig]) -> None:
    why = r"the tool broken has failed each time, in 12 of 12 .* ConnectionError: the database is down"
    with pytest.raises(OutageError, match=why):
        trained(run("run", "broken", evaluation={"every_steps": None}))
    trained(run("other", "broken", evaluation={"every_steps": None}, scoring={"max_failure_fraction": 1.0}))


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_outage_changes_nothing_if_it_passes_and_costs_no_step_if_it_does_not(
    run: Callable[..., RlConfig], tmp_path: Path, staleness: int
) -> None:
    """Away from the second step on: for one try and a bit, or for good. The run then goes on where it was."""

    def play(name: str, until: int) -> RlConfig:
        conversation = {"environment_options": {"log": str(tmp_path / f"{name}.log"), "away": [12, until]}}
        fields = {"steps": 3, "evaluation": {"every_steps": None}, "scoring": {"retry_seconds": 2.0}}
        return run(name, "echo", conversation, max_staleness=staleness, **fields)

    undisturbed, passing, lasting = play("undisturbed", 0), play("passing", 60), play("lasting", 10**6)
    trained(undisturbed)
    trained(passing)
    untimed = [[(line["response"], line["reward"]) for line in rollouts(one.output)] for one in (undisturbed, passing)]
    assert untimed[0] == untimed[1]
    with pytest.raises(OutageError, match="the server is away"):
        trained(lasting)
    # Ahead of training, too, where the second batch is sampled before the first step.
    assert [row["step"] for row in rows_of(lasting.output)] == [1]
    assert (Path(lasting.output) / "checkpoints" / "step-000001").is_dir()
    (tmp_path / "lasting.log").write_text("." * 10**6)
    trained(lasting)
    again = [line["response"] for line in rollouts(lasting.output)]
    same = 12 if staleness else len(again)  # the second batch is then sampled with newer weights, as the run says
    assert again[:same] == [response for response, _ in untimed[0]][:same]
    assert len(again) == len(untimed[0])


def test_ppo_with_a_critic(run: Callable[..., RlConfig]) -> None:
    options = {"environment_options": {"dies_every": 5}, "same_start": False}
    scoring = {"max_failure_fraction": 0.9}
    folder = trained(run("run", "echo", options, algorithm="ppo", critic={"learning_rate": 1e-3}, scoring=scoring))
    found = step_rows(folder)
    assert len(found) == 4
    assert all("critic/explained_variance" in row for row in found)


def test_evaluation_of_the_same_run_file(run: Callable[..., RlConfig]) -> None:
    config = run("run", "echo", {"environment_options": {"dies_every": 3}})
    report = evaluate_run(config, console=QUIET)
    again = evaluate_run(config, console=QUIET)
    first, second = ({k: v for k, v in one.metrics.items() if not k.startswith("time/")} for one in (report, again))
    assert first == second
    assert report.metrics["eval/conversation/turns_mean"] >= 1
    assert report.metrics["eval/failed_fraction"] == report.metrics["eval/conversation/failed_fraction"]


def test_domains_with_and_without_conversations(run: Callable[..., RlConfig], tiny_task: Path, tmp_path: Path) -> None:
    def files(name: str) -> dict[str, Any]:
        """Of their own names, from which prompts get their ids."""
        for part in ("train", "eval"):
            (tmp_path / f"{name}-{part}.jsonl").write_text((tiny_task / f"{part}.jsonl").read_text())
        return {"share": 0.5, **{part: str(tmp_path / f"{name}-{part}.jsonl") for part in ("train", "eval")}}

    conversation = run("one", "echo").conversation
    talk = conversation.model_dump(exclude_unset=True)
    config = run(
        "two",
        conversation=None,
        data={"chat": "always"},
        domains={"game": {**files("game"), "conversation": talk}, "plain": files("plain")},
        rollout={"prompts_per_step": 4, "group_size": 2, "max_prompt_tokens": 32, "max_response_tokens": 60},
        steps=2,
    )
    lines = rollouts(trained(config))
    assert {line["domain"] for line in lines} == {"game", "plain"}
    assert all(bool(line.get("turns")) == (line["domain"] == "game") for line in lines)
