"""Extraction of the answer that a response states.

Places are tried in this order: the last `\\boxed{}`, the last `####`, the last sentence such as "the answer is ...",
the whole response if it is only an answer, the last number with its expression. The first place that says anything
decides, right or wrong, so that a response cannot hedge with several answers. A sentence that denies or bounds the
answer, or leaves it open, states none.
"""

from __future__ import annotations

import re

from burnish.rewards.builtins import answer_words as words
from burnish.rewards.builtins.number_words import in_digits, leading_number
from burnish.rewards.builtins.reading_rows import after_thoughts
from burnish.rewards.builtins.stated_values import (
    DECIMAL,
    FORMULA,
    Statement,
    content_of,
    expression_end,
    has_prose,
    value_at,
    values_at,
)
from burnish.rewards.builtins.typography import without_points

_PLAIN = str.maketrans("⁄∕／‐‑﹣－٫٬∙⋅⟨⟩", "///----.,··()")
_SPOKEN = {"times": "×", "plus": "+", "minus": "-", "divided by": "/", "and a half": "1/2", "and a quarter": "1/4"}
_REWRITTEN = (
    (r"<(b|strong|em|i|u)>([^<>]*)</\1>|(?<![\w)*\\])\*\*(?=[^\s*])([^*\n]*[^\s*])\*\*(?![\w(*])", r"\2\3"),  # emphasis
    (r"^[ \t]*+#*+[ \t]*+((?i:(?:the\s)?(?:final\s)?answer))[ \t]*$", r"\1:"),  # a heading acts as a colon
    # The marker of a list of one item is not a minus sign.
    (r"^[ \t]*(?:[-=]{1,3}>|[•▪]|>(?=[^\n]*=))[ \t]*|(?<=:\n)\s*[-*+]\s+(?=[^\n]+(?!\s*\n\s*[-*+]\s)$)", ""),
    (r"<<[^<>\n]*>>|<\|\w+\|>|</?s>|(?<=\bsq)\.|~~[^~\n]+~~|(?<=\d)['’](?=\d{3}(?!\d))", ""),
    (r"plus or minus ", "±"),
    (r"(?<=\d) (?:percent|per cent)(?= of \$?\d)", "%"),
    *((rf"(?<=\d) {word}\b(?! (?:as|more|that)\b)", f" {sign}") for word, sign in _SPOKEN.items()),
    (r"(?<=\d) over(?= \d+\W*$)", " /"),
    (r"(?<=[\d%]) ?[xX] ?(?=\$?\.?\d)|(?<=%) of (?=\$?\d)", " × "),
    (r"((?i:\bratio)\b[^\d.\n]{1,60})(\d+) to (\d+)", r"\1\2:\3"),
    (r"\b(\d{1,9}) choose (\d{1,9})\b", r"\\binom{\1}{\2}"),
    (r"(?<=\d) and (?=\d/\d+ [a-z]{3})", " "),  # `3 and 3/4 cups`
)
_READ_AS = [(re.compile(pattern, re.MULTILINE), written) for pattern, written in _REWRITTEN]


def said(response: str) -> str:
    """Return the part of a response after its thoughts, and after the last thing that it takes back: the content of its
    last `<answer>` tags, or all of it. Words and signs of arithmetic are written in one way."""
    text = words.TAKEN_BACK.split(after_thoughts(response).translate(_PLAIN))[-1]
    for pattern, written in _READ_AS:
        text = pattern.sub(written, text)
    text = without_points(text)
    before, closed, _ = text.rpartition("</answer>")
    _, tag, tagged = before.rpartition("<answer>")
    return tagged.strip() if closed and tag else text


