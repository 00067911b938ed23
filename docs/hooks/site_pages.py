"""What MkDocs does not do by itself: pages from outside of docs/, and links that work here and on the site.

A page is written for readers of the repository: its links are relative to its own folder. On the site a link to
another page becomes that page's address there, and a link to any other file of the repository becomes the file's
address in the public repository. A link that leads nowhere is left as it is, and `mkdocs build --strict` fails on it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BRANCH = "main"

FROM_OUTSIDE = {
    "README.md": "index.md",
    "README.zh.md": "zh.md",
    "AGENTS.md": "for_agents.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/index.md",
    "examples/cluster_ray/README.md": "examples/cluster_ray.md",
    "examples/cluster_torchrun/README.md": "examples/cluster_torchrun.md",
    "examples/custom_reward/README.md": "examples/custom_reward.md",
    "examples/gsm8k_grpo/README.md": "examples/gsm8k_grpo.md",
    "examples/rlvr_math_code/README.md": "examples/rlvr_math_code.md",
    "examples/tiny_code/README.md": "examples/tiny_code.md",
    "examples/three_domains/README.md": "examples/three_domains.md",
    "examples/calculator/README.md": "examples/calculator.md",
    "examples/guess_the_number/README.md": "examples/guess_the_number.md",
    "examples/python_tool/README.md": "examples/python_tool.md",
}
"""Files outside of docs/ that are part of the site, and where they lie there."""

ADDRESSES = {address: source for source, address in FROM_OUTSIDE.items()}

CODE = re.compile(r"^ *```.*?^ *```|(?<!`)(`+)(?!`)(?:(?!\n\n).)*?(?<!`)\1(?!`)", flags=re.S | re.M)
"""A fenced block, or code between equally many backticks in one paragraph."""


def on_config(config: MkDocsConfig) -> None:
    """The repository's address has one home, pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = project["urls"]["Repository"]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside. PluginError when one is not in `FROM_OUTSIDE`, so that none is forgotten."""
    for folder in ("", "examples/", "examples/*/"):
        for page in ROOT.glob(f"{folder}*.md"):
            if str(page.relative_to(ROOT)) not in FROM_OUTSIDE:
                raise PluginError(f"{page.relative_to(ROOT)} is not in FROM_OUTSIDE of {Path(__file__).name}")
    for source, address in FROM_OUTSIDE.items():
        files.append(File.generated(config, address, abs_src_path=str(ROOT / source)))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page, in Markdown and in HTML, but not those in code."""
    here = repository_file(page.file)

    def in_markdown(target: str) -> str:
        return site_link(target, here, page.file, config)

    def in_html(target: str) -> str:
        """MkDocs turns `x.md` into `x.html` in Markdown only, and checks nothing in HTML."""
        path, mark, anchor = site_link(target, here, page.file, config).partition("#")
        if not is_relative(path):
            return target if is_relative(target) else path + mark + anchor
        found = files.get_file_from_path(str(joined(Path(page.file.src_uri).parent, path)))
        if found is None:
            raise PluginError(f"{here.relative_to(ROOT)} links to {target}, which does not exist")
        return found.url_relative_to(page.file) + mark + anchor

    return outside_code(markdown, lambda text: rewrite_html(rewrite_markdown(text, in_markdown), in_html))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Code in a table writes a bar as `\\|`. The repository's host shows it without the backslash, MkDocs with it."""
    return re.sub(r"<td\b.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.S)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """What every page goes through at last."""
    return without_stars(output)


def on_post_template(output: str, *, template_name: str, config: MkDocsConfig) -> str:
    """The same for pages that are not made from Markdown, such as 404.html."""
    return without_stars(output)


def without_stars(output: str) -> str:
    """Without this mark the theme does not ask the repository's host for its stars each time a page is opened."""
    return output.replace(' data-md-component="source"', "")


def repository_file(file: File) -> Path:
    """Where the page lies in the repository."""
    return ROOT / ADDRESSES[file.src_uri] if file.src_uri in ADDRESSES else DOCS / file.src_uri


def site_link(target: str, here: Path, file: File, config: MkDocsConfig) -> str:
    """The target of a link for the site; `here` is the file in the repository that the link is in."""
    path, mark, anchor = target.partition("#")
    if not is_relative(path):
        return target
    there = joined(here.parent, path)
    address = site_address(there)
    if address is not None:
        return relative(address, file.src_uri) + mark + anchor
    if there.is_relative_to(ROOT) and there.exists():
        kind = "tree" if there.is_dir() else "blob"
        return f"{config.repo_url}/{kind}/{BRANCH}/{there.relative_to(ROOT)}{mark}{anchor}"
    return target


def site_address(there: Path) -> str | None:
    """Where a file of the repository lies on the site; None for what is not part of it. A folder is its README."""
    for candidate in (there, there / "README.md"):
        if candidate.is_relative_to(ROOT) and str(candidate.relative_to(ROOT)) in FROM_OUTSIDE:
            return FROM_OUTSIDE[str(candidate.relative_to(ROOT))]
    return str(there.relative_to(DOCS)) if there.is_relative_to(DOCS) and there.is_file() else None


def is_relative(path: str) -> bool:
    """Whether this is the path of a file, and not an address, an anchor or an absolute path."""
    return bool(path) and not re.match(r"[a-z]+:|/", path)


def joined(folder: Path, path: str) -> Path:
    """The path from the folder, without `..`; nothing has to exist."""
    parts: list[str] = list(folder.parts)
    for part in Path(path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return Path(*parts)


def relative(address: str, page: str) -> str:
    """The link from a page of the site to an address on it."""
    return "../" * page.count("/") + address


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a change to the text between fenced blocks and code in backticks."""
    pieces, end = [], 0
    for code in CODE.finditer(markdown):
        pieces += [change(markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, change(markdown[end:])])


def rewrite_markdown(text: str, link: Callable[[str], str]) -> str:
    return re.sub(r"(\]\()([^)\s]+)", lambda match: match[1] + link(match[2]), text)


def rewrite_html(text: str, link: Callable[[str], str]) -> str:
    return re.sub(r'((?:href|src|srcset)=")([^"\s]+)(?=")', lambda match: match[1] + link(match[2]), text)
