"""What a response says its answer is.

Places are tried in this order: the last `\\boxed{}`, the last `####`, the last sentence such as "the answer is ...",
the whole response if it is only an answer, the last formula or number. The first place that says anything decides,
right or wrong, so that a response cannot hedge with several answers. A sentence that denies, bounds or leaves open what
the answer is has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from burnish.rewards.builtins.expressions import MATH_WORDS
from burnish.rewards.builtins.reading_rows import after_thoughts
from burnish.rewards.builtins.units import SCALES, UNITS


@dataclass(frozen=True, slots=True)
class Statement:
    """A place that says what the answer is. answer: None if it names no single one."""

    answer: str | None


SHORT_ANSWER = 200
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*(\{|[^\s{])")
_HASH = re.compile(r"####[ \t]*([^\n]+)")
_ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# Repeats are bounded, and formulas may not contain their own opening sign. Otherwise some responses would make these
# expressions take quadratic time or worse.
_MARK = r"[*_\"'`]{0,3}"
_PHRASE = re.compile(
    rf"""(?:
      \b(?:answers?|solutions(?=\s[^.\n]{{0,60}}\bare\b)|roots(?=\s[^.\n]{{0,60}}\bare\b))\b(?:\s(?:to|for|of)\s[^.\n:=]{{1,60}}?)?{_MARK}\s{{0,3}}
        (?:is|are|equals|was|=|:|would\sbe|must\sbe|comes\sout\sto(?:\sbe)?)
    | (?:答案|答え|解答|正解|結果|结果|答)\s{{0,2}}{_MARK}\s{{0,2}}
        (?:应该是|應該是|应为|應為|等于|等於|[是为為はが：:=]|(?=[\s\d$\\-]))
    | (?:الإجابة|الجواب|الاجابة)(?:\sالنهائية|\sالنهائي|\sالصحيحة)?\s{{0,2}}(?:هي|هو|:|=|تساوي)
    | उत्तर\s{{0,2}}(?:है|:|=)?
    | (?:정답|답|결과)\s{{0,2}}{_MARK}\s{{0,2}}(?:은|는|이|:|：)
    | (?P<comma> \b[Оо]твет(?:ом)?\b{_MARK}\s{{0,2}}(?::|—|–|-|=|равен|это|будет|является)
    | \b(?:respuesta|soluci[oó]n)(?:\sfinal|\scorrecta)?{_MARK}\s{{0,2}}(?:es|:|=|ser[ií]a)
    | \br[ée]ponse(?:\sfinale|\scorrecte)?{_MARK}\s{{0,2}}(?:est|:|=)
    | \b(?:Antwort|Lösung|L\u00f6sung)(?:\s(?:auf|zu)\s[^.\n:]{{1,40}}?)?{_MARK}\s{{0,2}}(?:lautet|ist|beträgt|:|=)
    | \b(?:resposta|risposta)(?:\sfinal|\sfinale|\scorreta|\scorretta)?{_MARK}\s{{0,2}}(?:[ée]|è|:|=|ser[ií]a)
    | \b(?:đáp\sán|câu\strả\slời)\s{{0,2}}(?:là|:|=) | \bcevap\s{{0,2}}:?)
    )(?=[\s\W\d]|[^\x00-\x7f]|$){_MARK}\s{{0,3}}:?{_MARK}\s{{0,3}}""",
    re.IGNORECASE | re.VERBOSE,
)
_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$])\$((?:\\\$|[^$\n])+?)(?<!\\)\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]",
    re.DOTALL,
)
DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
# Three digits behind a comma would be thousands elsewhere: they are left as they stand.
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+),(\d{1,2}|\d{4,})(?![\d,])")
_NUMBER_IN_TEXT = re.compile(
    rf"(?<![A-Za-z0-9_.\\])(?P<sign>(?<![\w)\]}}])[-−–]\s?)?(?P<money>\\?[$€£¥₹])?(?P<body>\\[dt]?frac\{{-?\d+\}}\{{\d+\}}|"
    rf"(?:{DECIMAL})(?:\s*/\s*\d+(?![\d/]))?)(?P<percent>\s?\\?%)?"
)
_PROSE = re.compile(
    rf"(?<![\\A-Za-z{{])(?!(?:{'|'.join(sorted(MATH_WORDS))})\b)[A-Za-z]{{2,}}|[^\x00-\x7fα-ωΑ-Ω\W\d_°²³¹⁰-⁹½¼¾]"
)
_WORDS_IN_FORMULA = re.compile(r"\\(?:text|mbox|mathrm|textbf|operatorname|begin|end)\s*\{[^{}]*\}")
_SENTENCE_END = re.compile(
    r"(?<=\d)[.](?=\s|$)|(?<![\d.])[.](?=\s|$|[*_]*$)|[.](?=\s+[A-Z]|$)|[?](?=\s|$)|(?<=[a-z])!(?=\s|$)|\n|[。！？]"
)
_DENIED = re.compile(
    r"\b(?:not|never|neither|cannot|no longer|no es|n'est pas|pas|nicht|kein|não)\b|n['’]t\b|"
    r"不是|并非|ではな|아니|\bне\b|ليس",
    re.IGNORECASE,
)
_CORRECTED = re.compile(
    r"\b(?:but|rather|instead)\b[\s,:]*|[,;:—–]\s*it(?:'s|’s| is)\b\s*|sondern\s|而是|\bsino\s|\bа\s"
)
_NOT_LAST = re.compile(
    rf"(?:{_DENIED.pattern}|\bat least|\bat most|\bbetween|\b(?:more|less) than)(?:\s+\w+){{0,2}}\s*[$\\(]*$",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"\b(?:between|at least|at most|(?:more|less|fewer|greater|smaller|larger|higher|lower) than|up to|no more than|"
    r"under|over|above|below|maybe|perhaps|possibly|either|somewhere|could be|might be|may be|unknown|unclear|"
    r"anything|any of)\b|介于|至少|至多|大于|小于|或许|可能",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"(?:(?:that|therefore|simply|just|thus|indeed|exactly|precisely|equal to|approximately|about|around|roughly|"
    r"given by|the number|a total of|found to be|clearly|then|so|actually|really|now|also|still|obviously|equals)\b"
    r"[\s,:]*|[:=\s\"'`]+|\*+(?=\s*\S)|约)+",
    re.IGNORECASE,
)
_LIST_SIGN = re.compile(r"\s*(?:,\s*(?:and|or)\b|,|;|、|\band\b|\bor\b|和|或|и|или|y|et|und|oder|ou)\s*", re.IGNORECASE)
_TOKEN = re.compile(
    rf"""\s*(?:
      \d{{1,2}}:\d{{2}}\s?[ap]\.?m\b\.? | \\begin\s*\{{[a-zA-Z]*matrix\}}.*?\\end\s*\{{[a-zA-Z]*matrix\}}
    | \d+\s(?:out\sof|in)\s\d+(?![\d.,]?\d)
    | \d+(?:\s?:\s?\d+)+ | \d{{1,3}}(?:[ \u00a0\u202f]\d{{3}})+(?!\d) | (?:{DECIMAL})(?:[eE][-+]?\d+)? | [½⅓⅔¼¾⅛⅜⅝⅞]
    | \\(?:text|mbox|mathrm|textbf)\s*\{{[^{{}}]*\}} | \\[A-Za-z]+ | \\[%${{}},;!: \\]
    | (?:{"|".join(sorted(MATH_WORDS))})(?![A-Za-z])
    | [-+*/^_=!%()\[\]{{}}|<>≤≥±×÷·√π∞°²³⁰¹⁴⁵⁶⁷⁸⁹−–&'] | [$€£¥₹](?=\s*[-\d.(\\])
    | [x](?=\s*\d) | [A-Za-zα-ω](?![A-Za-z])
    )""",
    re.VERBOSE | re.DOTALL,
)
_PRODUCT = re.compile(
    r"\s*(?!(?:is|an|of|in|or|to|by|so|as|at|if|we|he|it|on|no|be|do|my|up|us|am|pm)\b)[A-Za-z]{2,3}(?![A-Za-z])"
)
_UPPER = re.compile(r"\s*(?:[A-Z]{2,4}|[b-df-hj-np-tv-z]{2,3})(?![A-Za-z])")
_UNIT_WORD = re.compile(r"\s*(?:(?P<sign>/|per\b|%|°)|(?P<word>[^\W\d_]+)(?:\^\{?\d\}?|[²³])?)")
_SMALLER_UNIT = re.compile(r"\s+\d+(?:\.\d+)?(?=\s*[A-Za-z])")
_CLOCK_WORD = re.compile(r"\s*[ap]\.?\s?m\b\.?", re.IGNORECASE)


def boxed(text: str) -> Statement | None:
    """The content of the last `\\boxed{...}` that is closed (or of `\\boxed 5`); of several in a row all of them."""
    ends = _ends_of_braces(text)
    boxes = [box for found in _BOXED.finditer(text) if (box := _in_box(text, found, ends)) is not None]
    if not boxes:
        return None
    begins, content, _ = boxes[-1]
    said = [content]
    for start, content, end in reversed(boxes[:-1]):
        between = text[end:begins]
        if end > begins or not re.fullmatch(
            r"[\s$\\()]*(?:,|and|or|,\s*(?:and|or))[\s$\\()]*(?:[a-z]\s*=\s*)?", between
        ):
            break
        said.insert(0, content)
        begins = start
    return Statement(", ".join(said))


def _in_box(text: str, match: re.Match[str], ends: Mapping[int, int]) -> tuple[int, str, int] | None:
    """Where a box begins, what it holds, and where it ends; None if the response was cut off before that."""
    if match[1] != "{":
        return match.start(), match[1], match.end()
    end = ends.get(match.end() - 1)
    return None if end is None else (match.start(), text[match.end() : end].strip(), end + 1)


def _ends_of_braces(text: str) -> dict[int, int]:
    """Where each brace that is opened is closed again."""
    opened: list[int] = []
    ends = {}
    for position, letter in enumerate(text):
        if letter in "{}" and text[position - 1 : position] != "\\":
            if letter == "{":
                opened.append(position)
            elif opened:
                ends[opened.pop()] = position
    return ends


def hashed(text: str) -> Statement | None:
    """The rest of the line after the last `####`, the convention of GSM8K; None without one."""
    found = _HASH.findall(text)
    return Statement(found[-1].strip()) if found else None


def phrased(text: str) -> Statement | None:
    """What the last complete sentence such as "the answer is ..." says; None without one."""
    statement: Statement | None = None
    for match in reversed(list(_PHRASE.finditer(text))):
        rest = text[match.end() :].lstrip()
        if match["comma"]:
            rest = _DECIMAL_COMMA.sub(lambda found: f"{found[1].replace('.', '')}.{found[2]}", rest)
        before = _SENTENCE_END.split(text[max(0, match.start() - 120) : match.start()])[-1]
        if not rest:
            continue
        if _DENIED.search(before):
            statement = Statement(None)
            continue
        answer = in_sentence(rest)
        if answer is None and _DENIED.match(_without_lead(rest)):
            corrected = _CORRECTED.search(_sentence(rest))
            statement = Statement(None if corrected is None else in_sentence(rest[corrected.end() :]))
            if statement.answer is None:
                continue
            return statement
        return Statement(answer)
    return statement


def in_sentence(rest: str) -> str | None:
    """The answer that a text begins with, up to the end of its sentence; None if it names no single one."""
    rest = _without_lead(rest)
    formula = _FORMULA.match(rest)
    sentence = _sentence(rest)
    if formula is None and not _expression_end(rest, len(sentence)):
        return _in_words(sentence)
    answers, position = [], 0
    while True:
        found = _one(rest, position, len(sentence))
        if found is None:
            break
        answer, position = found
        answers.append(answer)
        sign = _LIST_SIGN.match(rest, position, max(position, len(sentence)))
        if sign is None:
            break
        if _DENIED.match(rest[sign.end() :]):
            break
        if _OPEN.match(rest[sign.end() :]) or re.match(r"\s*(?:more|less|fewer)\b", rest[sign.end() :]):
            return None
        if _one(rest, sign.end(), len(sentence)) is None:
            break
        position = sign.end()
    if len(answers) == 1 and _another(rest[position : len(sentence)]):
        return None
    return ", ".join(answers) if answers else None


def _without_lead(rest: str) -> str:
    lead = _LEAD.match(rest)
    return rest if lead is None else rest[lead.end() :]


def _sentence(rest: str) -> str:
    """Up to the end of the sentence, which is not inside of a formula."""
    position = 0
    while True:
        end = _SENTENCE_END.search(rest, position)
        if end is None:
            return rest
        inside = next((found for found in _FORMULA.finditer(rest) if found.start() < end.start() < found.end()), None)
        if inside is None:
            return rest[: end.start()]
        position = inside.end()


def _one(text: str, start: int, end: int) -> tuple[str, int] | None:
    """An answer at a place of a sentence: a formula or an expression, with its unit; and where it ends."""
    space = len(text[start:]) - len(text[start:].lstrip())
    formula = _FORMULA.match(text, start + space)
    if formula is not None and not _has_prose(_content(formula)):
        said, position = _content(formula), formula.end()
    else:
        length = _expression_end(text[start:end], end - start)
        if not length:
            return None
        said, position = text[start : start + length].strip(), start + length
    unit = _unit_end(text, position)
    while unit > position and (smaller := _SMALLER_UNIT.match(text, unit)) is not None:  # `3 hours 20 minutes`
        further = _unit_end(text, smaller.end())
        if further == smaller.end():
            break
        unit = further
    words = text[position:unit].strip()
    return (f"{said} {words}" if words else said), unit


def _expression_end(text: str, limit: int) -> int:
    """How far a text is an expression; 0 if it begins with none that has a digit, a sign or a command."""
    position, depth, last, telling = 0, 0, 0, False
    while position < limit:
        match = _TOKEN.match(text, position, limit)
        if match is None:
            match = (_PRODUCT if depth else _UPPER).match(text, position, limit)
            if match is None and depth and text[position] in ",;":
                position += 1
                continue
            if match is None:
                break
        sign = match[0].strip()
        if sign in ("a", "A", "I", "s") and re.match(r"\s+[A-Za-z]{2}", text[match.end() :]) and not depth:
            break
        depth += (
            sign.count("(") + sign.count("[") + sign.count("{") - sign.count(")") - sign.count("]") - sign.count("}")
        )
        position = match.end()
        telling = telling or not sign.isalpha() or len(sign) == 1 or sign.isupper() or sign in MATH_WORDS
        if not re.fullmatch(r"[-+*/^_=(\[{<>×÷·−–]|\\(?:times|cdot|div|text|approx)", sign):
            last = position
    return last if telling and last and text[:last].strip(" -–'*_") else 0


def _unit_end(text: str, position: int) -> int:
    """The end of the words behind a value that say its unit or its scale."""
    clock = _CLOCK_WORD.match(text, position)
    if clock is not None:
        return clock.end()
    end = position
    while True:
        match = _UNIT_WORD.match(text, end)
        if match is None:
            return end
        word = match["word"]
        known = word is None or word in SCALES or word.casefold() in SCALES or word in UNITS or word.casefold() in UNITS
        if not known and word not in ("square", "cubic"):
            return end
        if word is not None and len(word) == 1 and not re.match(r"\s", text[end : end + 1] or "x"):
            return end
        if word is None and match["sign"] == "/" and not re.match(r"/\s?[A-Za-z]", text[match.start("sign") :]):
            return end
        end = match.end()


def _another(rest: str) -> bool:
    """Whether a second value follows that is as good as the first: `5 apples and 6 pears`, `5 to 6`."""
    follows = re.match(
        r"(?:\s+[^\W\d_]+){0,3}\s*(?:,\s*)?(?:\band\b|\bor\b|\bto\b|\band/or\b|-)\s+(?:maybe|perhaps|possibly|\w+\s+)?\s*(?:[$€£]\s?)?\\?[\d$]",
        rest,
    )
    return (
        follows is not None
        or re.match(r"\s*(?:or|and)\s+(?:maybe|perhaps|possibly|more|less)\b|\s*≈|\s*\?", rest) is not None
    )


def _in_words(sentence: str) -> str | None:
    """The answer of a sentence that begins with words: its formula or number, or the words if it has none."""
    position = 0
    for match in [*_FORMULA.finditer(sentence), *_NUMBER_IN_TEXT.finditer(sentence)]:
        position = match.start()
        break
    else:
        said = sentence.strip(" .*_\"'`")
        return None if _DENIED.match(said) or _OPEN.match(said) else said
    before = sentence[:position]
    if _DENIED.search(before) or _OPEN.search(before):
        return None
    found = _one(sentence, position, len(sentence))
    if found is None:
        return first_number(sentence)
    answer, end = found
    which = re.search(r"(?:which|that)\s+(?:is|equals)\s+(.*)|=\s*(.*)", sentence[end:])
    if which is not None:
        return in_sentence(which[1] or which[2] or "")
    return None if _another(sentence[end:]) else answer


def whole(text: str) -> Statement | None:
    """The response itself, if it is short and says nothing else: `72`, `x = 5`, `(3, \\frac{\\pi}{2})`, `Yes`."""
    text = text.strip()
    if not text or len(text) > SHORT_ANSWER or "\n" in text:
        return None
    if not _has_prose(text):
        return Statement(text)
    is_name = re.fullmatch(r"[^\W\d_]+(?:[ -][^\W\d_]+){0,2}\.?", text) is not None
    return (
        Statement(text)
        if is_name or (re.search(r"\d", text) and _expression_end(text, len(text)) == len(text))
        else None
    )


def last(text: str) -> Statement | None:
    """The last number in a text, or the formula that contains it."""
    numbers = list(_NUMBER_IN_TEXT.finditer(text))
    if not numbers:
        return None
    final = numbers[-1]
    before = _SENTENCE_END.split(text[max(0, final.start() - 60) : final.start()])[-1]
    if _NOT_LAST.search(before):
        return Statement(None)
    for formula in _FORMULA.finditer(text):
        if formula.start() <= final.start("body") < formula.end() and not _PROSE.search(_content(formula)):
            return Statement(_content(formula))
    return Statement(_number(final))


def first_number(text: str) -> str | None:
    """The first number in a text; None without one."""
    match = _NUMBER_IN_TEXT.search(text)
    return None if match is None else _number(match)


def said(response: str) -> str:
    """What a response says after its thoughts: what is in its last `<answer>` tags, or all of it."""
    text = after_thoughts(response)
    tagged = _ANSWER_TAGS.findall(text)
    return tagged[-1].strip() if tagged else text


def _has_prose(text: str) -> bool:
    return _PROSE.search(_LIST_SIGN.sub(", ", _WORDS_IN_FORMULA.sub("", text))) is not None


def _number(match: re.Match[str]) -> str:
    return f"{'-' if match['sign'] else ''}{match['body'].rstrip('.,')}{'%' if match['percent'] else ''}"


def _content(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None).strip()
