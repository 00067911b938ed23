"""Which answers the reward `math` holds to be equal: by kind, by value, by unit."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.rewards.builtins.equality import equal
from burnish.rewards.builtins.expressions import Expression, UnreadableError, read_expression, same
from burnish.rewards.builtins.typography import tidy

EQUAL = [
    ("5\\text{ J}", "5\\text{ N}\\cdot\\text{m}"),
    ("60\\text{ mph}", "60\\text{ miles per hour}"),
    ("5\\times10^{-6}\\text{ m}", "5\\ \\mu\\text{m}"),
    ("12", "12\\ \\frac{\\text{m}}{\\text{s}}"),
    ("1/2", "\\sin 30^\\circ"),
    ("1/2", "{1 \\over 2}"),
    ("\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}^T"),
    ("(1,2)", "x=1,y=2"),
    ("(-\\infty,1)\\cup(2,\\infty)", "x<1 \\text{ or } x>2"),
    ("5", "5 \\pmod 7"),
    ("5", "5 cm^2"),
    ("5", "5\\text{ m/s}^2"),
    ("16\\pi", "16\\pi\\text{ cm}^2"),
    ("5", "5\\,\\mathrm{cm}^2"),
    ("5", "5\\text{ units}^2"),
    ("2", "\\textcolor{red}{2}"),
    ("2", "\\large 2"),
    ("\\emptyset", "\\varnothing"),
    ("0.5", "½"),
    ("-5", "–5"),
    ("\\begin{pmatrix} 1/2 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} \\frac12 \\\\ 2 \\end{pmatrix}"),
    ("2:30 PM", "2:30 p.m."),
    ("3,5", "x=3 \\text{ or } x=5"),
    ("3e8", "3\\times 10^8"),
    ("1.6e-19", "1.6\\times10^{-19}"),
    ("3\\times 10^8", "300000000"),
    ("5 m", "500 cm"),
    ("\\$18", "18 dollars"),
    ("\\$0.50", "50 cents"),
    ("5%", "0.05"),
    ("3 million", "3000000"),
    ("1,2", "\\{2,1\\}"),
    ("x>3", "(3,\\infty)"),
    ("x \\in [-2,7]", "-2 \\le x \\le 7"),
    ("(-\\infty, 2) \\cup (3, \\infty)", "(3,\\infty)\\cup(-\\infty,2)"),
    ("5x - 7y + 11z + 4 = 0", "-5x+7y-11z-4=0"),
    ("y = 2x + 3", "2x+3"),
    ("y=2x+3", "2x-y+3=0"),
    ("1 \\pm \\sqrt{19}", "1+\\sqrt{19}, 1-\\sqrt{19}"),
    ("\\{1\\pm\\sqrt{5},-2\\}", "-2, 1+\\sqrt5, 1-\\sqrt5"),
    ("\\text{(C)}", "C"),
    ("\\text{Evelyn}", "Evelyn"),
    ("90^\\circ", "90 degrees"),
    ("864 \\mbox{ inches}^2", "864"),
    ("5.4 \\text{ cents}", "5.4"),
    ("11,\\! 111,\\! 111,\\! 100", "11111111100"),
    ("2:3", "2 : 3"),
    ("24", "two dozen"),
    ("23", "twenty-three"),
    ("123456", "one hundred twenty-three thousand four hundred and fifty-six"),
    ("1/2", "one half"),
    ("2/3 cup", "two thirds of a cup"),
    ("2025", "二〇二五"),
    ("1230032", "一百二十三万三十二"),
    ("5.50", "5 dollars and 50 cents"),
    ("200 minutes", "3 hours 20 minutes"),
    ("3 \\text{ hours } 20 \\text{ minutes}", "3 h, 20 min"),
    ("5 PM", "17:00"),
    ("3/5", "3 out of 5"),
    ("3.5", "3{,}5"),
    ("2", "\\lg 100"),
    ("\\emptyset", "\\text{no real solutions}"),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "[[1, 2], [3, 4]]"),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("5", "2+3=5"),
    ("x=5", "5"),
    ("72", "72 clips"),
    ("f(x)=x^2", "x^2"),
    ("i", "\\sqrt{-1}"),
    ("(3,4]", "3<x\\leq 4"),
    ("145.0", "145"),
    ("1,234", "1234"),
    ("\\frac{1}{2} \\text{ cup}", "0.5"),
    ("70 \\sqrt{2}", "70√2"),
    ("18.90", "$18.90"),
    ("2\\pi r", "2 r \\pi"),
    ("1000", "1 000 euros"),
    ("\\sin \\pi", "0"),
    ("30", "30 minutes"),
    ("90 minutes", "1.5 hours"),
    ("20%", "20"),
    ("720", "6!"),
    ("25\\%", "\\frac14"),
    ("1", "1^{\\circ}"),
    ("8", "8 个"),
    ("mgh", "m \\cdot g \\cdot h"),
    ("a \\times b", "ab"),
    ("pi", "\\pi"),
    ("73", "m + n = 64 + 9 = 73"),
    ("12", "f(3) = 12"),
    ("1/2", "\\lim_{x \\to 0} f(x) = \\frac12"),
    ("(x-2)(x+3)", "x^2+x-6 = (x-2)(x+3)"),
    ("3/4", "\\begin{aligned} 4x &= 3 \\\\ x &= \\frac34 \\end{aligned}"),
    ("(3,4)", "\\begin{cases} x = 3 \\\\ y = 4 \\end{cases}"),
    ("3/4", "\\text{The answer is } \\frac{3}{4}"),
    ("12", "B. 12"),
    ("B", "option (B)"),
    ("x=3", "2x = 6 \\Rightarrow x = 3"),
]
DIFFERENT = [
    ("n \\le 2", "m \\le 2"),
    ("33", "3 3"),
    ("5 \\pmod 7", "5 \\pmod 8"),
    ("(2,1)", "x=1,y=2"),
    ("\\text{even}", "-\\text{even}"),
    ("5", "6\\text{ cm}^2"),
    ("3,5", "x=3"),
    ("6", "6xy"),
    ("2\\sin x", "2\\cos x"),
    ("x=2", "y=2"),
    ("5 PM", "5 AM"),
    ("5 m", "5 cm"),
    ("3", "3 million"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "\\{1,2\\}"),
    ("\\text{east}", "west"),
    ("2:3", "3:2"),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{pmatrix} 1 & 3 \\\\ 2 & 4 \\end{pmatrix}"),
    ("\\begin{pmatrix} 1\\\\2 \\end{pmatrix}", "\\begin{pmatrix} 1&2 \\end{pmatrix}"),
    ("52", "52_8"),
    ("5 PM", "5:00"),
    ("17", "17:00"),
    ("3 hours", "3 hours 20 minutes"),
    ("3", "three and four"),
    ("3:2", "6:4"),
    ("300000", "3 × 10^6 meters"),
    ("5 \\text{ or } 6", "5"),
    ("5", "5 \\approx 6"),
    ("-1", "i^2"),
    ("12:30", "12:30 PM"),
    ("1/3", "0.33"),
    ("5", "5 \\text{ or } 6"),
    ("0.0000001", "0"),
    ("6", "6!"),
    ("5", "5 not"),
    ("3", "\\text{not } 3"),
    ("90", "\\frac{\\pi}{2}"),
    ("-\\infty", "\\infty"),
    ("A", "a"),
    ("MN", "NM"),
    ("BCA", "A \\cdot B \\cdot C"),
    ("x+y=5", "5"),
    ("7", "2x+1=7"),
    ("4", "\\begin{cases} x = 3 \\\\ y = 4 \\end{cases}"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_says_the_same(gold: str, answer: str) -> None:
    assert equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_says_something_else(gold: str, answer: str) -> None:
    assert not equal(gold, answer)


BOUNDED = [
    "2025^{2025^{2025}}",
    "3^{3^{3^3}}",
    "1000000!",
    "(10^{-50})^{10^{-50}}",
    "5!!!!",
    "(" * 80 + "2" + ")" * 80,
    "\\sqrt{" * 200 + "2" + "}" * 200,
    "9" * 5000,
    "\\sin(10^{10^{10}})",
    "x" * 1500,
    "\\binom{10000}{5000}" * 20,
    "(1+x)^{5000}(1-x)^{5000}",
    "1e999999",
    "1e999999999",
    "\\frac{1}{0}",
    "0^{-1}",
    "\\log 0",
    "e^{e^{e^{e^{e^e}}}}",
]


@pytest.mark.parametrize("answer", BOUNDED, ids=[text[:20] for text in BOUNDED])
def test_no_answer_is_computed_that_would_take_long(answer: str) -> None:
    assert not equal("\\frac{\\pi^2}{6}", answer)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("-3^2", -9),
        ("2^-3", Fraction(1, 8)),
        ("2 1/2", Fraction(5, 2)),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("\\frac 59", Fraction(5, 9)),
        ("\\frac{270}7", Fraction(270, 7)),
        ("0.\\overline{3}", Fraction(1, 3)),
        ("0.1\\overline{6}", Fraction(1, 6)),
        (".5", Fraction(1, 2)),
        ("1e-07", Fraction(1, 10**7)),
        ("\\sqrt{\\frac{9}{4}}", Fraction(3, 2)),
        ("\\sqrt[3]{-8}", -2),
        ("\\binom{10}{3}", 120),
        ("\\lfloor 7/2 \\rfloor", 3),
        ("|3 - 5|", 2),
        ("2 \\times 3 \\div 4", Fraction(3, 2)),
    ],
)
def test_values_are_exact(text: str, value: Fraction) -> None:
    assert read_expression(tidy(text)).constant() == value


@pytest.mark.parametrize("text", ["", "+", "5 6", "1/0", "(1", "\\int x dx", "2 = 3", "five"])
def test_leaves_other_things_alone(text: str) -> None:
    with pytest.raises(UnreadableError):
        read_expression(text).constant()


def read(text: str) -> Expression:
    return read_expression(tidy(text))


def test_letters_stand_for_any_number() -> None:
    assert same(read("a^{n-1}(a+bn)"), read("a^n + b n a^{n-1}"))
    assert same(read("\\sin 2x"), read("2 \\sin x \\cos x"))
    assert same(read("x\\sqrt{x}"), read("\\sqrt{x^3}"))  # where both are real
    assert not same(read("\\sqrt{x^2}"), read("x"))
    assert not same(read("2x"), read("2y"))


def test_a_power_of_minus_one_of_a_function_is_its_inverse() -> None:
    assert same(read("\\sin^{-1} \\frac{x}{9}"), read("\\arcsin \\frac{x}{9}"))
    assert not same(read("\\tan^{-1} x"), read("\\frac{1}{\\tan x}"))
    assert same(read("\\sin^2 x"), read("(\\sin x)^2"))


@pytest.mark.slow
@given(st.integers(-(10**12), 10**12))
def test_every_integer_in_its_spellings(value: int) -> None:
    for text in (str(value), f"{value:,}", f"{value}.0", f"{value} apples", f"${value}$", f"\\boxed{{{value}}}"):
        assert equal(str(value), text)
        assert not equal(str(value + 1), text)


@pytest.mark.slow
@given(st.fractions(max_denominator=999), st.fractions(max_denominator=999))
def test_fractions_are_equal_only_to_themselves(first: Fraction, second: Fraction) -> None:
    def written(value: Fraction) -> str:
        return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"

    assert equal(str(first), written(second)) == (first == second)
    assert equal(str(first), written(first))
