"""What the pages say is what the code does: numbers, links, commands, fields, metrics and tables."""

import ast
import doctest
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import burnish
from burnish.cli.app import build_app
from burnish.config import fields
from burnish.config.fields import annotation_at
from burnish.config.kinds import all_kinds
from burnish.observability.metric_names import find_metric

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(
    page.relative_to(REPOSITORY)
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    for page in REPOSITORY.glob(pattern)
    if page.name != "CHANGELOG.md"  # tells of earlier versions too
)
KINDS = {kind.name: kind.section for kind in all_kinds()}

every_page = pytest.mark.parametrize("page", PAGES, ids=str)


def text_of(page: Path) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks_of(text: str, *languages: str) -> list[str]:
    """Fenced blocks in one of the languages."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M)
    return [block for language, block in fenced if language in languages]


def words_of(text: str) -> list[str]:
    """What stands in backticks outside fenced blocks, without line breaks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return [" ".join(word.split()) for word in re.findall(r"`([^`]+)`", prose)]


@pytest.mark.parametrize("page", ["ppo.md"])
def test_the_examples_of_a_page(page: str) -> None:
    result = doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 20
    assert result.failed == 0


@pytest.mark.slow
def test_the_gold_check_from_python(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "#### 2"}\n{"prompt": "1+2=", "answer": "3"}\n')
    code = next(block for block in blocks_of((DOCS / "rewards.md").read_text(), "python") if "check_gold" in block)
    names: dict[str, Any] = {}
    exec(code.replace("train.jsonl", str(data)), names)
    assert (names["report"].checked, names["report"].failures) == (2, ())


# Links and files


RUN_FILE_OR_FIELDS = ("train", "sft", "distill", "reward_model", "plan")
"""Functions whose first argument, if it is a text, is the path of a run file."""


@every_page
def test_every_call_in_python_has_arguments_that_exist(page: Path) -> None:
    blocks = [block for block in blocks_of(text_of(page), "python") if not block.startswith(">>>")]  # those are run
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if not (isinstance(node, ast.Call) and re.fullmatch(r"burnish(\.\w+)+", ast.unparse(node.func))):
                continue
            if any(isinstance(one, ast.Starred) for one in node.args) or not all(one.arg for one in node.keywords):
                continue  # how many there are is not in the text
            called: Any = burnish
            for name in ast.unparse(node.func).split(".")[1:]:
                called = getattr(called, name)
            inspect.signature(called).bind(*node.args, **{str(one.arg): one.value for one in node.keywords})
            first = node.args[0] if node.args else None
            if called.__name__ in RUN_FILE_OR_FIELDS and isinstance(first, ast.Constant):
                assert str(first.value).endswith((".yaml", ".yml")), f"{page}: {ast.unparse(node)}"


