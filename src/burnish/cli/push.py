"""`burnish push RUN user/name`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.errors import BurnishError, ConfigError

if TYPE_CHECKING:
    from burnish.board.model_card import CardFacts

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run (runs/first@500, @best).", show_default=False)]
Repository = Annotated[
    str | None, typer.Argument(metavar="[USER/NAME]", help="Repository on the hub.", show_default=False)
]
CardOnly = Annotated[Path | None, typer.Option(help="Write the model card to this file and upload nothing.")]
Public = Annotated[bool, typer.Option("--public", help="Create a public repository (default: private).")]
Update = Annotated[bool, typer.Option("--update", help="Replace the files of an existing repository.")]


def push(
    run: RunName,
    repository: Repository = None,
    card_only: CardOnly = None,
    public: Public = False,
    update: Update = False,
) -> None:
    """Upload a policy to the Hugging Face hub, with a model card.

    The card describes the run: data, rewards, curve, versions, evaluation with
    its interval, and the run file to repeat it. Read it first: it names your
    files. Log in with `hf auth login`, or set HF_TOKEN.

    [bold]Examples[/bold]
    burnish push runs/first@best --card-only card.md
    burnish push runs/first@best user/name
    burnish push runs/first@500 user/name --public
    """
    from burnish.api.run import load_run
    from burnish.board.model_card import model_card
    from burnish.observability.atomic import writing
    from burnish.observability.console import say

    console = Console()
    if (repository is None) == (card_only is None):
        raise ConfigError("one destination is needed", remedy="give either USER/NAME or --card-only FILE")
    if card_only is not None and (public or update):
        raise ConfigError("--public and --update are for an upload", remedy="leave them out, or give USER/NAME")
    policy = load_run(run).policy
    card = model_card(facts_of(run, repository or Path(run.partition("@")[0]).name))
    if card_only is not None:
        with writing(card_only), card_only.open("x", encoding="utf-8") as file:
            file.write(card)
        say(console, [f"written  {card_only}"])
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = policy.save(Path(scratch) / "model")
        (folder / "README.md").write_text(card, encoding="utf-8")
        url = upload(folder, str(repository), public=public, update=update)
    say(console, [f"pushed   {url}"])


def facts_of(run: str, name: str) -> CardFacts:
    """Gather what the card tells of a run's checkpoint."""
    from burnish.api.run import run_config
    from burnish.board.model_card import CardFacts
    from burnish.checkpointing.chaining import find_checkpoint
    from burnish.checkpointing.run import RunDirectory
    from burnish.observability.history import read_rows
    from burnish.observability.recorder import each_rollout, recorded_files

    chosen = find_checkpoint(run, field="the run")
    assert chosen is not None  # its policy was found
    folder, step = RunDirectory(chosen.run), chosen.checkpoint.step
    start = json.loads(folder.environment_file.read_text(encoding="utf-8"))["starts"][-1]
    recorded = recorded_files(folder.rollouts, evaluation=True).get(step)
    return CardFacts(
        name=name,
        config=run_config(chosen.run).config,
        step=step,
        chosen=chosen.reason,
        rows=read_rows(chosen.run / "metrics.jsonl"),
        versions={"burnish": start["burnish"], "python": start["python"], **start["packages"]},
        held_out_prompts=None if recorded is None else len({line["prompt_id"] for line in each_rollout(recorded)}),
    )


def upload(folder: Path, repository: str, *, public: bool, update: bool) -> str:
    """Create the repository and upload the folder. Returns its address. BurnishError if the hub refuses."""
    import httpx2  # what huggingface_hub asks with, whose errors it passes on
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    hub = HfApi()
    try:
        url = hub.create_repo(repository, private=not public, exist_ok=update)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by burnish push")
    except (OSError, HFValidationError, httpx2.TransportError) as error:
        raise BurnishError(
            f"cannot upload to {repository}: {' '.join(str(error).split())[:300]}",
            remedy="check the network; log in with `hf auth login`; a repository that exists already needs --update",
        ) from error
    return str(url)
