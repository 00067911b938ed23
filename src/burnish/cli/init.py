"""`burnish init [FOLDER]`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from burnish.errors import BurnishError, ConfigError, DataError, suggestion

if TYPE_CHECKING:
    from burnish.config.schema_data import DataSource
    from burnish.types import Json

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder for the files.")]
Data = Annotated[str | None, typer.Option(help="File, folder or hub name of the rows to train on.")]
HeldOut = Annotated[str | None, typer.Option("--eval", help="File, folder or hub name of the held-out rows.")]
Column = Annotated[list[str] | None, typer.Option(help="ROLE=COLUMN, such as prompt=Question; may be repeated.")]
Reward = Annotated[str | None, typer.Option(help="own (a function in reward.py), or the name of a built-in.")]
Model = Annotated[str | None, typer.Option(help="Model folder or hub name.")]

_ANOTHER = "name another folder: burnish init FOLDER"
FILES = ("run.yaml", "reward.py", "README.md")
OWN = "own"
_CONVERSING = ("instruct", "chat", "-it")
"""Parts of the names of models whose chat template belongs around plain prompts, too (data.chat)."""
SMALL_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"

_COMMANDS = (
    ("check {file}", "do the gold answers reach the top reward?"),
    ("plan {file}", "what will the run do, and does it fit into memory?"),
    ("rl {file}", "train; Ctrl-C saves, the same command continues"),
    ("report {output}", "curves and responses on one page"),
    ("chat {output}", "talk to the model"),
)

_SETTINGS = """\
algorithm: grpo            # `burnish algorithms` lists them all
steps: 100
rollout:
  prompts_per_step: 16     # a step has 16 prompts x 8 responses
  group_size: 8
  max_response_tokens: 256
optimization:
  learning_rate: 1e-6
checkpoint:
  every_steps: 10          # when held-out data are measured, too
"""

_COMPARING = '''\
"""The reward of run.yaml."""


def reward(response: str, answer: str) -> float:
    """Return the score of a response: 1 if it is the row's answer, else 0. Replace this rule by your own.

    A parameter gets what its name says: response, prompt, or one of the data: {columns}.
    """
    return float(response.strip() == str(answer).strip())
'''

_ALONE = '''\
"""The reward of run.yaml."""


def reward(response: str) -> float:
    """Return the score of a response: the closer to 50 words, the higher. Replace this rule by your own.

    A parameter gets what its name says: response, prompt, or one of the data: {columns}.
    """
    return 1.0 - min(1.0, abs(len(response.split()) - 50) / 50)
'''

_README = """\
# A run of Burnish

`run.yaml` has the settings of the run{reward_file}. The run writes into `{output}`.

```bash
{commands}```

Start the commands where `burnish init` was started: the paths in `run.yaml` begin there.
"""


def init(
    folder: Folder = Path(),
    data: Data = None,
    held_out: HeldOut = None,
    column: Column = None,
    reward: Reward = None,
    model: Model = None,
) -> None:
    """Write the files of a first run: run.yaml, reward.py and a README.

    It asks three questions: about the data, the reward and the model. An option
    answers its question in advance, so a script is asked nothing. The data are
    read as a run would read them. No file is ever overwritten.

    [bold]Examples[/bold]
    burnish init
    burnish init first --data questions.csv --column=prompt=Question
    burnish init first --data openai/gsm8k --reward math --model models/qwen
    """
    from burnish.config.loading import load_run_data
    from burnish.config.schema_data import DataSource
    from burnish.config.yaml_text import parse_yaml
    from burnish.data.prompts import read_prompts
    from burnish.observability.console import say
    from burnish.rewards import BUILT_INS

    console = Console()
    _refuse_existing(folder)
    path = _asked(data, "--data", "Rows to train on (a file, a folder or a hub name)")
    columns = dict(map(_role, column or ()))
    sources = [DataSource(path=one, columns=columns) for one in (path, held_out) if one is not None]
    try:
        found = [read_prompts([source]) for source in sources]
    except DataError as error:
        raise DataError(error.message, remedy=f"{error.remedy}; here: --column=prompt=COLUMN") from error
    say(console, [line for _, (understanding,) in found for line in understanding.lines()])
    first = found[0][0][0]
    chosen = _asked(reward, "--reward", f"Reward ({OWN}: a function in reward.py; or one of burnish check --list)", OWN)
    if ":" not in chosen and chosen not in (OWN, *BUILT_INS):
        raise ConfigError(f"there is no built-in reward {chosen!r}", remedy=suggestion(chosen, (OWN, *BUILT_INS)))
    files = files_of(
        folder,
        sources,
        reward=chosen,
        model=_asked(model, "--model", "Model (a folder or a hub name)", SMALL_MODEL),
        columns=list(first.columns) if first.answer is None else ["answer", *first.columns],
    )
    load_run_data(cast("dict[str, Json]", parse_yaml(files["run.yaml"]).data), source=str(folder / "run.yaml"))
    _write(folder, files)
    say(console, [f"written  {folder / name}" for name in files])
    say(console, [f"next     burnish check {shlex.quote(str(folder / 'run.yaml'))}"])


def files_of(
    folder: Path, sources: Sequence[DataSource], *, reward: str, model: str, columns: Sequence[str]
) -> dict[str, str]:
    """Write the text of each file of a run. sources: the training data, and perhaps the held-out data. columns: names
    that a reward can ask for; `answer` only if there is one."""
    from burnish.config.yaml_text import dump_yaml

    own = reward == OWN
    output = folder / "run"
    lines = [(f"burnish {words}".format(file=folder / "run.yaml", output=output), why) for words, why in _COMMANDS]
    width = max(len(command) for command, _ in lines)
    commands = "".join(f"{command:<{width}}  # {why}\n" for command, why in lines)
    data: dict[str, Json] = {}
    for split, source in zip(("train", "eval"), sources, strict=False):
        data[split] = {"path": source.path, "columns": dict(source.columns)} if source.columns else source.path
    data["chat"] = "always" if any(word in model.lower() for word in _CONVERSING) else "auto"
    top = {"output": str(output), "model": model, "data": data}
    rewards = {"rewards": f"{folder / 'reward.py'}:reward" if own else reward}
    files = {"run.yaml": f"{indent(commands, '# ')}{dump_yaml(top)}{dump_yaml(rewards)}{_SETTINGS}"}
    if own:
        text = _COMPARING if "answer" in columns else _ALONE
        files["reward.py"] = text.format(columns=", ".join(columns) or "there is none")
    reward_file = ", `reward.py` the function that scores a response" if own else ""
    files["README.md"] = _README.format(reward_file=reward_file, output=output, commands=commands)
    return files


def _asked(given: str | None, option: str, question: str, default: str | None = None) -> str:
    """Return the given answer, or ask for one. ConfigError if there is nobody to ask."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is not given, and the input is not a terminal", remedy=f"add {option}")
    return str(typer.prompt(question, default=default))


def _role(word: str) -> tuple[str, str]:
    role, equals, column = word.partition("=")
    if not (role and equals and column):
        raise ConfigError(f"--column is {word!r}", remedy="write ROLE=COLUMN, as prompt=Question")
    return role, column


def _refuse_existing(folder: Path) -> None:
    for name in FILES:
        if os.path.lexists(folder / name):
            raise ConfigError(f"{folder / name} exists already", remedy=_ANOTHER)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise BurnishError(f"{folder} cannot be written: {error.strerror}", remedy=_ANOTHER) from error
