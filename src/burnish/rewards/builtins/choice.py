"""Multiple choice: the option that a response states last, by its label or by its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from burnish.rewards.builtins import answer_words as words
from burnish.rewards.builtins.choice_rows import Question, question_of_row
from burnish.rewards.builtins.reading_rows import after_thoughts
from burnish.types import Score

# Repeats are bounded, so that no response makes these expressions slow.
_PHRASE = re.compile(
    r"\b(?:answer|ans\b\.?|solution|(?:correct|right|best|final)\s(?:option|choice|one|response|match|fit)"
    r"|(?:option|choice|one)\sthat\s(?:best\s)?(?:fits|matches))[*_\"']{0,3}\s{0,3}"
    r"(?:[:：=]|(?<=ans\.)|(?:is|are|was|(?:would|must|should)\s(?:then\s)?be|has\sto\sbe)\b)"
    r"[*_:\s]{0,8}(?=(?P<content>[^\n]{1,400}))",
    re.IGNORECASE,
)
_STATED = re.compile(rf"(?:{words.ANSWER_IS.pattern})(?=(?P<content>[^\n]{{1,400}}))", re.IGNORECASE)
_DENIED_AHEAD = re.compile(r"\s(?:no|não|non|не)\s\S{1,12}[\s:*]{0,4}\Z", re.IGNORECASE)  # `la respuesta no es B`
_IT_IS = r"\s(?:that\s)?it(?:['’]s|\sis)"
_CHOOSE = re.compile(
    r"(?:\b(?:I(?:['’](?:ll|d|m)|\swill|\swould|\sam)?|[Ll]et(?:['’]s|\sus)|[Ww]e(?=\s\w{4,8}\s(?:option|choice|answer)\b))\s"
    r"(?:choos(?:e|ing)|pick(?:ing)?|select(?:ing)?|vote(?:\sfor)?|go(?:ing)?\s(?:with|for)|lean(?:ing)?\stowards?"
    rf"|say(?:{_IT_IS})?|(?:think|believe|guess|bet){_IT_IS}"
    rf"|(?:(?:fairly|pretty|quite|very|rather|absolutely)\s)?(?:sure|certain|confident){_IT_IS})\b"
    r"|\b[Mm]y\s(?:final\s)?(?:pick|choice|selection|vote|guess)(?:\s(?:is|would\sbe|goes\sto)\b|\s?[:：])"
    r"|(?<![不别])(?:选择?|選)(?=\s?[A-J]))(?=(?P<content>[^\n]{1,400}))"
)
_HASH = re.compile(r"####[ \t]{0,9}(?=(?P<content>[^\n]{1,400}))")
_TAG = re.compile(r"<answer>(?P<content>(?:(?!<answer>).){1,2000}?)</answer>", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox)\s?\{(?P<content>(?:[^{}\n]|\{[^{}\n]{0,400}\}){1,400})\}")

_DECORATION = (
    r"(?:[\s*_\"'`“”‘’()\[\]{}$:#>：。（）【】「」→➡✅✔☑]|[.-](?!\d)|=(?=>)|\\text|\\mathrm|\\mathbf|\\textbf){0,24}"
)
_NEGATED = re.compile(
    rf"{_DECORATION}(?:definitely\s|clearly\s|certainly\s)?(?:none\b|{words.DENIED.pattern})", re.IGNORECASE
)
_THINKING = r",?\s{0,3}\bI\s(?:think|believe|guess|would\ssay|am\s(?:sure|certain))\b[\s:,*_]{0,6}"
_HEDGES = (
    "either|both|probably|clearly|definitely|certainly|likely|most|simply|just|obviously|indeed|actually"
    "|therefore|thus|hence|then"
)
_NAMED_AS = (
    r"the|option|choice|letter|number|l[ae]|el|l['’]option|opci[oó]n|op[cç][aã]o|lettre|letra|(?-i:[ao](?=\s(?:letra|[A-J])\b))"
    r"|alternativa|Buchstabe"
)
_LEAD = rf"(?:(?:{_HEDGES}|correct|answer|{_NAMED_AS})\b[\s:,*_]{{1,6}}|{_THINKING}){{0,4}}"
_CONCLUSION = (
    r"(?:(?:so|thus|therefore|hence|then|finally|it'?s|it\s(?:is|must\sbe|has\sto\sbe)|(?:i\s)?(?:choos|pick|select)(?:e|ing)?"
    r"|(?:this|that|which)\s(?:is|leaves(?:\sus\swith)?|matches|corresponds\sto)|(?:my\s)?final(?:\sanswer)?|selection"
    rf"|{_HEDGES}|the|correct|option|choice|letter|answer)\b[\s:,*_]{{1,6}})"
)
_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"  # but no letter of a script without spaces between words
# What may follow a name of one or more words, unless a longer name goes on there.
_ENDS = (
    r"(?!['’]?\w)(?![.,:/^]?\d)(?!\s?%)"
    r"(?!\s{1,3}(?!(?:because|since|as|which|and|or|so|but|not|rather|with|for|if|by|due|based|given|from|is|instead"
    r"|in|here|[A-Z])\b)\w)"
)
# What joins names into a list. The full stop is not included: names after it belong to the next sentence, which more
# often than not says why the others are wrong.
_CLOSING = r"[*_\"'`”’)\]}\s]"
_JOINED = (
    r"\b(?:or|and|to|through|maybe|perhaps|possibly|alternatively|also|even|option|choice|either)\b|[,/&、か]"
    rf"|{words.AND_WORDS}"
)
_VERB = rf"{_CLOSING}{{1,8}}(?:is|are|was|were|isn['’]t|aren['’]t|wasn['’]t|weren['’]t)\b"
# Before `B is right`: words that deny it or leave it open. A new clause may state it again.
_NOT_SAID = re.compile(
    r"(?:\b(?:none|neither|nor|not|never|if|unless|whether)|n['’]t)\b"
    r"(?:(?!\b(?:so|but|then|thus|hence|therefore)\b)[^.,;:!?\n]){0,60}\Z",
    re.IGNORECASE,
)
_BEFORE = 100


class Choice:
    """1 if the option that the response states last is the right one, else 0; None (missing) for a row without options
    or without an answer. The part `stated` says whether the response states one option at all.

    column: the column with the options; by default `choices` or `options`. They are in the order of the prompt.
    """

    def __init__(
        self, column: Annotated[str | None, "the column with the options (default choices, else options)"] = None
    ) -> None:
        self._column = column

    def __call__(self, response: str, answer: Any = None, **columns: Any) -> Score | None:
        question = question_of_row(columns, answer, self._column)
        if question is None:
            return None
        stated = stated_option(response, question)
        return Score(float(stated == question.gold), {"stated": float(stated is not None)})


def stated_option(response: str, question: Question) -> int | None:
    """Position of the option that the response states last, after its thoughts; None if it states none, or several at
    once.

    A statement is `answer is ...`, `I choose ...`, `B is correct`, `####`, `\\boxed{}` or `<answer>`. In a response
    without any, it is a last line that holds nothing but an option.
    """
    reader, text = _Reader(question), words.TAKEN_BACK.split(after_thoughts(response))[-1]
    for content in reversed(reader.statements(text)):
        named = reader.named(content)
        if named is not None:
            return reader.only(named)
    return reader.only(reader.concluded(text))


class _Reader:
    """Finds the options of one question in texts, as sets of their positions."""

    def __init__(self, question: Question) -> None:
        self._question = question
        name = rf"(?:(?i:{_any_of(question.texts, question.labels)}){_ENDS}|{_labels(question.labels)})"
        text = rf"(?i:{_any_of(question.texts, ())})(?!\w)"
        own = _any_of(question.texts, question.labels)
        label = "|".join(map(re.escape, question.labels))
        self._whole = re.compile(rf"{_DECORATION}(?P<name>(?i:{label})){_DECORATION}")
        self._lead = re.compile(rf"{_DECORATION}(?i:{_LEAD}){_DECORATION}(?P<name>{name})")
        join = rf"(?:{_CLOSING}|{_JOINED}){{1,12}}"
        self._own_text = re.compile(rf"[.:–—(\-\s*_\"'`“”‘’)\]}}]{{1,12}}(?P<name>(?i:{own})(?!\w))")
        self._next = re.compile(
            rf"{join}(?P<name>{name})|{_CLOSING}{{0,12}}\((?:(?:{_JOINED})\s{{1,3}}){{0,3}}(?P<inside>{name})\)"
        )
        self._is_subject = re.compile(rf"(?:{join}(?:{text}|(?:{label})(?!\w))){{0,25}}{_VERB}")
        self._in_list = re.compile(rf"(?<!\w){name}{join}\Z")
        option = rf"{_DECORATION}(?P<name>{name}|(?i:{label}))(?:{_DECORATION}(?P<text>{text}))?{_DECORATION}"
        self._line = re.compile(rf"{_DECORATION}(?i:{_CONCLUSION}){{0,5}}{option}")
        self._clause = re.compile(rf"{_DECORATION}(?i:{_CONCLUSION}){{1,5}}{option}")
        self._corrected = re.compile(
            rf"(?i:{words.CORRECTION})(?=(?P<content>{_DECORATION}{name}(?!{_VERB})[^\n]{{0,400}}))"
        )
        self._right = re.compile(
            rf"(?<!['’])(?<!{_WORD})(?P<content>{name})(?:[*_)\]}}\s]{{1,8}}"
            r"(?:is\s(?:the\s)?(?:(?:correct|right|best|answer)\b|one(?=[.!]|$))|it\sis(?=[.!]|$))"
            r"|[*_)\]}\s]{0,8}(?:选项|選項|[项項が가])?\s?(?:才?是)?"
            r"(?:正[确確解]|正しい|[对對]的|정답)(?![吗嗎か]|ですか|では|じゃ|이?\s?아))",
            re.MULTILINE,
        )

    def statements(self, text: str) -> list[str]:
        """Find all statements of the answer, in the order of the text."""
        patterns = (_PHRASE, _STATED, _CHOOSE, _HASH, _TAG, _BOX, self._corrected)
        found = [match for kind in patterns for match in kind.finditer(text)]
        found += [match for match in self._right.finditer(text) if not self._is_denied(text, match.start())]
        found.sort(key=lambda match: match.start("content"))
        return [("not " if _DENIED_AHEAD.search(match[0]) else "") + match["content"] for match in found]

    def named(self, content: str) -> set[int] | None:
        """Find the options that a statement names at its beginning, as in `B`, `(B) Paris`, `clearly B` or `B or C`.
        Empty if it says what the answer is not, None if it is about something else. Names that are the subject of a
        clause, as in `B, because A and C are wrong`, do not count."""
        whole = self._whole.fullmatch(content)
        if whole:
            return self._positions(whole["name"])
        if _NEGATED.match(content):
            rest = words.CORRECTED.search(content)
            return (rest and self.named(content[rest.end() :])) or set()
        first = self._lead.match(content)
        if first is None:
            return None
        found, end = self._positions(first["name"]), first.end()
        own_text = self._own_text.match(content, end) if first["name"].upper() in self._question.labels else None
        if own_text and not self._is_subject.match(content, own_text.end()):
            found, end = found | self._positions(own_text["name"]), own_text.end()
        while (match := self._next.match(content, end)) and not self._is_subject.match(content, match.end()):
            found, end = found | self._positions(match["name"] or match["inside"]), match.end()
        return set() if words.DENIED_BEHIND.match(content, end) else found

    def concluded(self, text: str) -> set[int]:
        """Return the option in the last line, if it holds nothing else, or in its last clause, if that concludes it
        (`so B`). Lines of that kind above it make it a list of options, which states no answer, unless they have texts
        and the last one is a label alone."""
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            return set()
        if (last := self._line.fullmatch(lines[-1])) is None:
            clause = self._clause.fullmatch(re.split(r"(?<=[.,;!?])\s", lines[-1].rstrip())[-1])
            return self._named_in_line(clause) if clause else set()
        matches = [match for match in map(self._line.fullmatch, lines) if match]
        bare = [match for match in matches if match["name"].upper() in self._question.labels and not match["text"]]
        counted = bare if last["name"].upper() in self._question.labels and not last["text"] else matches
        return set().union(*(self._named_in_line(match) for match in counted))

    def only(self, found: set[int]) -> int | None:
        """Reduce a set to one option: of several with the same text, the right one if possible. None otherwise."""
        if len({self._question.texts[index] for index in found}) != 1:
            return None
        return self._question.gold if self._question.gold in found else min(found)

    def _is_denied(self, text: str, start: int) -> bool:
        """Return whether `is right` is denied here, or its subject ends a list, as in `none of A, C, D is right`."""
        before = text[max(0, start - _BEFORE) : start]
        return bool(_NOT_SAID.search(before) or self._in_list.search(before))

    def _named_in_line(self, match: re.Match[str]) -> set[int]:
        return self._positions(match["name"]) | (self._positions(match["text"]) if match["text"] else set())

    def _positions(self, name: str) -> set[int]:
        """Find the option with this label, else the options with this text: exactly, or else regardless of case. Empty
        if the letters are equal only to regular expressions, not in Unicode's case folding: `Parıs`."""
        labels, texts = self._question.labels, self._question.texts
        if name in labels:
            return {labels.index(name)}
        name = " ".join(name.split())
        exact = {index for index, text in enumerate(texts) if text == name}
        alike = {index for index, text in enumerate(texts) if text.casefold() == name.casefold()}
        return exact or alike or {index for index, label in enumerate(labels) if label == name.upper()}


def _any_of(texts: Sequence[str], but: Sequence[str]) -> str:
    """A pattern for these texts with any white space between their words, longest first; it matches nothing if there
    are none. A text that is a label of an option means that label."""
    left = sorted({text for text in texts if text and text not in but}, key=len, reverse=True)
    return "|".join(r"\s{1,3}".join(map(re.escape, text.split())) for text in left) or "(?!)"


def _labels(labels: Sequence[str]) -> str:
    """A pattern for these labels. A label that is also a word or a number may not begin a longer phrase: `A dog`."""
    return "|".join(
        re.escape(label) + (_ENDS if label in "AI" or label.isdigit() else rf"(?!['’]?{_WORD})") for label in labels
    )
