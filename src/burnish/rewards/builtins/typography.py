"""One spelling for what only looks different: signs, spaces, sizes, colours and delimiters of LaTeX and Unicode.

Words in a formula (`\\text{ cm}`) become words in double quotes, so that they cannot be taken for products of letters.
"""

from __future__ import annotations

import re
import unicodedata

_SIGNS = {
    **dict.fromkeys("−–—‐‑‒", "-"),
    **{"×": r"\times ", "✕": r"\times ", "·": r"\cdot ", "∙": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "∗": "*"},
    **{"√": r"\sqrt ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in "},
    **{"≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "≈": r"\approx ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}"},
    **{"⩽": r"\leq ", "⩾": r"\geq ", "∠": r"\angle ", "→": r"\to ", **dict.fromkeys("°º˚", r"^\circ ")},
    **{"⟨": "(", "⟩": ")", "′": "'", "“": '"', "”": '"', "，": ",", "：": ":", "；": ";", "。": ".", "∛": r"\sqrt[3]"},
}
_GREEK_NAMES = """
    alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega
    Delta Gamma Theta Lambda Sigma Phi Omega
"""
GREEK = dict(zip("αβγδεζηθκλμνξπρστφχψωΔΓΘΛΣΦΩ", _GREEK_NAMES.split(), strict=True))
_SIGNS |= {sign: f"\\{name} " for sign, name in GREEK.items()}
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SHIFTED = re.compile(f"([{''.join(_RAISED)}]+)|([{''.join(_LOWERED)}]+)")

_SAME = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"), "frac"),
    **dict.fromkeys(("bar", "dot"), "overline"),
    **{"varnothing": "emptyset", "le": "leq", "leqslant": "leq", "ge": "geq", "geqslant": "geq", "ne": "neq"},
    **{"lbrace": "{", "rbrace": "}", "varepsilon": "epsilon", "varphi": "phi", "rightarrow": "to", "simeq": "approx"},
}
_AS_SIGNS = {
    **{"lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|", "langle": "(", "rangle": ")", "equiv": "="},
    **{"lparen": "(", "rparen": ")", "lbrack": "[", "rbrack": "]", "colon": ":", "ast": "*"},
    **{"degree": r"^\circ ", "cr": r"\\ "},
}
_INVISIBLE = (
    r"left|right|(?:big|Big|bigg|Bigg)[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|tiny|small|"
    r"(?:normal|footnote|script)size|large|Large|LARGE|huge|Huge|therefore|bf|it|rm|boldmath|mathop|(?:math)?strut|nonumber|tt|blacksquare|square"
)
_BOXES = (
    r"mathbf|boldsymbol|bm|pmb|mathit|mathsf|mathtt|underline|underbrace|emph|mathbb|mathcal|boxed|fbox"
    r"|vec|overrightarrow|bold|ensuremath|(?:text(?:bf|rm|it)?|mathrm)(?=\s*\{[^{}]*\\(?:[dtc]?frac|sqrt))"
)
_WORDS = re.compile(
    r"\\(?:text(?:bf|rm|it|sf|tt|sc|up|normal)?|[mh]box|mathrm|operatorname\*?)\s*\{([^{}]*(?:\^\{-?\d\}[^{}]*)*)\}"
)
_SPACES = re.compile(r"\\\\|\\[,;: ]|~|\\q?quad\b|\\[hv]space\*?\{[^{}]*\}|\\phantom\{[^{}]*\}")
_THOUSANDS = re.compile(r"(?<=\d)\s*(?:\{,\}|,?\s*\\[!,;]\s*,?|['’_])\s*(?=\d{3}(?!\d))")
# `1.250.000`, and `1.250,50 Euro`: in English the sign comes first, and prices have two decimals.
_POINTS = re.compile(
    r'(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3}){2,}(?![.,]?\d)|[1-9]\d{0,2}(?:\.\d{3})+(?=(?:,\d\d)?\s?"?\s?(?:Euro\b|EUR\b|€)))'
    r"(?:,(\d\d)(?!\d))?"
)
_LABEL = re.compile(
    r'\A"?\s*(?:the\s)?(?:final\s)?answer(?:\sis\b|\s*[:=])[:\s"]*|\A"?(?:答案是?|共)[：:"\s]*|(?<=\d)\."$',
    re.IGNORECASE,
)
_DISPLAY = re.compile(r"\\begin\{(?:(?:align|gather|equation)\w*\*?|split|cases)\}(.*)\\end\{\w+\*?\}", re.DOTALL)
_UNDER = re.compile(r"(?:\{|^)([^{}]*)\\(over|choose)(?![A-Za-z])([^{}]*)(?:\}|$)")
_UNIT_FRACTION = re.compile(r'\\frac\s*\{\s*("[^"]*"[\s^\d]*)\}\s*\{\s*("[^"]*"[\s^\d]*)\}')
_COUNTED = re.compile(r"(\\?\$?[-+]?\d[\d.,]*%?)(?:\s+|(?=[^\x00-\x7f]))(\D+?)(?:,?\s(?:and\s)?(?=\d)|\Z)")
_ASCII_SIGNS = {">=": r"\geq ", "<=": r"\leq ", "!=": r"\neq ", "=>": r"\implies "}
_CHOICE = re.compile(r'\s*"?\s*(?:(?:[Oo]ption|[Cc]hoice)\s+)?\(?\s*"?\s*\(?([A-Z])\)?\s*"?\s*\)?\s*"?\s*')
_SPELT = {"infinity": r"\infty", "negative infinity": r"-\infty", "all real numbers": r"(-\infty,\infty)"}
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))


