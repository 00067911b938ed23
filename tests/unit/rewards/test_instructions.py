"""The reward `instructions`: each of IFEval's 25 on texts that follow it and that do not, modes, parts, wrong rows."""

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import ConfigError
from burnish.rewards.builtins.instruction_checks import INSTRUCTIONS
from burnish.rewards.builtins.instructions import Instructions, variants
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.builtins.sentences import _END, count_sentences, words_as_printed

# name, arguments, texts that follow it, texts that do not
TABLE: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("keywords:existence", {"keywords": ["milk", "C++"]}, ["MILK and c++"], ["milk", "c++", ""]),
    ("keywords:frequency", {"keyword": "red", "frequency": 2, "relation": "at least"},
     ["Red, red.", "hundred red"], ["red"]),
    ("keywords:frequency", {"keyword": "red", "frequency": 2, "relation": "less than"}, ["red", "blue"], ["Red, red."]),
    ("keywords:forbidden_words", {"forbidden_words": ["cat", "a.b"]}, ["catalogue", "axb"], ["A Cat.", "a.b"]),
    ("keywords:letter_frequency", {"letter": "E", "let_frequency": 3, "let_relation": "at least"}, ["Eee"], ["ee"]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"},
     ["A boy. Cats!"], ["Dr. Ade ran."]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, ["One"], ["One. Two"]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2},
     ["a\n***\nb", "***a***b"], ["a\n\nb", "a***b***c", "a***   ***b"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, ["a b c", "a-b c"], ["a b"]),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
     ['First.\n\n"then, second.'], ["First.\n\nAnd then.", "Then\n\nx\n\ny", "First.\nThen"]),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[name], [street]"], ["[name]", "[a\n] [b]"]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["Bye. p. s. More"], ["PS more", "p.p.s more"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["p.p.s more"], ["P.S. more"]),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2},
     ["* a\n* b", "List:\n - a\n- b\n"], ["* a", "- a\n- b\n- c", "**a**\n* b"]),
    ("detectable_format:constrained_response", {}, ["So: My answer is no."], ["my answer is no.", "no"]),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2},
     ["*a* and **b c**"], ["*a*", "***a***", "** ** *\n*", "****"]),
    ("detectable_format:multiple_sections", {"section_spliter": "Part", "num_sections": 2},
     ["Part 1\nx\nPart 2\ny"], ["Part 1\nx", "part 1 part 2", "Part one Part two"]),
    ("detectable_format:json_format", {},
     ['{"a": 1}', "```json\n[1]\n```", "```\n[1]\n```"], ["So [1]", "```json\n[1"]),
    ("detectable_format:title", {}, ["<<Ode>>\nx"], ["<Ode>", "<< >>", "<<Ode\n>>"]),
    ("combination:two_responses", {}, ["a******b", "a\n******\nb\n******"], ["a", "a******a", "a******b******c"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "What is it? "}, ["what is it?\nTea."], ["Tea. What is it?"]),
    ("startend:end_checker", {"end_phrase": "The end."}, ['x "the END."', "The end.\n"], ["The end. x"]),
    ("startend:quotation", {}, [' "x" '], ['"x', "'x'", '"']),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     ["NASA and I", "SO-SO YES"], ["NASA And Me"]),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"},
     ["NASA"], ["NASA and I"]),
    ("punctuation:no_comma", {}, ["a; b"], ["a, b"]),
]  # fmt: skip
LANGUAGES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("language:response_language", {"language": "de"}, ["Der alte Mann ging jeden Morgen am Fluss entlang."],
     ["The old man walked along the river every morning.", "123 !", "***"]),
    ("language:response_language", {"language": "zh"}, ["我们每天早上都在河边散步，然后回家吃饭。"],
     ["Good morning to you"]),
    ("change_case:english_capital", {}, ["THE OLD MAN WALKED ALONG THE RIVER."], ["The old man WALKED along."]),
    ("change_case:english_lowercase", {}, ["the old man walked along the river."],
     ["the old man walked along the River.", "der alte mann ging jeden morgen am fluss entlang."]),
]  # fmt: skip


def parts(response: str, *rows: tuple[str, dict[str, Any] | None], **options: Any) -> dict[str, float]:
    names, kwargs = [name for name, _ in rows], [given for _, given in rows]
    score = Instructions(**options)(response, instruction_id_list=names, kwargs=kwargs)
    assert score is not None
    return {"value": score.value, **score.parts}


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), TABLE)
def test_instructions(name: str, kwargs: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert [text for text in good if parts(text, (name, kwargs))["strict"] == 0.0] == []
    assert [text for text in bad if parts(text, (name, kwargs))["strict"] == 1.0] == []


@pytest.mark.slow_cases("*english_capital*", "language:*-kwargs[01]-*")
@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), LANGUAGES)
def test_instructions_about_a_language(name: str, kwargs: dict[str, Any], good: list[str], bad: list[str]) -> None:
    pytest.importorskip("langdetect")
    test_instructions(name, kwargs, good, bad)


def test_all_25_are_in_the_tables() -> None:
    assert len(INSTRUCTIONS) == 25
    assert {row[0] for row in [*TABLE, *LANGUAGES]} == set(INSTRUCTIONS)


def test_a_row_about_a_language_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langdetect", None)
    with pytest.raises(ConfigError, match=r"needs the package langdetect(?s:.*)burnish\[instructions\]"):
        parts("HELLO", ("change_case:english_capital", {}))
    assert parts("hello", ("punctuation:no_comma", {}))["value"] == 1.0


