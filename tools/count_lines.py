"""Count code lines, without blanks, comments and docstrings: `python tools/count_lines.py [FOLDER ...]`.

Prints the lines and files of each room (first-level folder) below `src/burnish`, and of the tests.
`tests/unit/test_house.py` holds the ceilings.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def code_lines(text: str) -> int:
    """Lines of a module that hold code. A string that stands alone is a docstring, of an attribute as well."""
    documented: set[int] = set()
    in_strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
            in_strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    written = (number for number, line in enumerate(text.split("\n"), 1) if line.strip() and line.lstrip()[0] != "#")
    return len(in_strings.union(written) - documented)


def count(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Code lines and files of each first-level folder, loose files under "."."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        room = parts[0] if len(parts) > 1 else "."
        lines[room] += code_lines(path.read_text(encoding="utf-8"))
        files[room] += 1
    return lines, files


def main(folders: list[Path]) -> None:
    for folder in folders:
        lines, files = count(folder)
        print(f"{folder.relative_to(REPOSITORY)}: {lines.total():,} code lines in {files.total()} files")
        for room, number in lines.most_common():
            print(f"  {room:16} {number:6,} {files[room]:4}")


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or [REPOSITORY / "src/burnish", REPOSITORY / "tests"])
