"""`burnish serve MODEL|RUN`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from burnish.cli.arguments import AnswerSeed, Host, ModelOrRun, Port, secret_in
from burnish.errors import ConfigError, RolloutError

if TYPE_CHECKING:
    from burnish.agents.endpoint.requests import Others
    from burnish.agents.endpoint.serving import ServedModel
    from burnish.api.policy import Policy
    from burnish.rollouts.engine import Sampling

_MOST_TURNS = 1_000
"""Of one trajectory."""
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds the API key, of 16 characters or more.")
]
Name = Annotated[str, typer.Option(help="Name of the model for clients.")]
Record = Annotated[str | None, typer.Option(help="File to append trajectories to, one row per line of JSON.")]
Settings = Annotated[
    Literal["follow", "refuse", "ignore"],
    typer.Option(help="Follow, refuse or ignore requests for sampling settings other than the ones below."),
]
Context = Annotated[int | None, typer.Option(help="Most tokens of prompt and answer (default: the model's).", min=2)]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest turn, in tokens.", min=1)]
Rows = Annotated[int, typer.Option(help="Turns to sample at the same time.", min=1)]
Temperature = Annotated[float, typer.Option(help="Default temperature; 0 takes the most likely token.", min=0.0)]
Parser = Annotated[str, typer.Option(help="Format of the model's tool calls; see conversation.parser.")]


def serve(
    target: ModelOrRun,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    key_variable: KeyVariable = None,
    name: Name = "policy",
    record: Record = None,
    settings: Settings = "follow",
    context: Context = None,
    max_tokens: MaxTokens = 2_048,
    rows: Rows = 32,
    temperature: Temperature = 1.0,
    parser: Parser = "auto",
    seed: AnswerSeed = 0,
) -> None:
    """Serve a model or a checkpoint of a run to OpenAI clients.

    Serves chat completions, completions, and tokens in and out with their
    log-probabilities. Requests under /t/NAME/v1, with any name, are recorded as
    one trajectory; POST /t/NAME/reward ends it. Ctrl-C stops the server.

    [bold]Examples[/bold]
    burnish serve runs/first@best
    burnish serve Qwen/Qwen2.5-0.5B-Instruct --record rollouts.jsonl
    """

    from burnish.agents.endpoint.server import ServerThread, Service, check_address
    from burnish.agents.endpoint.serving import StandingLoop
    from burnish.cli.speakers import policy_named
    from burnish.outside.listening import listening
    from burnish.rollouts.engine import Sampling

    key = secret_in(key_variable)
    check_address(host, key)  # before the model is loaded
    sampling = Sampling(max_tokens, temperature=temperature or 1.0, greedy=temperature == 0)
    console = Console()
    with ExitStack() as stack:
        listener = stack.enter_context(listening(host, port))  # a port that is taken is said before the model is loaded
        file = None if record is None else stack.enter_context(_appending(record))
        standing = _standing(
            policy_named(target), sampling, name, others=settings, context=context, rows=rows, parser=parser, seed=seed
        )
        loop = StandingLoop(standing, file)
        server = ServerThread(loop.desk, Service(key=key), host=host, listener=listener)
        stack.callback(server.close)
        console.print(f"{server.url}/v1  (model {name})", highlight=False, markup=False)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that what is open is recorded
        with suppress(KeyboardInterrupt):
            loop.run()


def _standing(
    policy: Policy,
    sampling: Sampling,
    name: str,
    *,
    others: Others,
    context: int | None,
    rows: int,
    parser: str,
    seed: int,
) -> ServedModel:
    """Load the policy, ready to answer. ModelError or RolloutError if it cannot be sampled from, or has no such
    context. others: whether clients choose sampling settings."""
    from burnish.agents.endpoint.chat_tokens import Speech
    from burnish.agents.endpoint.serving import ServedModel
    from burnish.agents.endpoint.trajectory import Room
    from burnish.models.reference import PromptScorer
    from burnish.rollouts.registry import engine_of

    loaded = policy.loaded()
    context = context or loaded.context_length
    if context > loaded.context_length:
        raise RolloutError(
            f"the model has a context of {loaded.context_length:,} tokens, but {context:,} are requested",
            remedy="lower --context, or leave it out",
        )
    engine = engine_of(loaded, context_length=context, max_batch_rows=rows)
    ends = (*loaded.eos_token_ids, *sampling.stop_token_ids)
    speech = Speech.of(loaded.tokenizer, ends, policy.template_options, parser=parser)
    room = Room(_MOST_TURNS, min(sampling.max_response_tokens, context), context, context)
    terms = replace(speech.terms(sampling, name, context, others), scores_prompts=True)
    return ServedModel(engine, speech, terms, room, seed=seed, score=PromptScorer(loaded, context))


@contextmanager
def _appending(path: str) -> Iterator[Callable[[str], object]]:
    """Provide a writer of lines to the end of a file, each at once. ConfigError if that is not possible."""
    try:
        file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error.strerror}", remedy="name another file") from error
    with file:
        yield file.write
