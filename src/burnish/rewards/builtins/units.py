"""Units behind a value: `5 cm^2`, `3 m/s`, `$18`, `90^\\circ`, `3 million dollars`, `72 clips`.

A unit is real if its words are in the table here: then two values with units are compared in the same unit. Any other
word behind a number counts things, and is left out. Letters without a space are not a unit: `6xy` is a product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from burnish.rewards.builtins.expressions import MATH_WORDS

Dimensions = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit behind a value. dimensions: its base units and their powers; empty for things that are counted. factor: of
    the base units. scale: a word such as `million`, which belongs to the value."""

    dimensions: Dimensions = ()
    factor: Fraction = Fraction(1)
    scale: int = 1
    percent: bool = False


_PREFIXES = {
    **{"k": "1000", "c": "1/100", "m": "1/1000", "d": "1/10", "M": "1000000", "G": "1000000000", "T": "1000000000000"},
    **{"µ": "1/1000000", "μ": "1/1000000", "n": "1/1000000000", "p": "1/1000000000000"},
}
_LONG_PREFIXES = {
    **{"": "1", "kilo": "1000", "centi": "1/100", "milli": "1/1000", "deci": "1/10", "mega": "1000000"},
    **{"giga": "1000000000", "micro": "1/1000000", "nano": "1/1000000000"},
}
_WITH_PREFIXES = """
    m meter m 1, m metre m 1, g gram g 1, s second s 1, L liter m3 1/1000, L litre m3 1/1000, J joule J 1, W watt W 1,
    N newton N 1, Pa pascal Pa 1, Hz hertz Hz 1, V volt V 1, A ampere A 1, mol mole mol 1, eV electronvolt eV 1,
    cal calorie cal 1, B byte B 1, Ω ohm Ω 1
"""
"""Symbol, name, base unit, how many of it."""
_DERIVED: dict[str, tuple[int | Fraction, dict[str, int]]] = {
    **{"m2": (1, {"m": 2}), "m3": (1, {"m": 3}), "N": (1000, {"g": 1, "m": 1, "s": -2})},
    "J": (1000, {"g": 1, "m": 2, "s": -2}),
    **{"W": (1000, {"g": 1, "m": 2, "s": -3}), "Pa": (1000, {"g": 1, "m": -1, "s": -2}), "Hz": (1, {"s": -1})},
    **{"km/h": (Fraction(5, 18), {"m": 1, "s": -1}), "mi/h": (Fraction(1397, 3125), {"m": 1, "s": -1})},
}
"""Base unit -> a factor, and the units that it is made of, with their powers."""
_OTHERS = """
    m3 1/1000 l, m3 1/1000000 ml cc, s 1 sec secs, s 60 min mins minute minutes, s 3600 h hr hrs hour hours,
    s 86400 day days, s 604800 week weeks, year 1 year years yr yrs, year 1/12 month months,
    m 0.0254 inch inches in, m 0.3048 ft foot feet, m 0.9144 yd yard yards, m 1609.344 mi mile miles,
    m3 3785411784/1000000000000 gallon gallons, m3 946352946/1000000000000 quart quarts, m2 10000 hectare hectares ha,
    m3 473176473/1000000000000 pint pints, m3 473176473/2000000000000 cup cups, m2 4046.8564224 acre acres,
    m3 473176473/32000000000000 tablespoon tablespoons tbsp, year 10 decade decades, year 100 century centuries,
    J 3600000 kWh, g 453.59237 lb lbs pound pounds, g 28.349523125 oz ounce ounces,
    g 1000000 ton tons tonne tonnes,
    deg 1 degree degrees deg, rad 1 radian radians rad, $ 1 $ dollar dollars USD bucks, $ 1/100 cent cents ¢,
    € 1 euro euros EUR €, £ 1 £ GBP, ¥ 1 ¥ yen yuan RMB 元 円, ₹ 1 ₹ rupee rupees Rs, CHF 1 CHF, kr 1 kr,
    unit 1 unit units u, km/h 1 kph, mi/h 1 mph, K 1 K kelvin, °C 1 celsius Celsius °C, °F 1 fahrenheit Fahrenheit °F
"""
"""Base unit, how many of it, words."""


