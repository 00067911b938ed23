"""Numbers from 0 to 100 in German, Spanish and French words: `fünfundzwanzig`, `treinta y uno`, `quatre-vingt-onze`."""

from __future__ import annotations

from collections.abc import Iterator

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


def _german() -> Iterator[tuple[str, int]]:
    yield from ((word, number) for number, word in enumerate(_GERMAN.split()))
    ones = ["ein", *_GERMAN.split()[2:10]]
    for ten, word in enumerate(_GERMAN_TENS, 2):
        yield word, 10 * ten
        yield from ((f"{one}und{word}", 10 * ten + number) for number, one in enumerate(ones, 1))
    yield from (("hundert", 100), ("einhundert", 100))


def _spanish() -> Iterator[tuple[str, int]]:
    yield from ((word, number) for number, word in enumerate(_SPANISH.split()))
    for ten, word in enumerate(_SPANISH_TENS, 3):
        yield word, 10 * ten
        yield from ((f"{word} y {one}", 10 * ten + number) for number, one in enumerate(_SPANISH.split()[1:10], 1))
    yield "cien", 100


def _french() -> Iterator[tuple[str, int]]:
    yield from ((word, number) for number, word in enumerate(_FRENCH.split()))
    for word, ten in _FRENCH_TENS.items():
        yield word, ten
        for number, one in enumerate(_FRENCH.split()[1 : 20 if ten >= 60 else 10], 1):
            yield f"{word}{'-et' if number in (1, 11) and ten < 80 else ''}-{one}", ten + number
    yield from (("quatre-vingts", 80), ("cent", 100))


_NUMBERS = {word.replace("-", " ").casefold(): number for word, number in (*_german(), *_spanish(), *_french())}


def foreign_number(words: str) -> int | None:
    """Return the number that a whole text spells, with hyphens or without; None if it is anything else."""
    return _NUMBERS.get(words.replace("-", " ").strip().casefold())