def tidy(text: str) -> str:
    """The answer in one spelling, still as LaTeX."""
    text = _from_unicode(without_delimiters(_DISPLAY.sub(_last_row, without_delimiters(text))))
    text = re.sub(r"(\\sqrt\s+|log_)(\d\d+)", r"\1{\2}", text)
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:  # formulas inside a text; a single one is money
        text = re.sub(r"(?<!\\)\$", " ", text)
    text = without_points(_THOUSANDS.sub("", text))
    text = re.sub(r"(?<=\d)\{,\}(?=\d)", ".", text)  # how LaTeX sets a decimal comma
    text = text.replace(r"\!", "").replace("{.}", ".").replace("{:}", ":")
    text = _UNDER.sub(lambda found: rf"\{'frac' if found[2] == 'over' else 'binom'}{{{found[1]}}}{{{found[3]}}}", text)
    text = re.sub(r"[<>]=|(?<![\d)}])!=|=>", lambda found: _ASCII_SIGNS[found[0]], text)
    text = re.sub(r"\\(?:(?:text)?color|colorbox|fcolorbox\s*\{[^{}]*\})\s*(?:\[\w*\]\s*)?\{[^{}]*\}", "", text)
    text = re.sub(r"\{\\rm\s+([^{}]*)\}", r"\\text{\1}", text)
    text = re.sub(rf"\\(?:{_INVISIBLE})(?![A-Za-z])\.?", "", text)
    text = re.sub(r"\\mathbb\s*(?:\{\s*R\s*\}|R(?![A-Za-z]))", r"(-\\infty,\\infty)", text)
    text = re.sub(rf"\\(?:{_BOXES})\s*(?=\{{)", "", text)
    text = _WORDS.sub(_quoted, text)
    text = _SPACES.sub(lambda found: found[0] if found[0] == r"\\" else " ", text)
    text = re.sub(r"\\([A-Za-z]+)", _command, text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\^\{?(\d+)\}?\s*/\s*_\{?(\d+)\}?", r"\\frac{\1}{\2}", text)  # `^3/_5`
    text = re.sub(r"\\overline\{(\d)\}(\d*)\\overline\{(\d)\}", r"\\overline{\1\2\3}", text)  # `\dot{3}\dot{6}`
    text = re.sub(r"(\.\d{0,9}?)(?:(\d)\2+|(\d{2,9}?)\3+)(?:\\[lc]?dots\b|\.{3})", r"\1\\overline{\2\3}", text)
    text = re.sub(r"(?<![\w)\]}])(?:\{ ?\})?\^ ?\{?(\w+)\}? ?C ?_ ?\{?(\w+)\}?", r"\\binom{\1}{\2}", text)  # `^5C_2`
    text = re.sub(r"\\([%$€£#&])", r"\1", text)
    text = re.sub(r"(?<!\d)(\d+(?:\.\d+)?)\s?%(?=\s*\\(?:times|cdot))", r"(\1/100)", text)
    text = re.sub(r"\^\s*\{\s*(?:\\circ|\"o\")\s*\}", r"^\\circ ", text)
    text = re.sub(r"\\\\\s*\[[^\[\]]*(?:pt|em|ex|mm|cm)\]", r"\\\\", text)  # a distance between rows
    text = re.sub(r"[(\[]\s*(\\begin\{(?:array|matrix)\}.*\\end\{(?:array|matrix)\})\s*[)\]]", r"\1", text)
    text = _UNIT_FRACTION.sub(r"\1/\2", text).replace('\\mu "', '"µ').replace('\\mu  "', '"µ')
    text = re.sub(r"(?<=\d) ?x ?(?=10\b)", r"\\times ", text)
    text = re.sub(r"\((\d+)\)(?=_)", r"\1", re.sub(r'(?<=\d)\s+"to"\s+(?=\d)', ":", text))
    text = re.sub(r"\s+", " ", text).strip().lstrip("=").rstrip(". \\")
    text = _LABEL.sub("", text)
    choice = _CHOICE.fullmatch(text)
    return _SPELT.get(text.replace('"', "").strip().casefold(), text) if choice is None else choice[1]


def without_points(text: str) -> str:
    """Without the points between thousands, where they can be nothing else."""
    return _POINTS.sub(lambda found: f"{found[1].replace('.', '')}{f'.{found[2]}' if found[2] else ''}", text)


def without_delimiters(text: str) -> str:
    """Without what puts a whole text in bold or sets it as a formula."""
    text = text.strip()
    while True:
        before = text
        text = text.strip("*`_").strip()
        for left, right in _DELIMITERS:
            inner = text[len(left) : -len(right)] if len(text) > len(left) + len(right) else ""
            if text.startswith(left) and text.endswith(right) and left not in inner and inner.strip():
                text = inner.strip()
        if text == before:
            return text


def spelling(text: str, *, is_words: bool) -> str:
    """Letters and signs of a tidy text without spaces, quotes and needless braces; words in lower case."""
    text = re.sub(r"\{([^{}]|\\[a-z]+)\}(?!\{)", r"\1", text) if "\\frac" not in text else text
    bare = re.sub(r'(?<!\d)[\s"]+|[\s"]+(?!\d)', "", text).rstrip(".")  # `3 1/4` is not `31/4`
    return bare.casefold() if is_words or re.fullmatch(r"[^\W\d_]{3,}", bare) else bare


def _from_unicode(text: str) -> str:
    text = _SHIFTED.sub(_raised_or_lowered, text)
    text = "".join(map(_sign, text))
    return unicodedata.normalize("NFKC", text)


def _sign(letter: str) -> str:
    if letter in _SIGNS:
        return _SIGNS[letter]
    kind = unicodedata.decomposition(letter)
    if kind.startswith("<fraction>"):  # the sign for a half and its kin
        return f" {unicodedata.normalize('NFKC', letter)}".replace("\u2044", "/")
    return letter


def _raised_or_lowered(found: re.Match[str]) -> str:
    if found[1]:
        raised = "".join(_RAISED[letter] for letter in found[1])
        return f"^{raised} " if raised.isdigit() and len(raised) == 1 else f"^{{{raised}}}"
    return "_{" + "".join(_LOWERED[letter] for letter in found[2]) + "}"


def _quoted(found: re.Match[str]) -> str:
    words = found[1].replace("~", " ").strip()
    if words.lstrip("\\") == "$":
        return " $"
    if re.fullmatch(r"and|or|,|", words, re.IGNORECASE):
        return f" {words.lower()} "
    if re.fullmatch(r"[ie]|[(-9](?:[(-9^ ]|sqrt|pi)*|\(?[A-Z]\)?|[a-z]*(?:sin|cos|tan|log|ln|exp|sqrt)h?", words):
        return f" {words.strip('()') if len(words) < 4 else words} "
    return f' "{words}" '.replace('""', "") if _COUNTED.sub("", words) else _COUNTED.sub(r' \1 "\2" ', words)


def _last_row(found: re.Match[str]) -> str:
    """The last row of a display, where a chain of equations ends; all rows if each gives a letter its value. The rows
    of a function by cases stay as they are."""
    rows = [row.replace("&", " ").strip(" \n,.") for row in found[1].split("\\\\") if row.strip()]
    names = {name[1] for row in rows if (name := re.match(r"([A-Za-z])\s*=", row))}
    stated = ", ".join(rows if len(names) == len(rows) else rows[-1:])
    return found[0] if "{cases}" in found[0] and len(names) != len(rows) else stated


def _command(found: re.Match[str]) -> str:
    return _AS_SIGNS.get(found[1]) or f"\\{_SAME.get(found[1], found[1])}"
