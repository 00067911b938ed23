"""Conversations outside of training: every token as training would append it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from burnish.api.conversing import Conversing, conversing, domain_with_conversations
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.data.chat import encode_bare
from burnish.errors import ConfigError
from burnish.models.characters import character_tokenizer
from burnish.models.loading import LoadedModel, load_model
from burnish.rollouts.engine import Sampling
from burnish.types import FinishReason, Prompt, Rollout, RolloutRequest

TEMPLATE = """
{%- for tool in tools or [] -%}{{ tool.function.name }}?{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == "assistant" -%}{{ message.content }}
{%- if message.tool_calls -%}
[{%- for call in message.tool_calls -%}
{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() -%}{{ name }}={{ value | tojson }}
{%- if not loop.last %}, {% endif -%}{%- endfor -%})
{%- if not loop.last %}, {% endif -%}{%- endfor -%}]
{%- endif -%}$
{%- else -%}<{{ message.role }}:{{ message.content }}>
{%- endif -%}
{%- endfor -%}
"""
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789*+-=()[]<>:?!.,'\" \n"
SAMPLING = Sampling(max_response_tokens=100)
CALL = '[calculator(expression="6*7")]'
GAME = """
class Game:
    def reset(self, word="moon", **row):
        self.word = word
        return " A word?"

    def step(self, text):
        found = text == self.word
        return ("correct" if found else "no"), float(found), found, False, {}
"""


@pytest.fixture(scope="module")
def loaded(save_tiny_llama: Callable[..., Path]) -> LoadedModel:
    folder = save_tiny_llama(ALPHABET, hidden_size=16, context_length=256)
    tokenizer = character_tokenizer(ALPHABET, eos="$", pad="_", context_length=256, chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    return load_model(ModelConfig(path=str(folder), device="cpu"))


class Says:
    """An engine that says these texts one after the other, and remembers what it had read."""

    def __init__(self, loaded: LoadedModel, *texts: str) -> None:
        self.loaded = loaded
        self.texts = list(texts)
        self.read: list[str] = []

    def generate(self, requests: Sequence[RolloutRequest], sampling: Sampling, **_: Any) -> list[Rollout]:
        (request,) = requests
        self.read.append(str(self.loaded.tokenizer.decode(list(request.prompt_tokens))))
        text = self.texts.pop(0)
        tokens = (*encode_bare(text, self.loaded.tokenizer), self.loaded.eos_token_ids[0])
        logprobs = (-0.5,) * len(tokens)
        return [
            Rollout(request.prompt_id, 0, 0, request.prompt_tokens, tokens, logprobs, FinishReason.STOP, 0, text)
        ]  # fmt: skip

    def take_metrics(self) -> dict[str, Any]:
        return {}


def config_of(folder: Path, **conversation: Any) -> RlConfig:
    (folder / "rows.jsonl").write_text('{"prompt": "Play!", "word": "sun"}\n')
    data = {"train": str(folder / "rows.jsonl"), "chat": "always"}
    run = {"model": "m", "data": data, "rewards": "exact", "conversation": conversation}
    config = load_run_data(run, (), "rl", source="test").config
    assert isinstance(config, RlConfig)
    return config


def hold(loaded: LoadedModel, engine: Any, config: RlConfig) -> Any:
    return conversing(loaded, lambda tokens: (engine, 256), config)


@pytest.mark.slow
def test_a_message_follows_what_was_said_token_by_token(loaded: LoadedModel, tmp_path: Path) -> None:
    engine = Says(loaded, CALL, "42", "fine", "again")
    with hold(loaded, engine, config_of(tmp_path, tools="calculator")) as talk:
        answer = talk.ask("6*7", SAMPLING, seed=0)
        assert not talk.plays
        assert [turn.author for turn in answer.rollout.turns] == ["policy", "tool", "policy"]
        assert "".join(answer.texts) == f"{CALL}$<tool:42>42$"
        talk.ask("thanks", SAMPLING, seed=0)
        talk.begin_anew()
        talk.ask("hello", SAMPLING, seed=0, system="be brief")
    first = "calculator?<user:6*7>"
    assert engine.read == [
        first,
        f"{first}{CALL}$<tool:42>",
        f"{first}{CALL}$<tool:42>42$<user:thanks>",
        "calculator?<system:be brief><user:hello>",
    ]


def environment(folder: Path) -> RlConfig:
    (folder / "game.py").write_text(GAME)
    return config_of(folder, environment=f"{folder / 'game.py'}:Game", max_turns=3)


@pytest.mark.slow
def test_the_policy_plays_the_rows_of_its_data(loaded: LoadedModel, tmp_path: Path) -> None:
    engine = Says(loaded, "moon", "sun")
    with hold(loaded, engine, environment(tmp_path)) as talk:
        assert talk.plays
        (row,) = talk.rows()
        held = talk.play(row, SAMPLING, seed=0)
    assert engine.read == ["<user:Play! A word?>", "<user:Play! A word?>moon$<user:no>"]
    assert held.opening == "<user:Play! A word?>"
    assert (held.rollout.environment_reward, held.rollout.turns[-1].reward) == (1.0, 1.0)


@pytest.mark.slow
def test_a_prompt_of_ones_own_begins_a_game(loaded: LoadedModel, tmp_path: Path) -> None:
    engine = Says(loaded, "moon")
    with hold(loaded, engine, environment(tmp_path)) as talk:
        held = talk.play(Prompt("mine", text="Go."), SAMPLING, seed=0)
    assert (held.opening, held.rollout.environment_reward) == ("<user:Go. A word?>", 1.0)


def test_somebody_plays_in_the_place_of_the_policy(loaded: LoadedModel, tmp_path: Path) -> None:
    shown, typed = [], iter(["star", "sun"])

    def turn(said: str) -> str:
        shown.append(said)
        return next(typed)

    with hold(loaded, Says(loaded), environment(tmp_path)) as talk:
        held = talk.play(talk.rows()[0], SAMPLING, seed=0, typed=turn)
    # The template ends the turn that somebody has typed without its end.
    assert shown == ["<user:Play! A word?>", "$<user:no>"]
    assert held.typed
    assert held.rollout.environment_reward == 1.0
    assert held.rollout.response == "sun"


@pytest.mark.parametrize(
    ("name", "message"),
    [(None, "the run holds no conversations"), ("math", "no domain 'math' that holds conversations")],
)
def test_a_run_without_conversations_is_refused(tmp_path: Path, name: str | None, message: str) -> None:
    config = config_of(tmp_path, tools="calculator").model_copy(update={"conversation": None})
    with pytest.raises(ConfigError, match=message):
        domain_with_conversations(config, name)


def test_conversing_is_a_context(loaded: LoadedModel, tmp_path: Path) -> None:
    with hold(loaded, Says(loaded), config_of(tmp_path, tools="calculator")) as talk:
        assert isinstance(talk, Conversing)
        assert talk.max_response_tokens == 512
