"""Rows for the reward `instructions`: a task, one to three verifiable instructions, and a text that follows them.

IFEval (https://arxiv.org/abs/2311.07911) is for evaluation. These rows have its 25 kinds of instructions, its columns
and none of its texts, so that a policy can be trained on them and still be evaluated there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]

TASKS = (
    "Write a short text about {}.",
    "Explain {} to a child.",
    "Give a friend some advice about {}.",
    "Describe {} to somebody who has never heard of it.",
    "Write an entry in a diary about {}.",
    "Write a letter to a newspaper about {}.",
    "Invent a short story about {}.",
    "Compare {} today with what it was a century ago.",
)
TOPICS: Mapping[str, tuple[str, ...]] = {
    "baking bread": ("flour", "oven", "yeast", "crust", "dough"),
    "a walk in the hills": ("path", "view", "boots", "weather", "summit"),
    "learning to swim": ("water", "pool", "breath", "coach", "lane"),
    "keeping bees": ("honey", "hive", "queen", "smoke", "flowers"),
    "a small library": ("books", "shelf", "reader", "silence", "loan"),
    "the night train": ("station", "ticket", "window", "berth", "track"),
    "growing tomatoes": ("garden", "seed", "sun", "soil", "leaf"),
    "a village school": ("teacher", "lesson", "bell", "chalk", "yard"),
    "repairing a bicycle": ("chain", "wheel", "brake", "pump", "saddle"),
    "the tides": ("moon", "shore", "harbour", "current", "sand"),
    "an old clock": ("spring", "hands", "hour", "gear", "tower"),
    "a winter market": ("stall", "candle", "snow", "soup", "lights"),
    "painting a room": ("brush", "colour", "wall", "ladder", "floor"),
    "a lost dog": ("collar", "street", "owner", "reward", "bark"),
    "making paper": ("pulp", "wood", "sheet", "press", "mill"),
    "the first day at work": ("office", "desk", "boss", "coffee", "badge"),
    "a choir": ("voice", "song", "tenor", "concert", "breath"),
    "a lighthouse": ("lamp", "rock", "storm", "ship", "keeper"),
    "cooking for ten guests": ("menu", "table", "recipe", "pot", "salt"),
    "moving to another town": ("box", "house", "friend", "street", "neighbour"),
    "a river in summer": ("boat", "fish", "bank", "bridge", "shade"),
    "the history of salt": ("mine", "trade", "sea", "tax", "meat"),
    "a power cut": ("candle", "dark", "switch", "battery", "cold"),
    "chess": ("board", "king", "pawn", "clock", "opening"),
}
HELD_OUT_TOPICS = ("a lighthouse", "chess", "growing tomatoes", "the night train")
QUESTIONS = (
    "Should a child know about {}?",
    "Could one write a whole book about {}?",
    "Has {} changed in a hundred years?",
    "Is {} a good subject for a photograph?",
)
LETTERS = {"b": "bubble", "f": "fifty", "k": "kick", "m": "mum", "p": "paper", "v": "vivid", "w": "window"}
RARE_LETTERS = "jqz"
FIRST_WORDS = ("today", "finally", "often", "people", "nobody", "yesterday")
LANGUAGES = {
    "de": ("German", "Das ist ein einfacher Text und er sagt nicht viel. Er ist nur ein Beispiel."),
    "fr": ("French", "Voici un texte simple qui ne dit pas grand-chose. Ce n'est qu'un exemple."),
    "es": ("Spanish", "Este es un texto sencillo que no dice mucho. Es solamente un ejemplo."),
    "it": ("Italian", "Questo è un testo semplice che non dice molto. È soltanto un esempio."),
    "nl": ("Dutch", "Dit is een eenvoudige tekst die niet veel zegt. Het is maar een voorbeeld."),
}
END_PHRASES = ("That is all there is to say.", "Let me know if you need more.", "So much for today.")
PLAIN = "This is a plain text and it says very little. It is only here as an example."
MORE = "There is a little more to say about this."


@dataclass(frozen=True, slots=True)
class Asked:
    """What a row asks for. words: some that belong to the topic."""

    task: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the 25 instructions.

    name: its id. claims: what it decides about a response; two that decide the same do not stand in one row. draw: its
    kwargs. sentence: how the prompt asks for it. follow: a text changed so that it follows.
    """

    name: str
    claims: frozenset[str]
    draw: Callable[[random.Random, Asked], Values]
    sentence: Callable[[Values], str]
    follow: Callable[[str, Values], str]