LONGEST_STATEMENT, MOST_STATEMENTS = 2_500, 100  # characters read after "the answer is"; phrases tried
_SEVERAL = re.compile(r", | or ")
_HASH = re.compile(r"####[ \t]*([^\n]+)")
_GOES_ON = re.compile(r"(?<![\\$])\$(?![\s$])([^$\n]+?)(?<![\s\\])\$(?=\s*[=+*/^]|[A-Za-z\d])")  # `$2x$ + 1`
# Three digits behind a comma would be thousands elsewhere: they are left as they stand.
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+),(\d{1,2}|\d{4,}|(?<=\b0,)\d{3})(?![\d,]|[^()[\]]{0,60}[)\]])"
)
# Points of thousands: several, in front of euros, or a last digit that no decimal number would have.
_POINTS = re.compile(
    r"(?<![\d.,])[1-9]\d{0,2}(?:(?:\.\d{3}){2,}|\.\d\d0|\.\d{3}(?=\s?euros?\b))(?![.,]?\d)", re.IGNORECASE
)
_LIST_LETTER = re.compile(r"(?<=[\d$}]) [yoeи] (?=(?:[a-z] ?= ?)?[-\d$\\]|non?\b|não\b)")
_NUMBER_IN_TEXT = re.compile(
    rf"(?<![A-Za-z0-9_.:\\])(?P<sign>(?:(?<![\w)\]}}])|(?<=[\u0900-\ufeff]))[-−–]\s?|(?<![\d)]\s)\b(?i:{words.MINUS})\s)?"
    rf"(?P<money>\\?[$€£¥₹])?(?P<body>\\[dt]?frac\{{-?\d+\}}\{{\d+\}}|\d+(?::\d+)+|(?:{DECIMAL})(?:\s*/\s*\d+(?![\d/]))?)(?P<percent>\s?\\?%|\sper\s?cent\b)?"
)
_SENTENCE_END = re.compile(
    r"(?<=\d)[.](?=\s|$)|(?<![\d.])[.](?=\s|$|[*_]*$)|[.](?=\s+[A-Z]|$)|[?](?=\s|$)|(?:(?<=[a-z]{2})|(?<=[\s*_%°]))!(?=\s|$)|(?<!!)!{3,}(?=\s|$)|\n|[。！？]"
)
_CLAUSE_END = re.compile(rf"[,;:—，；：、]|\b(?:so|then|therefore|thus|hence|and|but)\b|{_SENTENCE_END.pattern}")
_LEAD = re.compile(
    r"\A(?:[$\\(]*(?:that|therefore|simply|just|thus|indeed|exactly|precisely|equal to|approximately|about|around|"
    r"roughly|given by|the number|a total of|found to be|clearly|then|so|actually|really|now|also|still|obviously"
    r"|equals|[A-Za-z][$\\)]*\s(?:is|equals)|la(?=\s[A-J]\b)|(?:la\s)?opci[oó]n|op[cç][aã]o)\b"
    r"[\s,:]*|[:：=\s\"'`]+|\*+(?=\s*\S)|约)+",
    re.IGNORECASE,
)
_MINUS = re.compile(rf"(?:{words.MINUS})\s*(?=[\d.$\\(])", re.IGNORECASE)
_CHOSEN = re.compile(r"\A([A-J])(?:[):]\s+(?=[-$\\]?[\d\\])|\.\s+(?=[-$\\\d.,]+\s*(?:\n|\Z)))")
_RANGE = re.compile(r"\s*\d[\d.,]*\s?–\s?\d[\d.,]*\s*\D*")
_POINT = re.compile(r"(?<![A-Za-z\d])([(\[{](?=[^()\[\]{}]*,)[-−\d\s.,/]*[)\]}])")
_SECOND_VALUE = re.compile(
    rf"(?:\s*[^\W\d_]+){{0,3}}?\s*(?:[,;]\s*)?(?:(?:{words.TO})\s*(?!{words.DENIED.pattern})"
    rf"(?:{words.OPEN.pattern}|\w+\s)?|\(?(?:maybe|perhaps|possibly)\s)\s*(?:[$€£]\s?)?\\?[\d$](?![^,.;\n]{{0,60}}=)",
    re.IGNORECASE,
)
# A name, a day, yes or no in front of a remark, whose numbers are not the answer.
_NAMED = re.compile(r"(?:(?i:yes|no|true|false)|[A-Z][a-z]+)(?=[*_]*(?:\s*[,;(]|\s(?:because|since|as|who|which)\b))")
_EQUALS = re.compile(
    r"(?:(?:(?<=[A-Za-z]\$)|(?<=[A-Za-z]\\\)))\s(?:is|equals)\s|.*(?:(?:which|that)\s+(?:is|equals)\s|=))(.*)"
)
# A calculation whose result follows: `90% of 20 = 18`, `6 hours × $3/hour = $18`, `2x = 36, so x = 18`.
_CALCULATED = re.compile(
    r"\s*(?:[^\W\d_]+(?:/[^\W\d_]+)?\s)?(?:[-+×*÷/]|of)\s(?=\(?[\d$\\.])[^=,;:\n]*=|,?\s*(?:so|→|⇒|⟹)\s*[A-Za-z]\s*="
)
# `The roots are 2 and 3, so their sum is 5.`
_EARLY = re.compile(r"(?is)(?:solutions|roots)\b.*?\d.*\b(?:so|thus|therefore|hence|finally)\b[^\n]{0,80}\d")
_RELATIVE = re.compile(r"\b(?:that|which|who)\s\w+n['’]t\s\w+(?=\s\w)")  # `those that don't work`
_REASON = re.compile(
    r"(?i),(?=\s(?!or\b|and\b|maybe\b|perhaps\b))|,?\s+(?:because|since|as|in\s(?:all|total)|altogether|overall|left|remaining|of\s(?:them|those))\b"
)


