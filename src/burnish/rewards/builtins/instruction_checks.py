"""The 25 verifiable instructions of IFEval (Zhou et al. 2023, https://arxiv.org/abs/2311.07911, table 1).

Names and arguments are as in its data set. Verdicts agree with its published checkers except where those crash, accept
an answer without content, or need a download; docs/rewards.md lists the differences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish.errors import ConfigError, nearest
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.builtins.sentences import count_sentences, words_as_printed

_RELATIONS = ("less than", "at least")
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@dataclass(frozen=True, slots=True)
class Instruction:
    """follows: whether a response follows it, given the arguments by name. arguments: name -> reading function."""

    follows: Callable[..., bool]
    arguments: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    def bound(self, name: str, given: Mapping[str, Any] | None) -> Callable[[str], bool]:
        """Bind the arguments of a row. NoScoreError for missing, wrong or unknown ones; None counts as not given."""
        left = {key: value for key, value in (given or {}).items() if value is not None}
        arguments = {}
        for key, read in self.arguments.items():
            if key not in left:
                raise NoScoreError(f"instruction {name!r} needs {key!r} among its kwargs")
            try:
                arguments[key] = read(left.pop(key))
            except ValueError as error:
                raise NoScoreError(f"{key!r} of instruction {name!r}: {error}") from error
        if left:
            raise NoScoreError(
                f"instruction {name!r} takes no {', '.join(map(repr, left))}; it takes {[*self.arguments]}"
            )
        return lambda response: self.follows(response, **arguments)


def instruction_named(name: Any) -> Instruction:
    """Look up an instruction. NoScoreError for a name that is none of the 25."""
    if name not in INSTRUCTIONS:
        near = nearest(str(name), INSTRUCTIONS)
        raise NoScoreError(f"there is no instruction {name!r}" + (f"; did you mean {near!r}?" if near else ""))
    return INSTRUCTIONS[name]


def _count(value: Any) -> int:
    """Read a count, also as a float: columns with a missing value turn whole numbers into floats."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return int(value)


def _relation(value: Any) -> str:
    if value not in _RELATIONS:
        raise ValueError(f"{value!r} is neither 'less than' nor 'at least'")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{value!r} is not a list of texts")
    return tuple(map(_text, value))


def _letter(value: Any) -> str:
    if len(_text(value)) != 1:
        raise ValueError(f"{value!r} is not a single letter")
    return str(value).lower()


def _language(value: Any) -> str:
    if value not in _language_codes():
        raise ValueError(f"{value!r} is not a language that can be detected: {', '.join(sorted(_language_codes()))}")
    return str(value)


def _holds(count: int, relation: str, threshold: int) -> bool:
    return count < threshold if relation == "less than" else count >= threshold


def _keywords(response: str, keywords: tuple[str, ...]) -> bool:
    return all(keyword.casefold() in response.casefold() for keyword in keywords)


def _keyword_frequency(response: str, keyword: str, frequency: int, relation: str) -> bool:
    return _holds(response.casefold().count(keyword.casefold()), relation, frequency)