def _kind(
    name: str,
    claims: str,
    sentence: str | Callable[[Values], str],
    follow: Callable[[str, Values], str],
    draw: Callable[[random.Random, Asked], Values] = lambda dice, asked: {},
) -> Kind:
    said = sentence if callable(sentence) else lambda values: sentence.format(**values)
    return Kind(name, frozenset(claims.split()), draw, said, follow)


def _listed(words: list[str]) -> str:
    *others, last = words
    return f"the words {', '.join(others)} and {last}" if others else f"the word {last}"


def _either(dice: random.Random, least: int, most: int, step: int = 1) -> Values:
    """`at least` a number of the range, or `less than` a number above it, which a short text is."""
    if dice.random() < 0.5:
        return {"relation": "at least", "number": dice.randrange(least, most + 1, step)}
    return {"relation": "less than", "number": dice.randrange(most, 2 * most, step)}


def _numbered(number: str, relation: str, drawn: Values, **values: Any) -> Values:
    return {**values, number: drawn["number"], relation: drawn["relation"]}


def _lengthened(text: str, values: Values, number: str, size: Callable[[str], int]) -> str:
    while values["relation"] == "at least" and size(text) < values[number]:
        text = f"{text} {MORE}"
    return text


def _draw_letter(dice: random.Random, asked: Asked) -> Values:
    if dice.random() < 0.5:
        letter, number, relation = dice.choice([*LETTERS]), dice.randint(3, 8), "at least"
    else:
        letter, number, relation = dice.choice(RARE_LETTERS), dice.randint(4, 6), "less than"
    return {"letter": letter, "let_frequency": number, "let_relation": relation}


def _with_letters(text: str, values: Values) -> str:
    if values["let_relation"] == "less than":
        return text
    return f"{text} {' '.join([LETTERS[values['letter']]] * values['let_frequency'])}."


def _with_paragraphs(text: str, values: Values) -> str:
    """The nth of them begins with the word."""
    paragraphs = [MORE] * values["num_paragraphs"]
    paragraphs[values["nth_paragraph"] - 1] = f"{values['first_word'].capitalize()} {text}"
    return "\n\n".join(paragraphs)


def _draw_nth(dice: random.Random, asked: Asked) -> Values:
    count = dice.randint(2, 4)
    return {"num_paragraphs": count, "nth_paragraph": dice.randint(1, count), "first_word": dice.choice(FIRST_WORDS)}