def hashed(text: str) -> Statement | None:
    """The rest of the line after the last `####`, the convention of GSM8K; None without one."""
    found = list(_HASH.finditer(text))
    line = found[-1][1].strip() if found else ""
    if not line or (re.match(r"[*_]*[^\W\d_]{2}", line) and text[found[-1].end() :].strip() and phrased(line) is None):
        return None
    return (phrased(line) or in_sentence(line) or Statement(None)) if has_prose(line) else Statement(line)


def phrased(text: str) -> Statement | None:
    """Read the last complete sentence such as "the answer is ..."; None without one."""
    denied = None
    for match in list(words.ANSWER_IS.finditer(text))[: -MOST_STATEMENTS - 1 : -1]:
        rest = text[match.end() : match.end() + LONGEST_STATEMENT].lstrip()
        if not rest or words.JUDGED.match(rest) or _EARLY.match(match[0] + rest):
            continue
        if match.lastgroup in words.WITH_DECIMAL_COMMA:
            rest = _DECIMAL_COMMA.sub(lambda found: f"{found[1].replace('.', '')}.{found[2]}", rest)
            rest = _POINTS.sub(lambda found: found[0].replace(".", ""), rest)
            rest = _LIST_LETTER.sub(" and ", rest)
        before = _RELATIVE.sub("", _CLAUSE_END.split(text[max(0, match.start() - 120) : match.start()])[-1])
        told = _told(before, match[0], rest)
        if told is not None:
            return told
        denied = Statement(None)
    return denied


def _told(before: str, phrase: str, rest: str) -> Statement | None:
    """Read a sentence by its phrase and the text around it; None if it denies, supposes or asks."""
    end = len(_sentence(rest))
    doubtful = (
        words.DENIED.search(before + phrase) or words.SUPPOSED.search(before) or rest[end : end + 1] in ("?", "？")
    )
    told = None if doubtful else in_sentence(rest)
    if told is not None:
        return told
    correction = words.CORRECTED.search(rest, 0, end + 10)
    return None if correction is None else in_sentence(rest[correction.end() :])


def in_sentence(rest: str) -> Statement | None:
    """Read a text up to the end of its sentence: an answer, or that it is open; None if it denies one."""
    rest = _CHOSEN.sub(r"(\1) ", _MINUS.sub("-", _GOES_ON.sub(r"\1", _LEAD.sub("", rest)), count=1))
    sentence = _sentence(rest)
    if words.DENIED.match(rest):
        return None
    answers, end = values_at(rest, len(sentence))
    if not answers:
        return _in_words(sentence)
    calculated = _CALCULATED.match(rest, end, max(end, len(sentence)))
    if calculated is not None:
        return in_sentence(rest[calculated.end() :])
    behind = rest[end : max(end, len(sentence)) + len(". It could well be 5")]
    if words.DENIED_BEHIND.match(behind):
        return None
    second = None if _SEVERAL.search(answers) else _SECOND_VALUE.match(rest[end : len(sentence)])
    is_open = words.OPEN_BEHIND.match(behind) or words.UNDECIDED.match(rest, end) or _RANGE.fullmatch(answers) or second
    return Statement(None if is_open else answers)


def _in_words(sentence: str) -> Statement | None:
    """Read a sentence that begins with words: its formula or number, or the words if it has none."""
    if (named := _NAMED.match(sentence)) is not None:
        return Statement(named[0])
    first = next((found for sign in (FORMULA, _POINT, _NUMBER_IN_TEXT) for found in sign.finditer(sentence)), None)
    if first is None:
        said = _REASON.split(sentence)[0] if leading_number(sentence) is not None else sentence
        return Statement(None if words.OPEN.match(sentence) else said.strip(" .*_\"'`"))
    before = re.split("[,;:，；：]", sentence[: first.start()])[-1]
    if words.DENIED.search(before):
        return None
    if words.OPEN.search(before) or words.OPEN.match(sentence):
        return Statement(None)
    if words.OPERATED.search(before):  # `half of 14, which is 7`
        return in_sentence(which[1]) if (which := _EQUALS.match(sentence, first.end())) else Statement(None)
    found = value_at(sentence, first.start(), len(sentence))
    if found is None:
        return Statement(content_of(first) if first.re is FORMULA else _number(first))
    answer, end = found
    which = _EQUALS.match(sentence, end)
    if which is not None:
        return in_sentence(which[1])
    is_open = any(sign.match(sentence, end) for sign in (words.OPEN_BEHIND, words.UNDECIDED, _SECOND_VALUE))
    return Statement(None if is_open else answer)