def _table() -> dict[str, tuple[str, Fraction]]:
    """Word -> base unit, and how many of it."""
    found: dict[str, tuple[str, Fraction]] = {}
    for row in _WITH_PREFIXES.split(","):
        symbol, name, base, factor = row.split()
        for prefix, times in _PREFIXES.items():
            found.setdefault(prefix + symbol, (base, Fraction(factor) * Fraction(times)))
        found[symbol] = (base, Fraction(factor))
        for prefix, times in _LONG_PREFIXES.items():
            for word in (f"{prefix}{name}", f"{prefix}{name}s"):
                found[word] = (base, Fraction(factor) * Fraction(times))
    for row in _OTHERS.split(","):
        base, factor, *words = row.split()
        found.update(dict.fromkeys(words, (base, Fraction(factor))))
    return found


UNITS = _table()
_SCALE_WORDS = {
    **{12: "dozen", 100: "hundred 百 백", 10**4: "万 萬 만", 10**5: "lakh lakhs", 10**7: "crore crores"},
    **{10**8: "亿 億 억", 10**12: "trillion"},
    1000: "thousand thousands mil mille tausend тысяч тысячи тысяча 千 천",
    10**6: "million millions millón millones millionen milhões milhão milioni milione mio миллион миллиона миллионов",
    10**9: "billion billions milliard milliards milliarden mrd bn миллиард миллиарда миллиардов",
}
SCALES = {word: scale for scale, words in _SCALE_WORDS.items() for word in words.split()}
_SCALE_OF_MONEY = re.compile(r"(.*\d)\s?(?:([kK])|[mM]|([bB]))(?:(?:\s(?:per|an?|each)\b|/).*)?")
_MONEY = re.compile(r"^(?P<sign>-?)\s*(?P<money>[A-Z]{0,2}\$|€|£|¥|₹|USD\b|CHF\b|kr\b|Rs\b\.?)\s*(?=[-\d.(\\])")
_POWERS = {"squared": 2, "cubed": 3, "square": 2, "cubic": 3, "sq": 2, "cu": 3}
_NOT_THINGS = frozenset(
    re.findall(
        r"\w+",
        "and or to by times plus minus over is are mod not if where when for all any than with else otherwise either "
        "maybe perhaps between about only at least most more less fewer some infinitely no none undefined out point",
    )
)
_ANGLE_OF = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])[^()+]*$")
_BOUND = re.compile("[以或至到多余不超约未]|より|이상|이하|미만|보다")  # `5元以上`
_VOWEL = re.compile(r"[aeiouyAEIOUY]|[^\x00-\x7f]")
# Where a unit may begin: behind a value, at a word in quotes, a sign, or a word after a space or a digit.
_BEGINNING = re.compile(
    r"""(?<=[\w)}\]!.%])\s*(?=/?\s*"|\^\\circ|\\Omega|%|[$¢€£¥₹元円])|(?<=[\d)}\]!.i])\s+(?=[^\W\d_])|(?<=\d)(?=[^\W\d_])"""
)
_FACTOR = re.compile(
    r"""\s*(?P<per>/|per\b|\\cdot|\*|-(?=[A-Za-z]))?\s*
    (?:\^\s*\\circ\s*(?P<of>[CF](?![A-Za-z]))?|(?P<word>\\Omega|[^\W\d_]+\.?|[%$¢€£¥₹]))
    (?:\s*\^\s*\{?(?P<power>-?\d)\}?)?""",
    re.VERBOSE,
)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """The value in front of a unit, and the unit; the text as it is and None if it ends with none."""
    money = _MONEY.match(text)
    if money is None:
        return _behind(text)
    amount = _SCALE_OF_MONEY.fullmatch(text, money.end())
    if amount is None:
        value, unit = _behind(money["sign"] + re.sub(r"/\s*[a-z]{2,}$", "", text[money.end() :]))
        scale = 1 if unit is None else unit.scale
    else:  # `$5k`
        value, scale = money["sign"] + amount[1], 1000 if amount[2] else 10**9 if amount[3] else 10**6
    base, factor = UNITS["$" if "$" in money["money"] else money["money"].rstrip(".")]
    return value, Unit(((base, 1),), factor, scale)