# In the order in which a text can be changed to follow several of them.
KINDS: tuple[Kind, ...] = (
    _kind(
        "detectable_format:constrained_response",
        "everything",
        "Answer with one of these: 'My answer is yes.', 'My answer is no.', 'My answer is maybe.'",
        lambda text, values: "My answer is maybe.",
    ),
    _kind(
        "language:response_language",
        "language words letters start end layout case length",
        lambda values: f"Write the whole response in {LANGUAGES[values['language']][0]} and in no other language.",
        lambda text, values: LANGUAGES[values["language"]][1],
        lambda dice, asked: {"language": dice.choice([*LANGUAGES])},
    ),
    _kind(
        "length_constraints:number_sentences",
        "length",
        "The response should have {relation} {num_sentences} sentences.",
        lambda text, values: _lengthened(text, values, "num_sentences", lambda found: found.count(". ") + 1),
        lambda dice, asked: _numbered("num_sentences", "relation", _either(dice, 3, 10)),
    ),
    _kind(
        "length_constraints:number_words",
        "length",
        "Use {relation} {num_words} words.",
        lambda text, values: _lengthened(text, values, "num_words", lambda found: len(found.split())),
        lambda dice, asked: _numbered("num_words", "relation", _either(dice, 40, 120, 10)),
    ),
    _kind(
        "keywords:existence",
        "words",
        lambda values: f"Use {_listed(values['keywords'])}.",
        lambda text, values: f"{text} The words are {' and '.join(values['keywords'])}.",
        lambda dice, asked: {"keywords": sorted(dice.sample(asked.words, dice.randint(1, 3)))},
    ),
    _kind(
        "keywords:frequency",
        "words",
        "The word {keyword} should appear {relation} {frequency} times.",
        lambda text, values: (
            f"{text} {' '.join([values['keyword']] * values['frequency'])}."
            if values["relation"] == "at least"
            else text
        ),
        lambda dice, asked: _numbered("frequency", "relation", _either(dice, 2, 4), keyword=dice.choice(asked.words)),
    ),
    _kind(
        "keywords:forbidden_words",
        "words",
        lambda values: f"Do not use {_listed(values['forbidden_words'])}.",
        lambda text, values: text,
        lambda dice, asked: {"forbidden_words": sorted(dice.sample(asked.words, dice.randint(1, 3)))},
    ),
    _kind(
        "keywords:letter_frequency",
        "letters",
        "The letter {letter} should appear {let_relation} {let_frequency} times.",
        _with_letters,
        _draw_letter,
    ),
    _kind(
        "detectable_content:number_placeholders",
        "placeholders",
        "Use at least {num_placeholders} placeholders in square brackets, such as [name].",
        lambda text, values: f"{text} {' '.join(['[name]'] * values['num_placeholders'])}",
        lambda dice, asked: {"num_placeholders": dice.randint(2, 5)},
    ),
    _kind(
        "detectable_format:number_highlighted_sections",
        "highlights",
        "Highlight at least {num_highlights} parts of the response with asterisks, *like this*.",
        lambda text, values: f"{text} {' '.join(['*indeed*'] * values['num_highlights'])}",
        lambda dice, asked: {"num_highlights": dice.randint(2, 5)},
    ),
    _kind(
        "change_case:capital_word_frequency",
        "case",
        "Words in capital letters only should appear {capital_relation} {capital_frequency} times.",
        lambda text, values: (
            f"{text} {' '.join(['NOW'] * values['capital_frequency'])}."
            if values["capital_relation"] == "at least"
            else text
        ),
        lambda dice, asked: _numbered("capital_frequency", "capital_relation", _either(dice, 2, 6)),
    ),
    _kind(
        "detectable_format:number_bullet_lists",
        "layout",
        "The response has to contain exactly {num_bullets} bullet points each on a line that begins with an asterisk.",
        lambda text, values: text + "\n* a point" * values["num_bullets"] + "\n",
        lambda dice, asked: {"num_bullets": dice.randint(2, 5)},
    ),
    _kind(
        "detectable_format:multiple_sections",
        "layout case",
        "The response must have {num_sections} sections. Begin each with {section_spliter} X, where X is its number.",
        lambda text, values: "\n".join(
            f"{values['section_spliter']} {number + 1}\n{text if number == 0 else MORE}"
            for number in range(values["num_sections"])
        ),
        lambda dice, asked: {
            "section_spliter": dice.choice(["Section", "Part", "Day"]),
            "num_sections": dice.randint(2, 4),
        },
    ),
    _kind(
        "length_constraints:number_paragraphs",
        "layout",
        "The response should have {num_paragraphs} paragraphs, with a line of three asterisks (***) between them.",
        lambda text, values: "\n***\n".join([text, *[MORE] * (values["num_paragraphs"] - 1)]),
        lambda dice, asked: {"num_paragraphs": dice.randint(2, 4)},
    ),
    _kind(
        "length_constraints:nth_paragraph_first_word",
        "layout start end",
        "There should be {num_paragraphs} paragraphs, with an empty line between them. "
        "Paragraph {nth_paragraph} must begin with the word {first_word}.",
        _with_paragraphs,
        _draw_nth,
    ),
    _kind(
        "combination:two_responses",
        "layout length start end",
        "Give two different responses, with six asterisks (******) between them.",
        lambda text, values: f"{text}\n******\n{MORE} {text}",
    ),
    _kind(
        "detectable_format:title",
        "start",
        "The response must have a title in double angular brackets, such as <<a quiet day>>.",
        lambda text, values: f"<<an example>>\n{text}",
    ),
    _kind(
        "startend:end_checker",
        "end",
        "Finish with exactly these words, and say nothing after them: {end_phrase}",
        lambda text, values: f"{text} {values['end_phrase']}",
        lambda dice, asked: {"end_phrase": dice.choice(END_PHRASES)},
    ),
    _kind(
        "detectable_content:postscript",
        "end",
        "At the end add a postscript, marked with {postscript_marker} and one sentence long.",
        lambda text, values: f"{text}\n{values['postscript_marker']} {MORE}",
        lambda dice, asked: {"postscript_marker": dice.choice(["P.S.", "P.P.S"])},
    ),
    _kind(
        "change_case:english_capital",
        "case language",
        "Write in English and in capital letters only.",
        lambda text, values: text.upper(),
    ),
    _kind(
        "change_case:english_lowercase",
        "case language",
        "Write in English and in lowercase letters only. No capital letters are allowed.",
        lambda text, values: text.lower(),
    ),
    _kind(
        "punctuation:no_comma",
        "commas",
        "Do not use any commas.",
        lambda text, values: text.replace(",", ""),
    ),
    _kind(
        "combination:repeat_prompt",
        "start words letters commas language case",
        "First repeat the sentence before this one, word for word, and then give the response.",
        lambda text, values: f"{values['prompt_to_repeat']}\n{text}",
        lambda dice, asked: {"prompt_to_repeat": asked.task},
    ),
    _kind(
        "startend:quotation",
        "start end",
        "Put the whole response between double quotation marks.",
        lambda text, values: f'"{text}"',
    ),
    _kind(
        "detectable_format:json_format",
        "layout start end commas",
        "The whole response has to be valid JSON.",
        lambda text, values: json.dumps({text.split()[0]: text}),
    ),
)