def test_every_extra_is_in_the_table() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    table = (DOCS / "install.md").read_text(encoding="utf-8").partition("| extra |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall(r"`([\w-]+)`", row)) == sorted(declared)


def anchors_of(page: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    heads = re.findall(r"^#+ (.*)$", prose, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = REPOSITORY / page.parent / name if name else REPOSITORY / page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@cache
def files() -> frozenset[str]:
    folders = ("src", "tests", "benchmarks", "examples", "docs")
    return frozenset(
        f"/{path.relative_to(REPOSITORY)}" for folder in folders for path in (REPOSITORY / folder).rglob("*")
    )


@every_page
def test_every_file_of_the_project_that_is_named_exists(page: Path) -> None:
    rooms = {folder.name for folder in (*(REPOSITORY / "src/burnish").iterdir(), *(REPOSITORY / "tests").iterdir())}
    places = rooms | {"src", "tests", "benchmarks", "examples", "docs", "integration", "unit"}
    for word in words_of(text_of(page)):
        if not re.fullmatch(r"[\w./-]+", word) or word.split("/")[0] not in places or "/" not in word.rstrip("/"):
            continue
        if (REPOSITORY / page).parent.name == "docs" and word.startswith(("eval/", "rollouts/step", "rollouts/eval")):
            continue  # files of a run
        ends = (word.rstrip("/"), f"{word}.py")
        assert any(name.endswith(f"/{end}") for name in files() for end in ends), word


# Commands


def command_lines(text: str) -> Iterator[str]:
    """Every `burnish ...` in shell blocks and in backticks, with continued lines joined."""
    for block in blocks_of(text, "bash", "shell", "sh", ""):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = line.removeprefix("$ ").strip()
            if re.match(r"(\w+=\S+ )*burnish ", command):
                yield command
    yield from (word for word in words_of(text) if word.startswith("burnish "))


def check_command(command: str, interface: Any) -> None:
    """The command exists, and so do its options and the fields that it sets."""
    plain = re.split(r"\s{2,}|\s#\s|\s\|\s|\\\|", command)[0]
    words = [word for word in shlex.split(plain.replace("...", "")) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    words = words[words.index("burnish") + 1 :]
    given = [word.partition("=")[0] for word in words if word.startswith("-")]
    at_top = {option for param in interface.params for option in param.opts}
    if not words or set(words) <= at_top or words[0].isupper():
        return
    assert words[0] in interface.commands, command
    sub = interface.commands[words[0]]
    sub = getattr(sub, "commands", {}).get(words[1] if len(words) > 1 else "", sub)  # `burnish sandbox serve`
    known = {option for param in sub.params for option in param.opts} | {"--help"}
    assert set(given) <= known | at_top, command
    kinds = [KINDS[words[0]]] if words[0] in KINDS else list(KINDS.values())
    for key in (word.partition("=")[0] for word in words if "=" in word and not word.startswith("-")):
        assert any(field_exists(kind, key) for kind in kinds), command


def field_exists(kind: type, path: str) -> bool:
    """A field of the run file, or a key inside of one that holds options."""
    if annotation_at(kind, path) is not None:
        return True
    above = [path.rsplit(".", count)[0] for count in range(1, path.count(".") + 1)]
    return any("dict" in str(annotation_at(kind, parent)) for parent in above)


@pytest.fixture(scope="module")
def interface() -> Any:
    return typer.main.get_command(build_app())


@every_page
def test_every_command_line_is_understood(page: Path, interface: Any) -> None:
    for command in command_lines(text_of(page)):
        check_command(command, interface)


def test_every_command_line_in_the_help_is_understood(interface: Any) -> None:
    texts = [interface.help, *(command.help.partition("Examples")[2] for command in interface.commands.values())]
    lines = [line.strip() for text in texts for line in re.sub(r"\[/?bold\]", "", text).splitlines()]
    commands = [line for line in lines if line.startswith("burnish ")]
    assert len(commands) > 20
    for command in commands:
        check_command(command, interface)


def test_no_line_of_the_help_is_broken_by_a_terminal_of_80_columns(interface: Any) -> None:
    for command in (interface, *interface.commands.values()):
        after_summary = re.sub(r"\[/?bold\]", "", command.help).splitlines()[1:]
        assert not [line for line in after_summary if len(line) > 78]


OPTIONS_OF_RAY = {"--port", "--address", "--working-dir", "--object-store-memory"}
OPTIONS_OF_TORCHRUN = {
    "--standalone",
    "--nnodes",
    "--nproc-per-node",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--max-restarts",
}


@every_page
def test_every_option_that_is_named_exists(page: Path, interface: Any) -> None:
    below = [inner for command in interface.commands.values() for inner in getattr(command, "commands", {}).values()]
    commands = (interface, *interface.commands.values(), *below)
    known = {option for command in commands for p in command.params for option in p.opts}
    scripts = "".join(path.read_text(encoding="utf-8") for path in REPOSITORY.glob("benchmarks/**/*.py"))
    scripts += "".join(path.read_text(encoding="utf-8") for path in REPOSITORY.glob("examples/**/*.py"))
    for word in words_of(text_of(page)):
        for option in re.findall(r"^--[a-z-]+", word):
            assert option in known | OPTIONS_OF_RAY | OPTIONS_OF_TORCHRUN or f'"{option}"' in scripts, option


# Fields


def sections() -> set[str]:
    return {
        name
        for kind in KINDS.values()
        for name, annotation in fields.field_annotations(kind).items()
        if fields.inner_section(annotation)[0] is not None
    }


@every_page
def test_every_field_that_is_named_exists(page: Path) -> None:
    for word in words_of(text_of(page)):
        name = re.match(rf"({'|'.join(sections())})((\.[a-z_0-9]+)+)(?=$|:|=)", word)
        if name and not re.search(r"\.(py|yaml|jsonl|json|md|html)$", name[0]):
            assert any(field_exists(kind, name[0]) for kind in KINDS.values()), word


@every_page
def test_every_run_file_has_fields_that_exist(page: Path) -> None:
    for block in blocks_of(text_of(page), "yaml"):
        data = yaml.safe_load(block)
        kinds = [kind for kind in KINDS.values() if set(data) <= set(kind.model_fields)]
        assert kinds, block
        for path in leaf_paths(data):
            assert any(field_exists(kind, path) for kind in kinds), f"{path} in\n{block}"


def leaf_paths(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all keys, as on the command line; what stands inside of options is left alone."""
    for key, value in data.items():
        path = f"{prefix}{key}"
        yield path
        shorthand = {"train": "path", "eval": "path", "rewards": "name"}.get(key)
        items = value if isinstance(value, list) else [value]
        for index, item in enumerate(items):
            if isinstance(item, dict) and not key.endswith("options") and key not in ("columns", "tools"):
                yield from leaf_paths(item, f"{path}.{index}." if shorthand else f"{path}.")


# Metrics


GROUPS = "reward|groups|advantage|policy|critic|kl|rollout|time|throughput|eval|train|rm"


@pytest.mark.slow_cases("CONTRIBUTING.md", "docs/algorithms.md", "docs/cluster.md")
@every_page
def test_every_metric_that_is_named_is_written(page: Path) -> None:
    own = set(
        re.findall(r"\w+", "".join(blocks_of(text_of(page), "python")))
    )  # parts and metrics of the page's own code
    for file in (REPOSITORY / page).parent.glob("*.py"):
        own |= set(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    for word in words_of(text_of(page)):
        if re.fullmatch(rf"({GROUPS})/[\w/@]+", word) and not re.search(r"\d{3}|NNN|@", word):
            assert find_metric(word) is not None or word.rpartition("/")[2] in own, word
