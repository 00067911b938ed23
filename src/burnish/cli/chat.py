"""`burnish chat MODEL|RUN`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from burnish.cli.arguments import AnswerSeed, ModelOrRun
from burnish.errors import BurnishError
from burnish.types import FinishReason, Rollout, Turn

if TYPE_CHECKING:
    from burnish.api.conversing import Conversed
    from burnish.cli.speakers import Answer, SamplingWords

Compare = Annotated[str | None, typer.Option(help="Second model or run, whose answers are shown next to the first's.")]
Logprobs = Annotated[bool, typer.Option("--logprobs", help="Tint each token by its log-probability, and list it.")]
Plain = Annotated[bool, typer.Option("--plain", help="Continue the text as it is, even if there is a chat template.")]
System = Annotated[str | None, typer.Option(help="System message at the start of the conversation.")]
Tools = Annotated[str | None, typer.Option(help="Tools to offer, separated by commas: calculator,python,my.py:f.")]
NoTools = Annotated[bool, typer.Option("--no-tools", help="Leave out the run's tools and environment.")]
Play = Annotated[bool, typer.Option("--play", help="Play against the run's environment yourself.")]
DomainName = Annotated[str | None, typer.Option("--domain", help="Domain whose tools or environment to use.")]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", help="Longest answer, in tokens.", min=1, show_default="512, or the run's limit"),
]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 takes the most likely token.", min=0.0)]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 is off.", min=0)]
TopP = Annotated[float, typer.Option(help="Sample from the smallest set of tokens with this probability; 1 is off.")]


def chat(
    target: ModelOrRun,
    compare: Compare = None,
    logprobs: Logprobs = False,
    plain: Plain = False,
    system: System = None,
    tools: Tools = None,
    no_tools: NoTools = False,
    domain: DomainName = None,
    play: Play = False,
    max_response_tokens: MaxTokens = None,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: AnswerSeed = 0,
) -> None:
    """Talk to a model or to a checkpoint of a run.

    With a chat template this is a conversation, which /new restarts; without
    one, or with --plain, each line is continued. Piped input is a single
    prompt. Ctrl-D exits.

    A run trained with tools uses them here too. A run trained with an
    environment plays against it: an empty line plays the next row of the run's
    data, and any other line is the prompt of a game.

    [bold]Examples[/bold]
    burnish chat runs/first@best
    burnish chat runs/first --compare Qwen/Qwen2.5-0.5B-Instruct
    burnish chat Qwen/Qwen2.5-0.5B-Instruct --tools calculator
    burnish chat runs/guess --play
    echo "47+85=" | burnish chat runs/demo/rl --logprobs --temperature 0
    """

    from burnish.cli.speakers import Answering, Playing, Speaker, conversing_config, conversing_speaker, policy_named

    names = [target] if compare is None else [target, compare]
    console = Console()
    sampling: SamplingWords = {
        "temperature": temperature or 1.0,
        "greedy": temperature == 0,
        "top_k": top_k,
        "top_p": top_p,
    }
    if max_response_tokens is not None:
        sampling["max_response_tokens"] = max_response_tokens
    if tools is not None and (plain or no_tools):
        raise BurnishError(f"--tools does not go with {'--plain' if plain else '--no-tools'}", remedy="leave one out")
    configs = [None if plain or no_tools else conversing_config(name, tools) for name in names]
    if domain is not None and not any(configs):
        remedy = "leave it out" + (", or --plain and --no-tools" if plain or no_tools else "")
        raise BurnishError("--domain chooses between the tools and environments of a run's domains", remedy=remedy)
    with ExitStack() as stack:
        speakers: list[Speaker] = []
        for name, config in zip(names, configs, strict=True):
            if config is None:
                speakers.append(Answering(policy_named(name), plain=plain, system=system))
            else:
                conversing = stack.enter_context(policy_named(name).conversing(config, domain))
                speakers.append(conversing_speaker(conversing, system, partial(_typed_at, console) if play else None))
        if play and not all(isinstance(speaker, Playing) for speaker in speakers):
            raise BurnishError("--play needs a run that was trained with an environment", remedy="leave it out")
        plays = any(isinstance(speaker, Playing) for speaker in speakers)
        for number, said in enumerate(_prompts(console, blank_lines=plays)):
            if said.strip() == "/new":
                for speaker in speakers:
                    speaker.begin_anew()
                continue
            answers = [speaker.answer(said, sampling, seed=seed + number) for speaker in speakers]
            console.print(side_by_side(names, answers, tinted=logprobs), soft_wrap=len(answers) == 1, highlight=False)


def side_by_side(names: list[str], answers: list[Answer], *, tinted: bool) -> RenderableType:
    """One answer as it is, two in columns under the names of their models."""
    shown = [tinted_text(answer) if tinted else plain_text(answer) for answer in answers]
    if len(shown) == 1:
        return shown[0]
    table = Table(*names, expand=True)
    table.add_row(*shown)
    return table


def plain_text(answer: Answer) -> Text:
    """The answer, never read as markup."""

    from burnish.api.policy import Response

    return Text(answer.text) if isinstance(answer, Response) else turns_text(answer)


def turns_text(answer: Conversed, *, tinted: bool = False) -> Text:
    """A response turn by turn; calls, results and what an environment says are dim. tinted: the policy's tokens instead
    of its text."""

    rollout, text = answer.rollout, Text()
    tokens = list(zip(answer.texts, rollout.rollout_logprobs, strict=True))
    if answer.opening:
        text.append(f"{answer.opening.strip()}\n", style="dim")
    for turn in () if answer.typed else rollout.turns:
        if tinted and turn.author == "policy":
            text.append(_tinted(tokens[turn.start : turn.stop])).append("\n")
            text.append(turn_text(replace(turn, messages=turn.messages[1:])))  # the last words of an environment
        else:
            text.append(turn_text(turn))
        if turn.reward:
            text.append(f"  (reward of the turn {turn.reward:.4g})\n", style="dim")
    for line in how_it_ended(rollout):
        text.append(f"  {line}\n", style="dim")
    text.rstrip()
    return text


def turn_text(turn: Turn) -> Text:
    """Write a turn as text, a line for each message and call."""

    from burnish.api.rollouts import call_text

    text = Text()
    for message in turn.messages:
        if message.role != "assistant":
            author = "environment" if turn.author == "policy" else turn.author
            text.append(f"  {message.extra.get('name', author)}: {message.content}\n", style="dim")
            continue
        if message.content:
            text.append(f"{message.content}\n")
        for call in message.tool_calls:
            text.append(f"  {call_text(call)}\n", style="dim")
    return text


def how_it_ended(rollout: Rollout) -> Iterator[str]:
    """Yield remarks on the end of a response, if it is not simply one."""
    match rollout.finish_reason:
        case FinishReason.LENGTH:
            yield f"(cut after {rollout.num_sampled()} tokens)"
        case FinishReason.TURNS:
            yield "(out of turns)"
        case FinishReason.FAILED:
            yield f"({rollout.status_detail})"
    if rollout.environment_reward is not None:
        yield f"(the environment pays {rollout.environment_reward:.4g})"


def tinted_text(answer: Answer) -> Text:
    """Each token the redder the less likely it was, and below them a list of all with their log-probabilities."""

    from burnish.api.policy import Response

    if not isinstance(answer, Response):
        return turns_text(answer, tinted=True)
    tokens = list(zip(answer.tokens, answer.logprobs, strict=True))
    return Text("\n").join([_tinted(tokens), _listed(tokens)])


def _tinted(tokens: Sequence[tuple[str, float]]) -> Text:

    from burnish.api.pictures import surprise

    return Text.assemble(*((token, f"on rgb({int(40 + 160 * surprise(value))},40,40)") for token, value in tokens))


def _listed(tokens: Sequence[tuple[str, float]]) -> Text:
    return Text.assemble(*((f"{value:9.3f}  {token!r}\n", "dim") for token, value in tokens))


def _typed_at(console: Console, said: str) -> str:
    """Show what was said, and ask for a turn until there is one."""
    console.print(said.strip(), style="dim", markup=False, highlight=False, soft_wrap=True)
    while True:
        try:
            turn = console.input("[bold green]your turn> [/]")
        except EOFError:
            raise BurnishError("the game was left before its end", remedy="type your turns one by one") from None
        if turn.strip():
            return turn


def _prompts(console: Console, *, blank_lines: bool) -> Iterator[str]:
    """Yield the prompts: from a pipe one, whole and without its last line break; at a terminal one line after
    another."""
    if not sys.stdin.isatty():
        try:
            yield sys.stdin.read().removesuffix("\n")
        except UnicodeDecodeError as error:
            remedy = f"convert it to {error.encoding}"
            raise BurnishError(f"what is piped in is not {error.encoding} text", remedy=remedy) from error
        return
    while True:
        try:
            said = console.input("[bold cyan]> [/]")
        except EOFError:
            console.print()
            return
        if said.strip() or blank_lines:
            yield said