def _sentence(rest: str) -> str:
    """The text up to the end of its sentence, which is never inside a formula."""
    position = 0
    while True:
        end = _SENTENCE_END.search(rest, position)
        if end is None:
            return rest
        inside = next((found for found in FORMULA.finditer(rest) if found.start() < end.start() < found.end()), None)
        if inside is None:
            return rest[: end.start()]
        position = inside.end()


def _number(match: re.Match[str]) -> str:
    return f"{'-' if match['sign'] else ''}{match['body'].rstrip('.,')}{'%' if match['percent'] else ''}"


SHORT_ANSWER = 200
_NAME = re.compile(r"[*_]*[^\W\d_]+(?:[ -][^\W\d_]+){0,2}[.!]?[*_]*")


def whole(text: str) -> Statement | None:
    """The response itself, if it is short and says nothing else: `72`, `x = 5`, `(3, \\frac{\\pi}{2})`, `Yes`."""
    text = text.strip().strip("'\"")
    if not text or len(text) > SHORT_ANSWER or "\n" in text:
        return None
    if not has_prose(text):
        return Statement(text)
    is_name = _NAME.fullmatch(text) is not None
    is_value = re.search(r"\d", text) is not None and expression_end(text, len(text)) == len(text)
    return Statement(text) if is_name or is_value else None


_NOT_LAST = re.compile(
    rf"(?:{words.DENIED.pattern}|{words.OPEN.pattern}|\A\s*(?:if|suppose|assume)\b|\b(?:half|third|square|cube|root)\sof)"
    rf"(?:\s+(?!(?:is|are)\b|{words.CORRECTED.pattern})\w+){{0,2}}\s*=?\s*[$\\(]*"
    r"(?:是|为)?$|[^=+*/\s-]\s\d+[-–]$|\d\s(?:to|if\s[^,.\n]{1,40},)\s$",
    re.IGNORECASE,
)
_CONTRAST = re.compile(rf"(?:,\s*(?:and\s)?not|{words.CONTRAST})\s[$\\(]*[-−]?\d[\d.,:/]*\b[$\\)]*", re.IGNORECASE)
_SAYS = re.compile(r"(?:\b(?:is|are|equals?|get|obtain|have|(?i:thus|hence|therefore|so),?)|:)\s*$")
_LISTED = re.compile(rf"\d,\d|{words.AND_WORDS}", re.IGNORECASE)
_REMARK = re.compile(
    r"(\d[%$]?(?: [a-z]+)?) \((?!or|maybe|perhaps|possib|un|not)[^()\n]{0,60}[a-z]{2}[^()\n]*\)[\s.!*]*$"
)
_BEGINS = re.compile(r"(?:^|(?<=[\s(])|(?<=[\u0900-\uffff]))(?=[^\s,;:.+/×÷)\]<>])")
# No expression: a letter and a number (`a 5`), or two numbers side by side (`in 2024 30`).
_BROKEN = re.compile(r"(?<![A-Za-z\\\d])(?<!\d\s)[A-Za-z]\s+[\d$]|\d\s+(?!\d{3}(?!\d))\d+(?![\d\s]*/)")
_IN_LETTERS = re.compile(r"[^=]*(?:(?<![A-Za-z])[A-Za-z](?![A-Za-z])|\\[A-Za-z]|\|)[^=]*=|[^=]*$")
_ASKED = re.compile(r"[^.!\n]{0,60}[?？]\s*")
_NO_NUMBER = re.compile(
    r"\b(?:no (?:real )?solutions?|infinitely many)\b"
    r"|\A\s*(?i:yes|no|true|false)(?=[,;](?!.*\b(?:or|maybe|perhaps|not?|sure)\b))"
)
# What somebody has, `#`, and what is said in front of the last number.
_ASIDE = re.compile(
    r"(?:\b(?:has|have|is|are|makes?|earns?|gets?|pays?|spends?|saves?|needs?|costs?|keeps?)\s(?:(?:still|now|only|exactly)\s)?|=\s?)"
    r"#[^\n.!?,;:=]*\s(?:(?:after|by|for)\s[a-z]+ing\b(?:\s[a-z]+){0,2}|for(?:\s(?:the|all))?)\s\Z"
    r"|#[$\\)\s]*(?:when|upon|after|on)\s(?:\w+\s){0,3}?(?:divided|division)\sby\s[$\\(]*\Z"
    r"|\b(?i:so|thus|therefore|hence),?\sthere\s(?:are|is)\s(?:[^\n.]{0,80}=\s?|(?:exactly|only|a\stotal\sof)\s)?[\\(]*"
    r"#(?![^\n]*\b(?:and|or|th[ae]n)\b)[^\n.!?,;:=]*(?<!\bto\s)\Z"
)
_THINGS = re.compile(r"(?:\s(?!(?:he|she|it|they|we|you|I|is|are|has|have|was|were|and|or)\b)\w+){0,4}[$\\).!*\s]*")


