"""Numbers in words: `twenty-three`, `two dozen`, `minus four`, `a hundred and five`, `three quarters`, `三十二`; from 0
to 100 also in German, Spanish and French: `fünfundzwanzig`, `treinta y uno`, `quatre-vingt-onze`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from burnish.rewards.builtins.answer_words import MINUS

_UNDER_TWENTY = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_COUNTS = {
    "a": 1,
    **{word: number for number, word in enumerate(_UNDER_TWENTY.split())},
    **dict(zip(_TENS.split("|"), range(20, 100, 10), strict=True)),
}
_LARGE = {"dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_HALF_OF = re.compile(r"half (?:of )?(?=an? )", re.IGNORECASE)
_ORDINALS = ("half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_PARTS = {word: number for number, word in enumerate(_ORDINALS, 2)}
_PARTS |= {"fourth": 4, "halves": 2, "hundredth": 100, "thousandth": 1000}
_ONES = "|".join(_UNDER_TWENTY.split()[1:10])
_UNDER_100 = rf"(?:(?:{_TENS})(?:[\s-](?:{_ONES}))?|{'|'.join(_UNDER_TWENTY.split())})\b"
_UNDER_1000 = rf"(?:(?:a|{_ONES})[\s-]hundred\b(?:\s(?:and\s)?{_UNDER_100})?|{_UNDER_100})"
_NUMBER = rf"(?:(?:{_UNDER_1000}|a)[\s-](?:{'|'.join(_LARGE)})\b(?:,?\s(?:and\s)?)?)*(?:{_UNDER_1000})?"
_IN_ENGLISH = re.compile(
    rf"(?P<number>a(?=[\s-](?:{'|'.join(_PARTS)})\b)|{_NUMBER})(?:(?<=\w)[\s-](?P<part>{'|'.join(_PARTS)})s?\b"
    rf"|(?<=\w)\sand\s(?P<top>a|{_ONES})[\s-](?P<bottom>{'|'.join(_PARTS)})s?\b(?:\s(?P<large>{'|'.join(_LARGE)})\b)?"
    rf"|(?<=\w)\spoint(?P<decimals>(?:\s(?:zero|{_ONES})\b)+))?",
    re.IGNORECASE,
)
_DIGITS = {**{sign: value for value, sign in enumerate("零一二三四五六七八九")}, "两": 2, "〇": 0}
_POWERS = {"十": 10, "百": 100, "千": 1000}
_IN_CHINESE = re.compile(rf"[{''.join([*_DIGITS, *_POWERS])}万]+")
_SIGN = re.compile(rf"(?:{MINUS})\s?", re.IGNORECASE)
_SPELT = re.compile(rf"\b(?=[a-z]){_IN_ENGLISH.pattern}", re.IGNORECASE)
# `one` is not a number in `no one`, `the one`, `one must`.
_PRONOUN = re.compile(
    r"\b(?:(?:no|the|this|that|any|every|each|which|another|some)\sone|one\s(?:of|another|by|way|day|can|could|may|must"
    r"|should|would|who|that|has|needs|gets|finds))\b",
    re.IGNORECASE,
)
_GERMAN = """
    null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn
    achtzehn neunzehn
"""
_SPANISH = """
    cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete
    dieciocho diecinueve veinte veintiuno veintidós veintitrés veinticuatro veinticinco veintiséis veintisiete
    veintiocho veintinueve
"""
_FRENCH = """
    zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit
    dix-neuf
