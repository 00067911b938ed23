"""Prompts that come twice are counted, and the first of them named."""

from __future__ import annotations

from burnish.data.overlap import find_overlap

TRAIN = [("train:0", "a"), ("train:1", "b"), ("train:2", "a"), ("train:3", "c")]


def test_what_is_asked_twice_is_named_with_the_first_row_that_asks_it() -> None:
    found = find_overlap(TRAIN, [("eval:0", "c"), ("eval:1", "d"), ("eval:2", "d"), ("eval:3", "a")])
    assert found.shared == (("eval:0", "train:3"), ("eval:3", "train:0"))
    assert found.repeated_train == (("train:2", "train:0"),)
    assert found.repeated_heldout == (("eval:2", "eval:1"),)
    assert found.lines() == [
        "2 of 4 held-out prompts are training prompts too: eval:0 is train:3, eval:3 is train:0",
        "1 of 4 training prompts repeat an earlier one: train:2 repeats train:0",
        "1 of 4 held-out prompts repeat an earlier one: eval:2 repeats eval:1",
    ]


def test_only_the_first_few_are_named() -> None:
    (line,) = find_overlap([("train:0", "a")], [(f"eval:{n}", ("a",) if n == 9 else "a") for n in range(10)]).lines()[
        :1
    ]
    assert line == (
        "9 of 10 held-out prompts are training prompts too: eval:0 is train:0, eval:1 is train:0, eval:2 is train:0, "
        "and 6 more"
    )


def test_nothing_twice_is_nothing_to_say() -> None:
    assert find_overlap([("train:0", "a")], [("eval:0", "b")]).lines() == []
