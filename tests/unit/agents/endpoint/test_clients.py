"""Clients that people use, each as its pages show it, against a scripted model. Those that are not installed are
skipped; docs/serving.md has the versions that they were tried with."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from .conftest import MODEL, Room

KEY = "a-key-for-a-test"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
ROOM = Room(turns=20, turn_tokens=2_000, response_tokens=20_000, context=40_000)
Says = Callable[..., None]

pytestmark = pytest.mark.slow  # importing some of them takes seconds


class Point(BaseModel):
    x: int


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture
def url(serving: Any, start: Any) -> str:
    return f"{start(serving(room=ROOM, others='follow').desk, key=KEY).url}/v1"


@pytest.fixture
def says(script: Any) -> Says:
    """Lets the model say these texts, one in each turn, and "yes" from then on."""

    def say(*texts: str) -> None:
        turns = iter(texts)
        script.say = lambda request: next(turns, "yes")

    return say


def test_openai(url: str, says: Says) -> None:
    openai = pytest.importorskip("openai", reason="the client is not installed")
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    answer = client.chat.completions.create(model=MODEL, n=3, **ASKED)
    assert [choice.message.content for choice in answer.choices] == ["yes"] * 3
    says('{"x": 3}', '{"x": 4}')
    parsed = client.chat.completions.parse(model=MODEL, response_format=Point, **ASKED)
    assert parsed.choices[0].message.parsed == Point(x=3)
    assert client.responses.parse(model=MODEL, input="hi", text_format=Point).output_parsed == Point(x=4)
    with pytest.raises(openai.UnprocessableEntityError, match="is not JSON"):
        client.chat.completions.parse(model=MODEL, response_format=Point, **ASKED)
    with client.responses.stream(model=MODEL, input="hi") as stream:
        assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == "yes"
        assert stream.get_final_response().output_text == "yes"
    assert client.models.retrieve(MODEL).id == MODEL


def test_langchain(url: str, says: Says) -> None:
    package = pytest.importorskip("langchain_openai", reason="the client is not installed")
    given = {"model": MODEL, "base_url": url, "api_key": KEY, "max_retries": 0}
    model = package.ChatOpenAI(**given, temperature=0.5)
    assert "".join(chunk.content for chunk in model.stream("hi")) == "yes"
    for method, text in (("json_schema", '{"x": 1}'), ("json_mode", '{"x": 1}'), ("function_calling", None)):
        says(text or call("Point", '{"x": 1}'))
        assert model.with_structured_output(Point, method=method).invoke("hi") == Point(x=1)
    assert package.ChatOpenAI(**given, use_responses_api=True).invoke("hi").text == "yes"


def test_litellm(url: str, says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network
    litellm = pytest.importorskip("litellm", reason="the client is not installed")
    given = {"model": f"openai/{MODEL}", "api_base": url, "api_key": KEY}
    chunks = litellm.completion(**given, **ASKED, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "yes"
    assert litellm.responses(**given, input="hi").output[0].content[0].text == "yes"
    says("{}")
    answer = litellm.completion(**given, **ASKED, response_format={"type": "json_object"})
    assert answer.choices[0].message.content == "{}"


def test_smolagents(url: str, says: Says) -> None:
    package = pytest.importorskip("smolagents", reason="the client is not installed")
    model, tool = package.OpenAIModel(model_id=MODEL, api_base=url, api_key=KEY), package.tool(add)
    says(call("add", '{"a": 2, "b": 2}'), call("final_answer", '{"answer": "4"}'))
    assert package.ToolCallingAgent(tools=[tool], model=model, verbosity_level=0).run("2+2?") == "4"
    says("Thought: easy\n<code>\nfinal_answer(add(2, 3))\n</code>")
    assert package.CodeAgent(tools=[tool], model=model, verbosity_level=0).run("2+3?") == 5


@pytest.mark.parametrize("form", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openai_agents(url: str, says: Says, form: str) -> None:
    agents: Any = pytest.importorskip("agents", reason="the client is not installed")
    openai = pytest.importorskip("openai", reason="the client is not installed")
    agents.set_tracing_disabled(True)
    model = getattr(agents, form)(model=MODEL, openai_client=openai.AsyncOpenAI(base_url=url, api_key=KEY))
    agent = agents.Agent(name="a", instructions="Add.", model=model, tools=[agents.function_tool(add)])

    async def run() -> tuple[Any, Any]:
        says(*[call("add", '{"a": 2, "b": 2}'), "It is 4."] * 2)
        whole = await agents.Runner.run(agent, "2+2?")
        streamed = agents.Runner.run_streamed(agent, "2+2?")
        _ = [event async for event in streamed.stream_events()]
        return whole.final_output, streamed.final_output

    assert asyncio.run(run()) == ("It is 4.", "It is 4.")


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_instructor(url: str, says: Says, mode: str) -> None:
    package = pytest.importorskip("instructor", reason="the client is not installed")
    openai = pytest.importorskip("openai", reason="the client is not installed")
    client = package.from_openai(openai.OpenAI(base_url=url, api_key=KEY), mode=package.Mode[mode])
    says(call("Point", '{"x": 4}') if mode == "TOOLS" else '{"x": 4}')
    assert client.chat.completions.create(model=MODEL, response_model=Point, max_retries=1, **ASKED).x == 4


@pytest.mark.parametrize("form", ["OpenAIChatModel", "OpenAIResponsesModel"])
def test_pydantic_ai(url: str, says: Says, form: str) -> None:
    package: Any = pytest.importorskip("pydantic_ai", reason="the client is not installed")
    models: Any = pytest.importorskip("pydantic_ai.models.openai", reason="the client is not installed")
    providers: Any = pytest.importorskip("pydantic_ai.providers.openai", reason="the client is not installed")
    model = getattr(models, form)(MODEL, provider=providers.OpenAIProvider(base_url=url, api_key=KEY))
    assert package.Agent(model).run_sync("hi").output == "yes"
    says(call("final_result", '{"x": 4}'))
    assert package.Agent(model, output_type=Point).run_sync("hi").output == Point(x=4)


def test_llama_index(url: str) -> None:
    package: Any = pytest.importorskip("llama_index.llms.openai_like", reason="the client is not installed")
    given = {"model": MODEL, "api_base": url, "api_key": KEY, "max_retries": 0}
    assert package.OpenAILike(**given).complete("hi").text == "yes"
    assert package.OpenAILike(**given, is_chat_model=True).complete("hi").text == "yes"


def test_dspy(url: str, says: Says, script: Any) -> None:
    dspy = pytest.importorskip("dspy", reason="the client is not installed")
    script.end = ""  # its form has brackets, which are the end of a turn here
    says("[[ ## answer ## ]]\n4\n\n[[ ## completed ## ]]")
    model = dspy.LM(f"openai/{MODEL}", api_base=url, api_key=KEY, cache=False, num_retries=0)
    with dspy.context(lm=model):
        assert dspy.Predict("question -> answer")(question="2+2?").answer == "4"