def _forbidden_words(response: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", response, re.IGNORECASE) for word in forbidden_words)


def _letter_frequency(response: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _holds(response.lower().count(letter), let_relation, let_frequency)


def _sentences(response: str, num_sentences: int, relation: str) -> bool:
    return _holds(count_sentences(response), relation, num_sentences)


def _paragraphs(response: str, num_paragraphs: int) -> bool:
    """Paragraphs separated by lines of three asterisks."""
    parts = re.split(r"\s?\*\*\*\s?", response)
    return all(part.strip() for part in parts[1:-1]) and sum(bool(part.strip()) for part in parts) == num_paragraphs


def _words(response: str, num_words: int, relation: str) -> bool:
    return _holds(len(re.findall(r"\w+", response)), relation, num_words)


def _first_word(response: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """First word of the nth paragraph, where paragraphs are separated by blank lines."""
    paragraphs = response.split("\n\n")
    count = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if count != num_paragraphs or not 1 <= nth_paragraph <= count or not paragraphs[nth_paragraph - 1].strip():
        return False
    word = paragraphs[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


def _placeholders(response: str, num_placeholders: int) -> bool:
    # An open bracket is matched, too, so that the text after it is not searched again for each bracket in it.
    return sum(map(bool, re.findall(r"\[[^\]\n]*+(\]?)", response))) >= num_placeholders


def _postscript(response: str, postscript_marker: str) -> bool:
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(patterns.get(postscript_marker, re.escape(postscript_marker)), response, re.IGNORECASE) is not None


def _bullets(response: str, num_bullets: int) -> bool:
    """Lines that begin with one asterisk, or a dash."""
    return sum(bool(re.match(r"\s*(?:\*[^*]|-)", line)) for line in response.split("\n")) == num_bullets


def _constrained(response: str) -> bool:
    return any(allowed in response for allowed in _CONSTRAINED)


def _highlights(response: str, num_highlights: int) -> bool:
    """Stretches between one, two or three asterisks on a line."""
    found = re.findall(r"(?<!\*)(\*{1,3})(?!\*)([^*\n]+)\1(?!\*)", response)
    return sum(bool(inside.strip()) for _, inside in found) >= num_highlights


def _sections(response: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", response)) >= num_sections


def _json_format(response: str) -> bool:
    text = re.sub(r"^```(?:json)?|```$", "", response.strip(), flags=re.IGNORECASE)
    try:
        json.loads(text.strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(response: str) -> bool:
    """A title between the first `<<` and the last `>>` of a line."""
    return any(line.partition("<<")[2].rpartition(">>")[0].strip("<> \t") for line in response.split("\n"))


def _two_responses(response: str) -> bool:
    """Two different responses separated by six asterisks."""
    parts = [part.strip() for part in response.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


def _repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    return response.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _end(response: str, end_phrase: str) -> bool:
    return response.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _quotation(response: str) -> bool:
    text = response.strip()
    return len(text) > 1 and text.startswith('"') and text.endswith('"')


def _capital_words(response: str, capital_frequency: int, capital_relation: str) -> bool:
    return _holds(sum(word.isupper() for word in words_as_printed(response)), capital_relation, capital_frequency)


def _english_capital(response: str) -> bool:
    return response.isupper() and _is_in(response, "en")


def _english_lowercase(response: str) -> bool:
    return response.islower() and _is_in(response, "en")


def _no_comma(response: str) -> bool:
    return "," not in response


def _is_in(response: str, language: str) -> bool:
    """Return whether the text is in this language. Text without words, such as numbers, is in none."""
    langdetect = _langdetect()
    try:
        found = langdetect.detect(response)
    except langdetect.LangDetectException:
        return False
    return bool(found == language or found.startswith(f"{language}-"))  # zh is zh-cn or zh-tw


def _language_codes() -> set[str]:
    factory = _langdetect().detector_factory
    factory.init_factory()
    codes = set(factory._factory.get_lang_list())
    return codes | {code.partition("-")[0] for code in codes}


def _langdetect() -> Any:
    try:
        import langdetect
    except ImportError as error:
        raise ConfigError(
            "an instruction of the reward 'instructions' is about a language, which needs the package langdetect",
            remedy="pip install 'burnish[instructions]', or leave out the rows that name a language, english_capital "
            "or english_lowercase",
        ) from error
    langdetect.DetectorFactory.seed = 0  # else the same text may get another language the next time
    return langdetect


INSTRUCTIONS: dict[str, Instruction] = {
    "keywords:existence": Instruction(_keywords, {"keywords": _texts}),
    "keywords:frequency": Instruction(
        _keyword_frequency, {"keyword": _text, "frequency": _count, "relation": _relation}
    ),
    "keywords:forbidden_words": Instruction(_forbidden_words, {"forbidden_words": _texts}),
    "keywords:letter_frequency": Instruction(
        _letter_frequency, {"letter": _letter, "let_frequency": _count, "let_relation": _relation}
    ),
    "language:response_language": Instruction(_is_in, {"language": _language}),
    "length_constraints:number_sentences": Instruction(_sentences, {"num_sentences": _count, "relation": _relation}),
    "length_constraints:number_paragraphs": Instruction(_paragraphs, {"num_paragraphs": _count}),
    "length_constraints:number_words": Instruction(_words, {"num_words": _count, "relation": _relation}),
    "length_constraints:nth_paragraph_first_word": Instruction(
        _first_word, {"num_paragraphs": _count, "nth_paragraph": _count, "first_word": _text}
    ),
    "detectable_content:number_placeholders": Instruction(_placeholders, {"num_placeholders": _count}),
    "detectable_content:postscript": Instruction(_postscript, {"postscript_marker": _text}),
    "detectable_format:number_bullet_lists": Instruction(_bullets, {"num_bullets": _count}),
    "detectable_format:constrained_response": Instruction(_constrained),
    "detectable_format:number_highlighted_sections": Instruction(_highlights, {"num_highlights": _count}),
    "detectable_format:multiple_sections": Instruction(_sections, {"section_spliter": _text, "num_sections": _count}),
    "detectable_format:json_format": Instruction(_json_format),
    "detectable_format:title": Instruction(_title),
    "combination:two_responses": Instruction(_two_responses),
    "combination:repeat_prompt": Instruction(_repeat_prompt, {"prompt_to_repeat": _text}),
    "startend:end_checker": Instruction(_end, {"end_phrase": _text}),
    "startend:quotation": Instruction(_quotation),
    "change_case:capital_word_frequency": Instruction(
        _capital_words, {"capital_frequency": _count, "capital_relation": _relation}
    ),
    "change_case:english_capital": Instruction(_english_capital),
    "change_case:english_lowercase": Instruction(_english_lowercase),
    "punctuation:no_comma": Instruction(_no_comma),
}
"""The names and arguments of google/IFEval; `section_spliter` is spelt so there."""
