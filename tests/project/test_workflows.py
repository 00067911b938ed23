"""What workflows, forms, hooks and container files name exists."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
ACTIONS = sorted(GITHUB.glob("actions/*/action.yml"))
FORMS = sorted(set(GITHUB.glob("ISSUE_TEMPLATE/*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"})
STAMP = ".venv/.for-checks"
DOCKERFILES = sorted(REPOSITORY.glob("docker/Dockerfile.*"))

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
every_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps_of(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow or a composite action."""
    data = load(path)
    jobs = data["jobs"].values() if "jobs" in data else [data["runs"]]
    return [step for job in jobs for step in job["steps"]]


def make_targets() -> set[str]:
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):(?!=)", text, flags=re.M)) | {STAMP}


def made(text: str) -> set[str]:
    """Targets of the `make ...` commands in a text."""
    return set(re.findall(r"\bmake ([a-z./-]+)", text))


# Workflows


def test_there_is_something_to_test() -> None:
    assert {path.name for path in WORKFLOWS} == {"checks.yml", "nightly.yml"}
    assert len(ACTIONS) == 1
    assert len(FORMS) == 3
    assert len(DOCKERFILES) == 2


@pytest.mark.parametrize("path", WORKFLOWS + ACTIONS, ids=lambda path: str(path.relative_to(GITHUB)))
def test_commands_and_files_of_a_workflow_exist(path: Path) -> None:
    for step in steps_of(path):
        command = step.get("run", "")
        assert made(command) <= make_targets(), command
        for word in re.findall(r"(?:tests|src|docs|benchmarks|examples)/[\w./-]+", command):
            assert (REPOSITORY / word).exists(), word
        uses = step.get("uses", "")
        if uses.startswith("./"):
            assert (REPOSITORY / uses / "action.yml").is_file(), uses
            assert set(step.get("with", {})) <= set(load(REPOSITORY / uses / "action.yml")["inputs"])
        else:
            assert not uses or re.fullmatch(r"actions/[\w-]+@v\d+", uses), uses
        lock = step.get("with", {}).get("cache-dependency-path")
        assert lock is None or (REPOSITORY / lock).is_file()


@every_workflow
def test_a_workflow_may_only_read_and_ends(path: Path) -> None:
    data = load(path)
    assert data["permissions"] == {"contents": "read"}
    for name, job in data["jobs"].items():
        assert job["timeout-minutes"] <= 300, name
        assert job["runs-on"] != "ubuntu-latest", f"{name}: an image that changes by itself"


def test_every_check_of_the_makefile_runs_somewhere() -> None:
    ran = {target for path in WORKFLOWS for step in steps_of(path) for target in made(step.get("run", ""))}
    assert {"lint", "site", "test", "test-limits", "test-slow", "test-plain-cpu", "wheel"} <= ran


def test_artifacts_are_what_the_targets_leave() -> None:
    """`make site` and `make wheel` write where the workflow looks."""
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    paths = {
        step["with"]["path"] for step in steps_of(GITHUB / "workflows/checks.yml") if "upload" in str(step.get("uses"))
    }
    assert paths == {"build/site", "dist/*.whl"}
    assert "--wheel-dir dist" in text
    assert "site_dir: build/site" in (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")


def test_dependabot_looks_where_actions_are_named() -> None:
    [update] = load(GITHUB / "dependabot.yml")["updates"]
    assert update["package-ecosystem"] == "github-actions"
    assert set(update["directories"]) == {"/", *(f"/{path.parent.relative_to(REPOSITORY)}" for path in ACTIONS)}


# Forms


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_can_be_shown(path: Path) -> None:
    """What GitHub asks of an issue form: top keys, kinds of fields, an id and a label for each to fill in."""
    form = load(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "labels", "body", "title"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


@pytest.mark.parametrize(
    "name", [".github/PULL_REQUEST_TEMPLATE.md", "CONTRIBUTING.md", "docs/releases.md", "docs/install.md"]
)
def test_the_commands_that_contributors_are_told_exist(name: str) -> None:
    told = {
        word
        for text in re.findall(r"`+([^`]+)`+", (REPOSITORY / name).read_text(encoding="utf-8"))
        for word in made(text)
    }
    assert told
    assert told <= make_targets()


# Hooks


def test_the_hooks_run_ruff_as_make_lint_does_and_check_the_subject() -> None:
    """The same program of the same environment, and nothing that a commit has to wait for."""
    config = REPOSITORY / ".pre-commit-config.yaml"
    [local] = load(config)["repos"]
    assert local["repo"] == "local"
    entries = {hook["entry"].removesuffix(" --force-exclude") for hook in local["hooks"]}
    assert entries == {".venv/bin/ruff check", ".venv/bin/ruff format", "tools/check_subject.sh"}
    lint = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("$(BIN)", ".venv/bin")
    assert all(f"\t{entry} " in lint for entry in entries - {"tools/check_subject.sh"})
    assert set(load(config)["default_install_hook_types"]) == {"pre-commit", "commit-msg"}


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("Read YAML with ruamel.yaml\n\nLines and columns come with it.\n", 0),
        ("é" * 72 + "\n# a comment of the editor\n", 0),
        ("x" * 73 + "\n", 1),
        ("Subject\nwithout an empty line\n", 1),
    ],
)
def test_the_hook_measures_a_subject(tmp_path: Path, message: str, status: int) -> None:
    (tmp_path / "message").write_text(message, encoding="utf-8")
    done = subprocess.run([REPOSITORY / "tools/check_subject.sh", tmp_path / "message"], capture_output=True, text=True)
    assert done.returncode == status, done.stderr


# Makefile


def test_help_lists_every_command() -> None:
    done = subprocess.run(["make", "--no-print-directory"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make ([a-z-]+) {2,}\S", done.stdout, flags=re.M))
    assert listed == make_targets() - {STAMP}


# Containers


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


@every_dockerfile
def test_what_an_image_copies_is_there_and_sent(path: Path) -> None:
    sent = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for name, rest in instructions(path) if name == "COPY" for source in rest.split()[:-1]}
    assert copied == sent
    assert all((REPOSITORY / source).exists() for source in copied)


@every_dockerfile
def test_an_image_is_pinned_and_runs_without_rights(path: Path) -> None:
    lines = list(instructions(path))
    installs = [rest for name, rest in lines if name == "RUN" and "uv pip install" in rest]
    assert len(installs) == 2
    assert all("--constraints /tmp/burnish/constraints.txt" in rest for rest in installs)
    assert re.search(r" torch$", installs[0])
    last = [name for name, _ in lines if name in ("RUN", "USER", "COPY")][-1]
    assert last == "USER"
    assert dict(lines)["USER"] == "burnish"
    assert dict(lines)["ENTRYPOINT"] == '["burnish"]'


def test_the_image_that_nobody_has_tried_says_so() -> None:
    assert (REPOSITORY / "docker/Dockerfile.cuda").read_text().startswith("# NEVER BUILT AND NEVER RUN")
