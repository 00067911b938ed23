"""Faults of comparisons that no single row shows."""

import pytest

from burnish.data.pair_audit import audit
from burnish.data.preference_tokens import PreferenceExample

END = 9


def pair(row: str, better: tuple[int, ...], worse: tuple[int, ...]) -> PreferenceExample:
    return PreferenceExample(row, (1,), ((*better, END), (*worse, END)), best=0)


def test_repeats_contradictions_and_prefixes_are_found() -> None:
    rows = [pair("a", (2,), (3,)), pair("b", (2,), (3,)), pair("c", (3,), (2,)), pair("d", (4, 5), (4,))]
    found = audit(rows)
    assert found.repeated == (("a", "b"),)
    assert found.contradicting == (("a", "c"),)
    assert found.prefixes == ("d",)
    assert (found.pairs, found.unequal, found.longer) == (4, 1, 1.0)
    assert list(found.lines(show=1))[:4] == [
        "pairs: 4",
        "rows that repeat an earlier one: 1 (a and b)",
        "rows that contradict an earlier one: 1 (a and c)",
        "pairs of which one response only goes on where the other ends: 1 (d)",
    ]


@pytest.mark.parametrize(("longer", "warns"), [(50, False), (60, False), (90, True), (10, True)])
def test_lengths_that_tell_the_answer_are_said(longer: int, warns: bool) -> None:
    rows = [pair(str(n), (2, n), (3,)) if n < longer else pair(str(n), (3,), (2, n)) for n in range(100)]
    said = " ".join(audit(rows).lines(show=3))
    assert f"in {longer / 100:.1%}" in said
    assert ("length alone" in said) is warns


def test_a_response_that_is_good_and_bad_is_a_contradiction() -> None:
    rated = [PreferenceExample(str(n), (1,), ((2,),), 0, good=good) for n, good in enumerate((True, True, False))]
    assert audit(rated).contradicting == (("0", "2"),)