"""
_GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
_SPANISH_TENS = ["treinta", "cuarenta", "cincuenta", "sesenta", "setenta", "ochenta", "noventa"]
_FRENCH_TENS = {"vingt": 20, "trente": 30, "quarante": 40, "cinquante": 50, "soixante": 60, "quatre-vingt": 80}
_MONEY = re.compile(r"\s(euros?|dollars?|dólares)$", re.IGNORECASE)


def leading_number(text: str) -> tuple[Fraction, str] | None:
    """Read the number in words at the beginning of a text; returns it and the rest, or None if there is none."""
    sign = _SIGN.match(text)
    found = _positive(text if sign is None else text[sign.end() :])
    return found if found is None or sign is None else (-found[0], found[1])


def in_digits(text: str) -> str:
    """Return an English text with digits for its numbers in words."""
    return _SPELT.sub(lambda found: _digits(text, found), text)


def _digits(text: str, found: re.Match[str]) -> str:
    number = _english(found[0])
    if number is None or (number[0] == 1 and _PRONOUN.search(text, max(0, found.start() - 8), found.end() + 8)):
        return found[0]
    return f"{number[0]}{' ' if found[0].endswith(' ') else ''}"


def _positive(text: str) -> tuple[Fraction, str] | None:
    """Read a number without a sign. In German, Spanish and French nothing but money may follow."""
    money = _MONEY.search(text)
    words = text if money is None else text[: money.start()]
    foreign = _FOREIGN.get(words.replace("-", " ").strip().casefold())
    if foreign is not None:
        return Fraction(foreign), "" if money is None else money[1]
    half = _HALF_OF.match(text)
    if half is not None:  # `half a million`, `half a cup`
        number, unit = _english(text[half.end() :]) or (1, re.sub(r"^an? ", "", text[half.end() :]))
        return Fraction(number) / 2, unit
    chinese = _IN_CHINESE.match(text)
    if chinese is not None and text.startswith("分之", chinese.end()):  # `三分之二`
        top = _IN_CHINESE.match(text, chinese.end() + 2)
        bottom = _of_chinese(chinese[0])
        return (Fraction(_of_chinese(top[0]), bottom), text[top.end() :].strip()) if top and bottom else None
    if chinese is not None:
        return Fraction(_of_chinese(chinese[0])), text[chinese.end() :].strip()
    return _english(text)


def _english(text: str) -> tuple[Fraction, str] | None:
    english = _IN_ENGLISH.match(text)
    if english is None or not english["number"]:
        return None
    part, top, bottom, large = (found and found.lower() for found in english.group("part", "top", "bottom", "large"))
    number = Fraction(_of_english(english["number"]), _PARTS[part] if part else 1)
    for place, digit in enumerate((english["decimals"] or "").lower().split(), 1):
        number += Fraction(_COUNTS[digit], 10**place)
    if top and bottom:  # `two and a half million`
        number = (number + Fraction(_COUNTS[top], _PARTS[bottom])) * (_LARGE[large] if large else 1)
    return number, text[english.end() :].strip()


def _of_english(words: str) -> int:
    total = below_thousand = 0
    for word in re.findall(r"[a-z]+", words.lower()):
        if word in _LARGE:
            total, below_thousand = total + below_thousand * _LARGE[word], 0
        elif word == "hundred":
            below_thousand *= 100
        else:
            below_thousand += _COUNTS.get(word, 0)  # `and` adds nothing
    return total + below_thousand


def _of_chinese(signs: str) -> int:
    """`三十二` by powers of ten, `二〇二五` digit by digit."""
    if not set(signs) & {*_POWERS, "万"}:
        return int("".join(str(_DIGITS[sign]) for sign in signs))
    above, _, below = signs.rpartition("万")
    total, digit = (_of_chinese(above) * 10_000 if above else 0), 0
    for sign in below:
        if sign in _POWERS:
            total, digit = total + (digit or 1) * _POWERS[sign], 0
        else:
            digit = _DIGITS[sign]
    return total + digit


def _in_other_languages() -> Iterator[tuple[str, int]]:
    for words in (_GERMAN, _SPANISH, _FRENCH):
        yield from ((word, number) for number, word in enumerate(words.split()))
    for ten, word in enumerate(_GERMAN_TENS, 2):
        yield word, 10 * ten
        yield from ((f"{one}und{word}", 10 * ten + i) for i, one in enumerate(["ein", *_GERMAN.split()[2:10]], 1))
    for ten, word in enumerate(_SPANISH_TENS, 3):
        yield word, 10 * ten
        yield from ((f"{word} y {one}", 10 * ten + number) for number, one in enumerate(_SPANISH.split()[1:10], 1))
    for word, ten in _FRENCH_TENS.items():
        yield word, ten
        for number, one in enumerate(_FRENCH.split()[1 : 20 if ten >= 60 else 10], 1):
            yield f"{word}{'-et' if number in (1, 11) and ten < 80 else ''}-{one}", ten + number
    yield from (("hundert", 100), ("einhundert", 100), ("cien", 100), ("quatre-vingts", 80), ("cent", 100))


_FOREIGN = {word.replace("-", " ").casefold(): number for word, number in _in_other_languages()}
"""From the whole text of a number, without hyphens, to the number."""
