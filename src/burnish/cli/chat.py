"""`burnish chat MODEL|RUN`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from burnish.errors import BurnishError
from burnish.types import Message

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from burnish.api.policy import Policy, Response

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|RUN", help="Model folder, hub name or run (runs/first@500, @best).", show_default=False
    ),
]
Compare = Annotated[str | None, typer.Option(help="A second model or run, whose answers stand next to the first's.")]
Logprobs = Annotated[bool, typer.Option("--logprobs", help="Tint each token by its log-probability, and list it.")]
Plain = Annotated[bool, typer.Option("--plain", help="Continue the text as it is, also where there is a template.")]
System = Annotated[str | None, typer.Option(help="System message at the start of the conversation.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.", min=1)]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.", min=0.0)]
TopK = Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is off.", min=0)]
TopP = Annotated[float, typer.Option(help="Sample from the smallest set of tokens with this mass; 1 is off.")]
Seed = Annotated[int, typer.Option(help="Another seed gives other answers.", min=0)]


def chat(
    target: Target,
    compare: Compare = None,
    logprobs: Logprobs = False,
    plain: Plain = False,
    system: System = None,
    max_response_tokens: MaxTokens = 512,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
) -> None:
    """Talk to a model or to a checkpoint of a run.

    With a chat template it is a conversation, which /new begins anew; without
    one, or with --plain, each line is continued. What is piped in is one
    prompt. Ctrl-D ends.

    [bold]Examples[/bold]
    burnish chat runs/first@best
    burnish chat runs/first --compare Qwen/Qwen2.5-0.5B-Instruct
    echo "47+85=" | burnish chat runs/demo/rl --logprobs --temperature 0
    """
    from rich.console import Console

    names = [target] if compare is None else [target, compare]
    console = Console()
    sampling: Sampling = {
        "max_response_tokens": max_response_tokens,
        "temperature": temperature or 1.0,
        "greedy": temperature == 0,
        "top_k": top_k,
        "top_p": top_p,
    }
    speakers = [Speaker(policy_named(name), plain=plain, system=system) for name in names]
    for number, said in enumerate(_prompts(console)):
        if said.strip() == "/new":
            for speaker in speakers:
                speaker.begin_anew()
            continue
        answers = [speaker.answer(said, sampling, seed=seed + number) for speaker in speakers]
        console.print(side_by_side(names, answers, tinted=logprobs), soft_wrap=len(answers) == 1, highlight=False)


class Sampling(TypedDict):
    """What `Policy.generate` is told besides the prompt and the seed."""

    max_response_tokens: int
    temperature: float
    greedy: bool
    top_k: int
    top_p: float


class Speaker:
    """One model, and the conversation with it where it has a chat template."""

    def __init__(self, policy: Policy, *, plain: bool, system: str | None) -> None:
        self._policy = policy
        self._converses = not plain and policy.has_chat_template
        if system is not None and not self._converses:
            raise BurnishError("--system needs a conversation, and so a chat template", remedy="leave it out")
        self._start = () if system is None else (Message("system", system),)
        self._turns: tuple[Message, ...] = self._start

    def begin_anew(self) -> None:
        """Forget what was said."""
        self._turns = self._start

    def answer(self, said: str, sampling: Sampling, *, seed: int) -> Response:
        """Continue the conversation; without a template, the text."""
        if not self._converses:
            return self._policy.generate(said, seed=seed, **sampling)
        asked = (*self._turns, Message("user", said))
        answer = self._policy.generate(asked, seed=seed, **sampling)
        self._turns = (*asked, Message("assistant", answer.text))
        return answer


def policy_named(name: str) -> Policy:
    """The policy of a run, or the model in a folder or on the hub."""
    from burnish.api.policy import Policy
    from burnish.api.run import load_run
    from burnish.checkpointing.chaining import find_checkpoint

    return Policy(name) if find_checkpoint(name, field="the model") is None else load_run(name).policy


def side_by_side(names: list[str], answers: list[Response], *, tinted: bool) -> RenderableType:
    """One answer as it is, two in columns under the names of their models."""
    from rich.table import Table

    shown = [tinted_text(answer) if tinted else plain_text(answer) for answer in answers]
    if len(shown) == 1:
        return shown[0]
    table = Table(*names, expand=True)
    table.add_row(*shown)
    return table


def plain_text(answer: Response) -> Text:
    """The answer, never read as markup."""
    from rich.text import Text

    return Text(answer.text)


def tinted_text(answer: Response) -> Text:
    """Each token the redder the less likely it was, and below them a list of all with their log-probabilities."""
    from rich.text import Text

    from burnish.api.pictures import surprise

    text = Text()
    for token, value in zip(answer.tokens, answer.logprobs, strict=True):
        text.append(token, style=f"on rgb({int(40 + 160 * surprise(value))},40,40)")
    text.append("\n")
    for token, value in zip(answer.tokens, answer.logprobs, strict=True):
        text.append(f"{value:9.3f}  {token!r}\n", style="dim")
    return text


def _prompts(console: Console) -> Iterator[str]:
    """What is piped in, whole and without its last line break; at a terminal one line after another."""
    if not sys.stdin.isatty():
        yield sys.stdin.read().removesuffix("\n")
        return
    while True:
        try:
            said = console.input("[bold cyan]> [/]")
        except EOFError:
            console.print()
            return
        if said.strip():
            yield said
