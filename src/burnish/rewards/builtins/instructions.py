"""Checks of the verifiable instructions of a row (IFEval, https://arxiv.org/abs/2311.07911)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from burnish.rewards.builtins.instruction_checks import instruction_named
from burnish.rewards.builtins.reading_rows import NoScoreError, after_thoughts, parsed
from burnish.types import Score


class Instructions:
    """1 if the response follows all instructions of its row, else 0; `score: fraction` gives the share that it follows.
    None (missing) for a row without the columns of IFEval, `instruction_id_list` and `kwargs`.

    mode: `strict` reads the response as it is after its thoughts. `loose` also accepts it without asterisks, without
    its first or last line and without both, as IFEval does for remarks such as "Sure, here it is:".

    Parts: `strict` and `loose` (1 if all are followed), `strict_fraction` and `loose_fraction` (the share), and the
    share of each family in the row, such as `keywords`, in the chosen mode.
    """

    def __init__(
        self,
        mode: Annotated[
            Literal["strict", "loose"],
            "strict (default), or loose: also without asterisks and without the first or last line",
        ] = "strict",
        score: Annotated[
            Literal["all", "fraction"], "all (default), or fraction: the share of the instructions that it follows"
        ] = "all",
    ) -> None:
        self._mode, self._score = mode, score

    def __call__(self, response: str, instruction_id_list: Any = None, kwargs: Any = None) -> Score | None:
        names = parsed(instruction_id_list, "instruction_id_list")
        if not names:
            return None
        checks = _checks(names, parsed(kwargs, "kwargs"))
        texts = variants(after_thoughts(response))
        strict = [_follows(check, texts[:1]) for check in checks]
        loose = [done or _follows(check, texts[1:]) for done, check in zip(strict, checks, strict=True)]
        parts = {
            "strict": float(all(strict)),
            "loose": float(all(loose)),
            "strict_fraction": _share(strict),
            "loose_fraction": _share(loose),
        }
        followed = strict if self._mode == "strict" else loose
        families = [name.partition(":")[0] for name in names]
        for family in dict.fromkeys(families):
            parts[family] = _share([done for name, done in zip(families, followed, strict=True) if name == family])
        return Score(parts[self._mode if self._score == "all" else f"{self._mode}_fraction"], parts)


def variants(response: str) -> list[str]:
    """The response, and the seven others of IFEval's loose mode: without asterisks, without its first or last line or
    both, and each of these without asterisks."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return cut + [text.replace("*", "") for text in cut]


def _checks(names: Any, kwargs: Any) -> list[Callable[[str], bool]]:
    if not isinstance(names, (list, tuple)):
        raise NoScoreError("column 'instruction_id_list' must be a list")
    given = [None] * len(names) if kwargs is None else kwargs
    if not isinstance(given, (list, tuple)) or len(given) != len(names):
        raise NoScoreError("column 'kwargs' must be a list with one entry for each instruction")
    if not all(entry is None or isinstance(entry, Mapping) for entry in given):
        raise NoScoreError("an entry of column 'kwargs' must be an object")
    return [instruction_named(name).bound(name, entry) for name, entry in zip(names, given, strict=True)]


def _follows(check: Callable[[str], bool], texts: Sequence[str]) -> bool:
    """Return whether one of these texts passes the check. A blank text follows nothing."""
    return any(check(text) for text in texts if text.strip())


def _share(followed: Sequence[bool]) -> float:
    return sum(followed) / len(followed)