def rows(number: int, *, seed: int, topics: tuple[str, ...]) -> Iterator[Values]:
    """So many rows with different prompts, the same for the same seed. Each kind comes first in every 25th row, so that
    none is rare."""
    dice, seen = random.Random(seed), set[str]()
    while len(seen) < number:
        row = _row(KINDS[len(seen) % len(KINDS)], dice.choice(topics), dice)
        if row["prompt"] not in seen:
            yield {"id": f"{seed}-{len(seen)}", **row}
            seen.add(row["prompt"])


def _row(first: Kind, topic: str, dice: random.Random) -> Values:
    kinds = _together(first, dice)
    asked = Asked(dice.choice(QUESTIONS if "everything" in first.claims else TASKS).format(topic), TOPICS[topic])
    drawn = {kind.name: kind.draw(dice, asked) for kind in kinds}
    text = PLAIN
    for kind in KINDS:
        if kind.name in drawn:
            text = kind.follow(text, drawn[kind.name])
    return {
        "prompt": " ".join([asked.task, *(kind.sentence(drawn[kind.name]) for kind in kinds)]),
        "instruction_id_list": [*drawn],
        "kwargs": [*drawn.values()],
        "gold_response": text,
    }


def _together(first: Kind, dice: random.Random) -> list[Kind]:
    """Up to three kinds that decide about different things. What repeats the task has to come right after it."""
    chosen, wanted = [first], dice.randint(1, 3)
    for kind in dice.sample(KINDS, len(KINDS)):
        taken = frozenset().union(*(one.claims for one in chosen))
        if len(chosen) < wanted and not kind.claims & taken and "everything" not in kind.claims | taken:
            chosen.append(kind)
    return sorted(chosen, key=lambda kind: kind.name != "combination:repeat_prompt")