def _behind(text: str) -> tuple[str, Unit | None]:
    for place in _BEGINNING.finditer(text):
        unit = read_unit(behind := text[place.end() :])
        value = text[: place.start()].strip()
        # `2abc` is a product, `72clips` are things.
        is_product = unit == Unit() and text[place.end() - 1].isdigit() and behind.isascii() and len(behind) <= 3
        if unit is not None and not is_product and not (unit.dimensions == (("deg", 1),) and _ANGLE_OF.search(value)):
            return value, unit
    return text, None


def read_unit(text: str) -> Unit | None:
    """The unit that a whole text is; None if it is anything else."""
    reader = _UnitReader()
    bare = re.sub(r"/\s*\(([^()]*)\)", r"/ \1", re.sub(r'\s*"\s*', " ", text)).strip(" ()")
    position = 0
    while position < len(bare):
        match = _FACTOR.match(bare, position)
        if match is None or not reader.take(match):
            return None
        position = match.end()
    return reader.unit()


class _UnitReader:
    """Collects the words of a unit: `million square km per hour`."""

    def __init__(self) -> None:
        self._powers: dict[str, int] = {}
        self._factor = Fraction(1)
        self._scale = 1
        self._counts_things = self._percent = False
        self._sign = self._next_power = 1

    def take(self, match: re.Match[str]) -> bool:
        """Read the next word. False if it is not part of a unit."""
        if match["per"] in ("/", "per"):
            self._sign = -1
        word = ((match["word"] or "").replace("\\Omega", "Ω") or (f"°{match['of']}" if match["of"] else "deg")).rstrip(
            "."
        )
        known = UNITS.get(word) or (UNITS.get(word.lower()) if len(word) > 2 else None)
        if word in ("squared", "cubed") and match["power"] is None and self._powers:
            self._powers[next(reversed(self._powers))] *= _POWERS[word]
        elif word in _POWERS and match["power"] is None:
            self._next_power = _POWERS[word]
        elif word.lower() in SCALES and not self._powers and not self._counts_things:
            self._scale *= SCALES[word.lower()]
        elif word.lower() in ("percent", "%"):
            self._percent = True
        elif known is not None:
            self._multiply(*known, int(match["power"] or self._next_power) * self._sign)
        elif _is_thing(word):
            self._counts_things = True
        else:
            return word in ("of", "in", "a", "an", "the")
        return True

    def _multiply(self, base: str, size: Fraction, power: int) -> None:
        count, parts = _DERIVED.get(base, (1, {base: 1}))
        self._factor *= (size * count) ** power
        for part, times in parts.items():
            self._powers[part] = self._powers.get(part, 0) + power * times
        self._next_power = 1

    def unit(self) -> Unit | None:
        """Return the unit that was read; None without one."""
        if self._percent:
            return Unit(scale=self._scale, percent=True)
        if not self._powers and not self._counts_things and self._scale == 1:
            return None
        if self._counts_things or "unit" in self._powers:  # `5 square units`, `5 apples`: nothing to convert
            return Unit(scale=self._scale)
        powers = tuple(sorted((base, power) for base, power in self._powers.items() if power))
        return Unit(powers, self._factor, self._scale)


def _is_thing(word: str) -> bool:
    plain = word.casefold()
    if plain in _NOT_THINGS or plain in MATH_WORDS or _BOUND.search(word):
        return False
    return (len(word) >= 3 and _VOWEL.search(word) is not None) or not word.isascii()