def last(text: str) -> Statement | None:
    """The last number in a text with its expression or list, or the formula that the text ends with."""
    text = _REMARK.sub(r"\1", _MINUS.sub("-", _CONTRAST.sub("", text)))  # `7, not 8`, `$45 (3 books at $15)`
    formulas = list(FORMULA.finditer(text))
    closing = formulas[-1] if formulas and not text[formulas[-1].end() :].strip(" .*") else None
    final = _telling(text)
    if closing is not None and (final is None or final.start() < closing.start()):
        final = closing if re.search(r"=|\\text", closing[0]) or _SAYS.search(text, 0, closing.start()) else final
    if final is None:
        sentence = next(filter(str.strip, reversed(_SENTENCE_END.split(text))), "")
        if (told := _NO_NUMBER.search(sentence)) is not None:
            return Statement(told[0])
        spelt = in_digits(sentence)
        return None if spelt == sentence or text.rstrip(" *_").endswith("?") else last(spelt)
    inside = (
        found for found in formulas if found.start() < final.end() <= found.end() and not has_prose(content_of(found))
    )
    place, end = next(inside, final).span()
    begins = next((found.end() for found in formulas if found.start() < place - 120 < found.end()), 0)
    before = _SENTENCE_END.split(text[max(begins, place - 120) : place])[-1]
    behind = text[end : end + 60].lstrip("$\\)]*_}")
    is_open = any(sign.match(behind) for sign in (words.DENIED_BEHIND, words.OPEN_BEHIND, words.UNDECIDED))
    if is_open or _NOT_LAST.search(before) or _ASKED.fullmatch(text, end):
        return Statement(None)
    sentence = before + text[place:end] + _SENTENCE_END.split(text[end : end + 60])[0]
    return Statement(_around(sentence, len(before), len(before) + end - place))


def _around(sentence: str, start: int, stop: int) -> str | None:
    """Read the longest expression or list that holds a part of a sentence; None without one."""
    for begins in (*(found.start() for found in _BEGINS.finditer(sentence, 0, start)), start):
        rest = sentence[begins:]
        values, length = values_at(rest if "\\begin" in rest else rest.replace("&", " "), len(rest))
        if length < stop - begins or ("\\" not in values and _BROKEN.search(values)):
            continue
        alone = value_at(sentence, begins, len(sentence))
        if alone is not None and alone[1] == begins + length:
            return values if _IN_LETTERS.match(values) else values.rpartition("=")[2]
        items = _SEVERAL.split(values)
        named = [re.fullmatch(r"\\?[A-Za-z]\w*\s*=[^=]*", item) for item in items if "=" in item]
        listed = named or _SAYS.search(sentence, 0, begins) or _LISTED.search(sentence, begins, begins + length)
        if listed and all(named) and all(re.search(r"[\d∞\\]", item) for item in items):
            return values
    return None


def _telling(text: str) -> re.Match[str] | None:
    """Find the number that a text ends with, or the one before it if the text says what is left: `has $18 left after
    buying 3 books`. None without any number."""
    numbers = list(_NUMBER_IN_TEXT.finditer(text))
    if len(numbers) < 2:
        return numbers[0] if numbers else None
    had, final = numbers[-2:]
    clause = _SENTENCE_END.split(text[max(0, had.start() - 120) : had.start()])[-1]
    is_aside = _ASIDE.search(f"{clause}#{text[had.end() : final.start()]}")
    is_part = text.startswith((" of which", " of whom"), final.end())
    return had if is_part or (is_aside and _THINGS.fullmatch(text, final.end())) else final
