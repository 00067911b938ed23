"""The package's source, parsed once for all tests that read it."""

import ast
from functools import cache
from pathlib import Path

import burnish

SOURCE = Path(burnish.__file__).parent


@cache
def parse_folder(folder: Path) -> dict[Path, ast.Module]:
    """Syntax tree of each module below a folder, by file, in the order of names."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
