"""Verdicts of the reward `instructions` and of lm-eval's checkers on generated responses."""

import importlib
import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from burnish.rewards.builtins.instruction_checks import INSTRUCTIONS
from burnish.rewards.builtins.instructions import Instructions

PAIRS = 1500
SENTENCES = [
    "The river runs past the old mill every morning.",
    "She asked whether Dr. Lee had seen the letter!",
    "Why would anybody walk 3.5 miles in the rain?",
    "NASA and the U.S. Navy signed it in MAY.",
    "I'm sure that it DOESN'T matter, e.g. in winter.",
    "Keep calm... and carry on",
    "My answer is yes.",
    "We met at 5 p.m. and then left, tired but happy.",
    "apple banana, Apple pie and pineapple",
    "P.S. Do not forget the milk.",
    "p.p.s. nothing more",
]
PARAGRAPHS = [
    "<<A title>>",
    "SECTION 1\nIt begins.\nSECTION 2\nIt ends.",
    "* one\n* two\n- three",
    "- only one",
    "This is *very* important and **quite** new, [name] [address].",
    "***",
    "******",
    "THE WHOLE TEXT IS IN CAPITAL LETTERS AND IT IS ENGLISH",
    "the whole text is in small letters and it is english",
    "Der alte Mann ging jeden Morgen am Fluss entlang und freute sich.",
    "El viejo caminaba todas las mañanas por la orilla del río.",
    '"Everything is quoted"',
    '```json\n{"a": [1, 2]}\n```',
    "Say it again: what is the weather like",
    "---",
    "",
]
WORDS = ["apple", "river", "milk", "the", "morning"]


@pytest.fixture(scope="module")
def oracle() -> Iterator[ModuleType]:
    """lm-eval's module for IFEval, without the rest of lm-eval, which needs much more, and without its download."""
    nltk = pytest.importorskip("nltk")
    pytest.importorskip("immutabledict")
    pytest.importorskip("langdetect").DetectorFactory.seed = 0
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        pytest.skip("lm-eval is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval"):
            package = ModuleType(name)
            package.__path__ = [str(Path(found.origin).parent.joinpath(*name.split(".")[1:]))]
            patch.setitem(sys.modules, name, package)
        patch.setattr(nltk, "download", lambda *arguments, **named: True)
        util = importlib.import_module("lm_eval.tasks.ifeval.instructions_util")
        # Its trained punkt is a download: one that is only told the abbreviations below. Words of one line need none.
        punkt = nltk.tokenize.punkt
        parameters = punkt.PunktParameters()
        parameters.abbrev_types = {"dr", "p.m", "e.g", "u.s"}
        patch.setattr(util, "_get_sentence_tokenizer", lambda: punkt.PunktSentenceTokenizer(parameters))
        words = nltk.word_tokenize
        patch.setattr(util.nltk, "word_tokenize", lambda text: words(text, preserve_line=True))
        yield importlib.import_module("lm_eval.tasks.ifeval.utils")


def response(draw: random.Random) -> str:
    paragraphs = []
    for _ in range(draw.randint(1, 5)):
        sentences = " ".join(draw.sample(SENTENCES, draw.randint(1, 4)))
        paragraphs.append(draw.choice([sentences, draw.choice(PARAGRAPHS)]))
    text = draw.choice(["\n\n", "\n", "\n***\n", "\n******\n"]).join(paragraphs)
    case = draw.choice([str, str, str, str.upper, str.lower])
    return case(draw.choice([text, text, f'"{text}"']))


def arguments(name: str, draw: random.Random) -> dict[str, Any]:
    relation = draw.choice(["less than", "at least"])
    return {
        "keywords:existence": lambda: {"keywords": draw.sample(WORDS, 2)},
        "keywords:frequency": lambda: {
            "keyword": draw.choice(WORDS),
            "frequency": draw.randint(1, 4),
            "relation": relation,
        },
        "keywords:forbidden_words": lambda: {"forbidden_words": draw.sample(WORDS, 2)},
        "keywords:letter_frequency": lambda: {
            "letter": draw.choice("aeZq"),
            "let_frequency": draw.randint(1, 30),
            "let_relation": relation,
        },
        "language:response_language": lambda: {"language": draw.choice(["en", "de", "es"])},
        "length_constraints:number_sentences": lambda: {"num_sentences": draw.randint(1, 9), "relation": relation},
        "length_constraints:number_paragraphs": lambda: {"num_paragraphs": draw.randint(1, 5)},
        "length_constraints:number_words": lambda: {"num_words": draw.randint(5, 80), "relation": relation},
        "length_constraints:nth_paragraph_first_word": lambda: {
            "num_paragraphs": draw.randint(1, 4),
            "nth_paragraph": 1,
            "first_word": draw.choice(["the", "Keep", "she"]),
        },
        "detectable_content:number_placeholders": lambda: {"num_placeholders": draw.randint(1, 4)},
        "detectable_content:postscript": lambda: {"postscript_marker": draw.choice(["P.S.", "P.P.S"])},
        "detectable_format:number_bullet_lists": lambda: {"num_bullets": draw.randint(1, 4)},
        "detectable_format:number_highlighted_sections": lambda: {"num_highlights": draw.randint(1, 4)},
        "detectable_format:multiple_sections": lambda: {
            "section_spliter": "SECTION",
            "num_sections": draw.randint(1, 2),
        },
        "combination:repeat_prompt": lambda: {"prompt_to_repeat": draw.choice(SENTENCES[:3])},
        "startend:end_checker": lambda: {"end_phrase": draw.choice(["happy.", "carry on", "It ends."])},
        "change_case:capital_word_frequency": lambda: {
            "capital_frequency": draw.randint(1, 8),
            "capital_relation": relation,
        },
    }.get(name, dict)()


def test_verdicts_agree_with_those_of_lm_eval(oracle: ModuleType) -> None:
    draw, reward = random.Random(0), Instructions()
    differing: Counter[str] = Counter()
    followed: Counter[tuple[str, bool]] = Counter()
    for index in range(PAIRS):
        name, text = [*INSTRUCTIONS][index % len(INSTRUCTIONS)], response(draw)
        kwargs = arguments(name, draw)
        example = oracle.InputExample(index, [name], "?", [kwargs])
        score = reward(text, instruction_id_list=[name], kwargs=[kwargs])
        assert score is not None
        for mode in ("strict", "loose"):
            verdict = getattr(oracle, f"test_instruction_following_{mode}")(example, text).follow_all_instructions
            followed[name, verdict] += 1
            if bool(score.parts[mode]) != verdict:
                differing[name] += 1
                # Its only verdict that is better: a text in which no language is found is in any language for it.
                assert verdict or name == "length_constraints:number_sentences", (name, kwargs, text)
    assert set(differing) <= {"length_constraints:number_sentences", "language:response_language"}, differing
    assert differing.total() <= 0.01 * 2 * PAIRS, differing
    assert len(followed) == 2 * len(INSTRUCTIONS), "each instruction has to be followed and not followed at times"
