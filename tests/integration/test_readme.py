"""The README does what it says, and its translation says the same."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import burnish

REPOSITORY = Path(__file__).resolve().parents[2]
ENGLISH = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHINESE = (REPOSITORY / "README.zh.md").read_text(encoding="utf-8")

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.S | re.M)
COMMENT = re.compile(r"(?:^|(?<=\s))#(?= ).*$", flags=re.M)
OTHER_LANGUAGE = {"README.md": "README.zh.md", "README.zh.md": "README.md"}


def blocks(page: str) -> list[tuple[str, list[str]]]:
    """(language, lines) of each block of code, without comments and the spaces before them."""
    found = BLOCK.findall(page)
    return [(language, [line.rstrip() for line in COMMENT.sub("", code).splitlines()]) for language, code in found]


def prose(page: str) -> str:
    """The page without blocks of code."""
    return BLOCK.sub("", page)


def headings(page: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", prose(page), flags=re.M)]


def cells(page: str) -> list[int]:
    """The number of columns of each row of a table."""
    return [line.count("|") - 1 for line in prose(page).splitlines() if line.startswith("|")]


def images(page: str) -> list[str]:
    return re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", prose(page))


def links(page: str) -> Counter[str]:
    return Counter(re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", prose(page)))


def in_backticks(page: str) -> Counter[str]:
    return Counter(re.findall(r"`([^`\n]+)`", prose(page)))


def numbers(page: str) -> Counter[str]:
    return Counter(re.findall(r"\d+(?:\.\d+)*", prose(page)))


@pytest.mark.parametrize("part", [headings, blocks, cells, images, in_backticks, numbers])
def test_the_translation_has_the_same(part: Callable[[str], object]) -> None:
    assert part(ENGLISH), "nothing was found to compare"
    assert part(CHINESE) == part(ENGLISH)


def test_the_translation_links_to_the_same_pages_and_each_to_the_other() -> None:
    swapped = Counter({OTHER_LANGUAGE.get(target, target): count for target, count in links(CHINESE).items()})
    assert swapped == links(ENGLISH)
    assert links(ENGLISH)["README.zh.md"] == links(CHINESE)["README.md"] == 1


def test_what_links_and_images_name_exists() -> None:
    missing = [target for target in [*links(ENGLISH), *images(ENGLISH)] if not (REPOSITORY / target).exists()]
    assert not missing


def test_every_claim_names_something_to_run_that_exists() -> None:
    """The column `shown by`, and what else is named in backticks with a path; `make` targets stand in the Makefile."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ENGLISH.splitlines() if line.startswith("| ")]
    start = next(i for i, row in enumerate(rows) if row[-1] == "shown by")
    shown = {row[0]: row[-1].strip("`") for row in rows[start + 1 :]}
    assert {row[0] for row in rows[start + 1 :] if "not yet" in row[1]} == {name for name in shown if not shown[name]}
    proofs = [*filter(None, shown.values()), *re.findall(r"`(benchmarks/[^`]+)`", ENGLISH)]
    assert len(proofs) > 7
    for proof in proofs:
        path = REPOSITORY / proof.removeprefix("python ")
        assert proof.startswith("make ") or path.is_file() or (path / "__main__.py").is_file(), proof
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", ENGLISH, flags=re.M)) <= targets


def code_with(words: str) -> str:
    (code,) = [code for language, code in BLOCK.findall(ENGLISH) if language == "python" and words in code]
    return str(code)


def test_the_reward() -> None:
    given: dict[str, Callable[..., float]] = {}
    exec(code_with("def brief"), given)
    assert given["brief"]("it is 42", "42") == pytest.approx(1 - 0.008)
    assert given["brief"]("no", "42") == pytest.approx(-0.002)


@pytest.mark.slow
def test_training_from_python(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines as they are, except for a model that is there, fewer steps, and sizes for a model that never stops."""
    monkeypatch.chdir(tmp_path)
    code = code_with("burnish.train(config)")
    for written, here in (
        ("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model)),
        ('"steps": 50', '"steps": 1'),
        ("burnish.train(config)", "burnish.train(config, quiet=True, rollout=sizes)"),
    ):
        assert code.count(written) == 1
        code = code.replace(written, here)
    sizes = {"prompts_per_step": 2, "group_size": 2, "max_prompt_tokens": 8, "max_response_tokens": 4}
    given: dict[str, object] = {"sizes": sizes}
    exec(code, given)
    run = given["run"]
    assert isinstance(run, burnish.Run)
    assert run.step == 1
    assert len(run.rollouts(step=1)) == 4
    assert (tmp_path / "out" / "config.json").is_file()