def test_loose_forgives_first_and_last_lines_and_asterisks() -> None:
    assert variants("*a*\nb\nc") == ["*a*\nb\nc", "b\nc", "*a*\nb", "b", "a\nb\nc", "b\nc", "a\nb", "b"]
    quoted, ended = ("startend:quotation", {}), ("startend:end_checker", {"end_phrase": "the end"})
    response = 'Sure, here it is:\n"Once. **The end**"'
    found = parts(response, quoted, ended)
    assert (found["value"], found["strict"], found["loose"]) == (0.0, 0.0, 1.0)
    assert parts(response, quoted, ended, mode="loose")["value"] == 1.0
    assert parts("<think>a, b</think>c", ("punctuation:no_comma", {}))["value"] == 1.0


def test_parts_and_fractions() -> None:
    rows: list[tuple[str, dict[str, Any] | None]] = [
        ("keywords:existence", {"keywords": ["tea"], "num_words": None}),  # as in a Parquet file
        ("keywords:forbidden_words", {"forbidden_words": ["milk"]}),
        ("punctuation:no_comma", None),
        ("length_constraints:number_words", {"num_words": 2.0, "relation": "less than"}),
    ]
    found = parts("tea with milk", *rows, score="fraction")
    assert found == {
        **{"value": 0.5, "strict": 0.0, "loose": 0.0, "strict_fraction": 0.5, "loose_fraction": 0.5},
        **{"keywords": 0.5, "punctuation": 1.0, "length_constraints": 0.0},
    }
    assert parts("tea", *rows)["value"] == 1.0
    assert parts("  \n", ("punctuation:no_comma", None))["loose"] == 0.0


def test_a_row_without_instructions_has_no_score() -> None:
    assert Instructions()("x") is None
    assert Instructions()("x", instruction_id_list=[], kwargs=[]) is None
    written = Instructions()("x", instruction_id_list='["punctuation:no_comma"]', kwargs="[{}]")
    assert written is not None
    assert written.value == 1.0


@pytest.mark.parametrize(
    ("names", "kwargs", "why"),
    [
        (["keywords:existance"], [{}], "no instruction 'keywords:existance'; did you mean 'keywords:existence'"),
        (["keywords:existence"], [{}], "needs 'keywords' among its kwargs"),
        (["keywords:existence"], [{"keywords": "tea"}], "'tea' is not a list of texts"),
        (["punctuation:no_comma"], [{"letter": "a"}], "takes no 'letter'"),
        (["punctuation:no_comma"], [], "one entry for each instruction"),
        (["punctuation:no_comma"], ["x"], "an entry of column 'kwargs' must be an object"),
        ("no_comma", None, "not valid JSON"),
        (["detectable_format:number_bullet_lists"], [{"num_bullets": 1.5}], "1.5 is not a count"),
        (["keywords:letter_frequency"], [{"letter": "ab"}], "'ab' is not a single letter"),
        (["length_constraints:number_words"], [{"num_words": 3, "relation": "at most"}],
         "'at most' is neither 'less than' nor 'at least'"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_checked_are_an_error(names: Any, kwargs: Any, why: str) -> None:
    with pytest.raises(NoScoreError, match=why):
        Instructions()("x", instruction_id_list=names, kwargs=kwargs)


def test_an_unknown_language_is_an_error() -> None:
    pytest.importorskip("langdetect")
    with pytest.raises(NoScoreError, match="'xx' is not a language that can be detected"):
        parts("x", ("language:response_language", {"language": "xx"}))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("...", 0),
        ("No end", 1),
        ("Hi there. You are.", 2),
        ("Dr. Smith came at 5 p.m. and left. Mr. J. Smith stayed.", 2),
        ("No. Yes.", 2),
        ("See No. 5. It is.", 2),
        ("Wait... what? Really?! Yes", 3),
        ("I saw e.g. this, i.e. that.", 1),
        ("1. Buy milk.\n2. Go.", 2),
        ('"Go." he said. "Stop!"', 3),
        ("It costs 3.50 here. The U.S. is big.", 2),
        ("我是。你好！", 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert count_sentences(text) == count


def test_words() -> None:
    words = ["I", "'m", "in", "the", "U.S.", "and", "DO", "N'T", "GO", "ALL-CAPS", "A/B", "end"]
    assert words_as_printed("I'm in the U.S. and DON'T \"GO\" -- ALL-CAPS A/B end.") == words


@given(st.text(alphabet="[]<> a\n*", max_size=30))
def test_placeholders_and_titles_are_what_the_published_expressions_find(text: str) -> None:
    """The published ones take quadratic time."""
    placeholders = len(re.findall(r"\[.*?\]", text))
    for count in (placeholders, placeholders + 1):
        holds = INSTRUCTIONS["detectable_content:number_placeholders"].follows(text, count)
        assert holds == (placeholders >= count)
    titles = re.findall(r"<<([^\n]+)>>", text)
    assert INSTRUCTIONS["detectable_format:title"].follows(text) == any(title.strip("<> ") for title in titles)


@given(st.text(alphabet='.!?") a\n', max_size=30))
def test_an_end_of_a_sentence_is_found_from_any_of_its_marks(text: str) -> None:
    """Not trying again from the second mark of a run loses none."""
    plain = re.compile(r"[.!?…]+[\"'”’»)\]*_]*(?=\s|$)")
    assert [match.span() for match in _END.finditer(text)] == [match.span() for match in plain.finditer(text)]


@pytest.mark.slow_cases("letters")
@pytest.mark.parametrize(
    "text",
    ["." * 200_000 + "a", "[" * 200_000, "<<" * 200_000, "e.g. " * 40_000],
    ids=["dots", "brackets", "angles", "letters"],
)
def test_long_responses_take_linear_time(text: str) -> None:
    """In quadratic time this test would take minutes."""
    assert count_sentences(text) <= 1
    assert not INSTRUCTIONS["detectable_content:number_placeholders"].follows(text, 1)
    assert not INSTRUCTIONS["detectable_format:title"].follows(text)
