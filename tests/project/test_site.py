"""The site has every page, its links hold, and it needs nothing from other hosts."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts import load_script

pytest.importorskip("mkdocs", reason="make check installs MkDocs")

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File

pytestmark = pytest.mark.slow  # building the site takes nine seconds; `make check` builds it too

REPOSITORY = Path(__file__).resolve().parents[2]


def build(repository: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """`make site`, into another folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(repository, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def hooks(repository: Path) -> ModuleType:
    return load_script(repository / "docs/hooks/site_pages.py")


# The built site


def test_every_page_is_on_the_site(site: Path, hooks: ModuleType, repository: Path) -> None:
    docs = repository / "docs"
    own = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    outside = {Path(address).with_suffix(".html") for address in hooks.FROM_OUTSIDE.values() if address.endswith(".md")}
    assert own | outside == {path.relative_to(site) for path in site.rglob("*.html")} - {Path("404.html")}


def test_no_page_takes_anything_from_another_host(site: Path) -> None:
    """Scripts, styles, fonts and pictures are files of the site; only links that a reader follows lead elsewhere."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        taken = re.findall(r"<(?:script|img|iframe|source|video)\b[^>]*?\bsrc(?:set)?=[\"']?([^\"' >]+)", text)
        taken += re.findall(
            r"<link\b(?![^>]*rel=[\"']?(?:canonical|prev|next|edit))[^>]*\bhref=[\"']?([^\"' >]+)", text
        )
        assert taken
        for address in taken:
            assert not re.match(r"(https?:)?//", address), f"{page.name} takes {address}"
            folder = site if address.startswith("/") else page.parent  # 404.html is shown in any folder
            assert address.startswith("data:") or (folder / address.lstrip("/").partition("?")[0]).exists(), address
        assert 'class="mermaid"' not in text, "the theme would fetch the program that draws it"
        assert 'data-md-component="source"' not in text, "the theme would ask the repository's host for its stars"


def test_the_search_knows_pages_from_everywhere(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"].partition("#")[0] for entry in entries}
    assert {
        "index.html",
        "architecture.html",
        "operations.html",
        "examples/index.html",
        "api/advantages.html",
    } <= places
    assert any("burnish.algorithms.advantages.rloo" in entry["location"] for entry in entries)
    assert (site / "search/search_index.js").is_file()  # for pages that are opened from a folder


def test_links_between_pages_inside_and_outside_of_docs(site: Path, repository: Path) -> None:
    readme = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="algorithms.html"' in readme
    assert 'href="architecture.html"' in readme
    assert 'src="images/demo.png"' in readme
    results = (site / "results.html").read_text(encoding="utf-8")
    assert re.search(r'href="https://[^"]+/blob/main/benchmarks/results/peers\.md"', results)
    extending = (site / "extending.html").read_text(encoding="utf-8")
    assert re.search(r'href="https://[^"]+/blob/main/src/burnish/rollouts/engine\.py"', extending)


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """A copy of what the site is made from, to be spoilt."""
    for folder in ("docs", "examples", "benchmarks", "src"):
        shutil.copytree(repository / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*repository.glob("*.md"), repository / "mkdocs.yml", repository / "pyproject.toml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "LICENSE").touch()
    (tmp_path / "CITATION.cff").touch()
    return tmp_path


@pytest.mark.slow
def test_broken_links_and_anchors_fail_wherever_they_are(copy: Path) -> None:
    """In pages of docs, in those from outside, to files and to headings; so does a page that no menu shows."""
    with (copy / "docs/data.md").open("a") as page:
        page.write("\n[a](../src/burnish/no_such.py) [b](rewards.md#no-such-heading)\n")
    with (copy / "ARCHITECTURE.md").open("a") as page:
        page.write("\n[c](docs/no_such_page.md) [d](CONTRIBUTING.md#nor-this-one)\n")
    (copy / "docs/forgotten.md").write_text("# Forgotten\n")
    done = build(copy, copy / "site")
    assert done.returncode != 0
    for name in ("no_such.py", "no-such-heading", "no_such_page.md", "nor-this-one", "forgotten.md"):
        assert name in done.stderr, name


def test_lists_are_lists_on_the_site(hooks: ModuleType, repository: Path) -> None:
    """Python-Markdown takes a list right below a paragraph as text, and one indented by two spaces as unindented."""
    outside = [repository / source for source in hooks.FROM_OUTSIDE if source.endswith(".md")]
    item = re.compile(r"( *)([-*+]|\d+\.) ")
    for page in (*(repository / "docs").rglob("*.md"), *outside):
        before = ""
        for line in hooks.CODE.sub("", page.read_text(encoding="utf-8")).splitlines():
            found = item.match(line)
            if found:
                assert len(found[1]) % 4 == 0, f"{page.name}: {line}"
                assert not before or item.match(before) or before.startswith("  "), f"{page.name}: {line}"
            before = line


# The hook


@pytest.mark.parametrize(
    ("page", "target", "expected"),
    [
        ("README.md", "docs/data.md#json", "data.md#json"),
        ("README.md", "ARCHITECTURE.md", "architecture.md"),
        ("README.md", "examples/", "examples/index.md"),
        ("README.md", "LICENSE", "REPO/blob/main/LICENSE"),
        ("examples/README.md", "../docs/data.md", "../data.md"),
        ("examples/README.md", "minimal_loop.py", "REPO/blob/main/examples/minimal_loop.py"),
        ("examples/README.md", "custom_reward/README.md", "../examples/custom_reward.md"),
        ("docs/speed.md", "../examples/README.md#a", "examples/index.md#a"),
        ("docs/speed.md", "../benchmarks/results/peers.md#w1", "REPO/blob/main/benchmarks/results/peers.md#w1"),
        ("docs/speed.md", "../benchmarks", "REPO/tree/main/benchmarks"),
        ("docs/speed.md", "images/demo.png", "images/demo.png"),
        ("docs/api/index.md", "../data.md", "../data.md"),
        ("docs/speed.md", "../no/such.md", "../no/such.md"),
        ("docs/speed.md", "#here", "#here"),
        ("docs/speed.md", "https://example.org/docs/data.md", "https://example.org/docs/data.md"),
        ("docs/speed.md", "mailto:a@example.org", "mailto:a@example.org"),
    ],
)
def test_where_a_link_leads_on_the_site(hooks: ModuleType, page: str, target: str, expected: str) -> None:
    config = MkDocsConfig()
    config.repo_url = "REPO"
    address = hooks.FROM_OUTSIDE.get(page, page.removeprefix("docs/"))
    file = File(address, src_dir=None, dest_dir="site", use_directory_urls=False)
    assert hooks.site_link(target, REPOSITORY / page, file, config) == expected


def test_links_in_code_are_left_alone(hooks: ModuleType) -> None:
    text = '[a](x) `[b](x)` ``[c](x) ` ``\n\n```\n[d](x)\n```\n\n<img src="x"> [e](x)'
    changed = hooks.outside_code(text, lambda piece: hooks.rewrite_markdown(piece, str.upper))
    assert changed == text.replace("[a](x)", "[a](X)").replace("[e](x)", "[e](X)")
    assert hooks.rewrite_html('<img src="x"> <a href="y">', str.upper) == '<img src="X"> <a href="Y">'
