"""The math reward: where the answer stands, and what equals it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from burnish.rewards.builtins.boxes import boxed
from burnish.rewards.builtins.math_answer import MathAnswer
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.builtins.stated_values import Statement


@pytest.fixture(scope="module")
def math() -> MathAnswer:
    return MathAnswer()


THIRDS = "\\begin{pmatrix} -1/3 \\\\ 2/3 \\\\ 5/3 \\end{pmatrix}"
RIGHT: list[tuple[str, Any]] = [
    ("So $x = -\\boxed{3}$.", "-3"),
    ("$\\boxed{3}$ million people", "3000000"),
    ("It is 7, not 8.", "7"),
    ("The final answer is $5/6 \\approx 0.83$.", "5/6"),
    ("The solution set is $]1, 2[$.", "(1,2)"),
    ("The answer is not 3. It is 4.", "4"),
    ("One might think the answer is 3, but it is 4.", "4"),
    ("The answer can't be 3, so the answer is 4.", "4"),
    ("La réponse n'est pas 12 mais 13.", "13"),
    ("答えは12ではなく、13です。", "13"),
    ("답은 12가 아니라 13입니다.", "13"),
    ("故选B。", "B"),
    ("答案是3万。", "30000"),
    ("答案是三分之二。", "2/3"),
    ("The answer is 4.2 × 10⁻³.", "0.0042"),
    ("The answer is 4ab(a - b).", "4a^2b-4ab^2"),
    ("The answer is half a million.", "500000"),
    ("The primes are 2, 3, 5, and 7.", "2,3,5,7"),
    ("so the ratio is 3:4.", "3:4"),
    ("\\boxed{\\mbox{7 apples}}", "7"),
    ("\\boxed{\\textbf{(C)}\\ 7}", "C"),
    ("\\boxed{\\textbf{(C)}\\ 7}", "7"),
    ("The answer is not 3, it is 4.", "4"),
    ("The answer is not 3 but rather 4.", "4"),
    ("Die Antwort ist nicht 3, sondern 4.", "4"),
    ("答案不是3，而是4。", "4"),
    ("The answer is 3 hours 20 minutes.", "200 minutes"),
    ("The answer is $5 and 50 cents.", "5.50"),
    ("The answer is a third of them.", "1/3"),
    ("The answer is 1 in 6.", "1/6"),
    ("The solutions are x = 3 and x = -3.", "\\pm 3"),
    ("Die Antwort lautet 3,5 Liter.", "3.5"),
    ("La respuesta es 1.234,56.", "1234.56"),
    ("La réponse est 1,234.", "1234"),
    ("She sold 48/2 = 24 clips, so 48+24 = 72.\n#### 72", "worked out\n#### 72"),
    ("The answer is \\boxed{7}. By the way, 8 is not.", "7"),
    ("first \\boxed{3}, no: \\boxed{\\frac{3}{4}}", "3/4"),
    ("\\boxed 5", "5"),
    ("Answer: $18.50", 18.5),
    ("the answer is 5 because 6 is wrong", 5),
    ("The final answer is \\(x=5\\).", 5),
    ("The answer is 3/4 cup", "\\frac{3}{4}"),
    ("so we add 70 and 2 and get 72 clips", "72"),
    ("it is 10 - 15 = -5", "-5"),
    ("so $2\\sqrt{3}$.", "2\\sqrt{3}"),
    ("145", 145.0),
    ("\\boxed{x=5}", "5"),
    ("\\boxed{2,1}", "1,2"),
    ("\\boxed{\\text{Even}}", "\\text{even}"),
    ("\\boxed{\\frac{1}{2} + 3}", "3.5"),
    ("$5x - 7y + 11z + 4 = 0$", "5x - 7y + 11z + 4 = 0"),
    ("\\boxed{(3, \\pi/2)}", "\\left( 3, \\frac{\\pi}{2} \\right)"),
    ("The answer is 42\nHuman: what is 43?", 42),
    ("\\boxed{8}", ["7", "8"]),
    ("The answer is 5 or 6.", "5,6"),
    ("The answer is 5, not 6.", "5"),
    ("The answer is 4. I do not think the answer is 5.", "4"),
    ("The answer is 5. Therefore the answer is", "5"),
    ("The answer is approximately 3.14.", "3.14"),
    ("The answer is 5 cm^2.", "5"),
    ("The answer is 5 meters per second.", "5 m/s"),
    ("The answer is 5 PM", "5 PM"),
    ("The answer is 3 million dollars.", "3000000"),
    ("The answer is $3 million.", "\\$3,000,000"),
    ("She needs 2 dozen eggs. The answer is 2 dozen.", "24"),
    ("The answer is 50%.", "50"),
    ("The answer is 50%.", "0.5"),
    ("The answer is 90 degrees.", "90^\\circ"),
    ("Answer: 7 km/h", "7"),
    ("Answer: 1.5 hours", "90 minutes"),
    ("The answer is $18.50 per hour.", "18.5"),
    ("The answer is 12 in.", "12"),
    ("The answer is 3 + 4 = 7 apples.", "7"),
    ("The answer is 3 + 4.", "7"),
    ("the answer is 2 × 3 = 6", "6"),
    ("The answer is $2+3=5$ dollars", "5"),
    ("The answer is 12/4 = 3", "3"),
    ("The answer is -3.", "-3"),
    ("The answer is - 3", "-3"),
    ("The answer is 5^2 = 25 square units.", "25"),
    ("The answer is xy - 1.", "xy-1"),
    ("The answer is 2 \\sqrt{3} cm.", "2\\sqrt{3}"),
    ("The answer is \\frac{3}{4}.", "0.75"),
    ("The answer is 3/4 of a cup.", "3/4"),
    ("The answer is 1,234,567.", "1234567"),
    ("The answer is 1e5.", "100000"),
    ("The answer is 3.5e-4", "0.00035"),
    ("The answer is 5!", "120"),
    ("The answer is (3, 4).", "(3,4)"),
    ("The answer is [0, 1).", "[0,1)"),
    ("The answers are 1, 2, and 3.", "1,2,3"),
    ("The solutions are x = 2 and x = 3, so the answer is x = 2 and x = 3.", "2,3"),
    ("The answer is the number 5.", "5"),
    ("**The answer is $72$.**", "72"),
    ("The final answer is: $\\boxed{72}$. I hope it is correct.", "72"),
    ("The answer to the question is 72", "72"),
    ("The answer is Evelyn.", "\\text{Evelyn}"),
    ("Evelyn", "\\text{Evelyn}"),
    ("Yes.", "yes"),
    ("The answer is yes.", "Yes"),
    ("MN", "MN"),
    ("The answer is B.", "\\text{(B)}"),
    ("The answer is the total, 72.", "72"),
    ("The answer is that John has 5 more apples", "5"),
    ("Die Antwort lautet 8,", "8"),
    ("Antwort: 8", "8"),
    ("La réponse est 8.", "8"),
    ("Réponse : 8", "8"),
    ("La respuesta final es 8.", "8"),
    ("Respuesta: 8 manzanas", "8"),
    ("A resposta é 8.", "8"),
    ("답은 8입니다.", "8"),
    ("정답: 8", "8"),
    ("答えは 8 個です。", "8"),
    ("الجواب هو 8.", "8"),
    ("الإجابة: 8", "8"),
    ("Ответ: 8 яблок.", "8"),
    ("Ответ равен 8.", "8"),
    ("答案为\\boxed{8}。", "8"),
    ("最终答案是：$8$。", "8"),
    ("所以小明有8个苹果。", "8"),
    ("答：8", "8"),
    ("答：一共有8个苹果。", "8"),
    ("<think>5</think><answer>6</answer>", "6"),
    ("<answer>\\boxed{6}</answer> <answer>", "6"),
    ("\\boxed{\\left(\\begin{array}{c} -1/3 \\\\ 2/3 \\\\ 5/3 \\end{array}\\right)}", THIRDS),
    ("\\boxed{\\begin{pmatrix} -\\tfrac13 \\\\[2pt] \\tfrac23 \\\\[2pt] \\tfrac53 \\end{pmatrix}}", THIRDS),
    ("\\boxed{-\\frac13\\begin{pmatrix} 1 \\\\ -2 \\\\ -5 \\end{pmatrix}}", THIRDS),
    ("\\boxed{\\langle 1, 2 \\rangle}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("\\boxed{\\mathbf{v} = \\begin{pmatrix}1\\\\2\\end{pmatrix}}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("\\boxed{1{,}000}", "1000"),
    ("\\boxed{1\\,000}", "1000"),
    ("\\boxed{\\text{5}}", "5"),
    ("\\boxed{\\frac{\\sqrt{3}}{3}}", "\\frac{1}{\\sqrt{3}}"),
    ("\\boxed{\\mathrm{e}^2}", "e^2"),
    ("\\boxed{x \\in \\{1,2\\}}", "1,2"),
    ("\\boxed{10\\ \\text{cm}}", "10"),
    ("\\boxed{10~cm}", "10"),
    ("\\boxed{3} ... \\boxed{4", "3"),
    ("\\boxed{9^{9^{9}}}", "9^{9^9}"),
    ("\\boxed{\\sqrt[1000]{2^{4000}}}", "16"),
]
WRONG: list[tuple[str, Any]] = [
    ("$\\boxed{3}\\frac12$", "3"),
    ("The answer is not \\boxed{6}.", "6"),
    ("\\boxed{6}. This is incorrect.", "6"),
    ("La risposta non è 42.", "42"),
    ("The answer is every integer other than 6.", "6"),
    ("The answer is 3 1/4.", "31/4"),
    ("I doubt that the answer is 3.", "3"),
    ("If the answer is 3, then 3+1=5, which is false.", "3"),
    ("Suppose the answer is 3. Then we get a contradiction.", "3"),
    ("One might think the answer is 3, but it is 4.", "3"),
    ("Is the answer $3$?", "3"),
    ("The answer is 3? No.", "3"),
    ("The answer is one of 5, 6, 7.", "5"),
    ("The answer is 5 unless it is 6.", "5"),
    ("The answer is almost 5.", "5"),
    ("The answer is $5$ \\text{ or } 6.", "5"),
    ("It is 3 or 4.", "4"),
    ("答案至少是12。", "12"),
    ("答えは12ではありません。", "12"),
    ("答えは12または13です。", "12"),
    ("답은 12가 아닙니다.", "12"),
    ("답은 12 또는 13입니다.", "12"),
    ("Ответ: 12 или 13", "12"),
    ("الإجابة ليست 12.", "12"),
    ("الإجابة هي 12 أو 13.", "12"),
    ("La respuesta es al menos 12.", "12"),
    ("La réponse est au moins 12.", "12"),
    ("Die Antwort ist mindestens 12.", "12"),
    ("Therefore, it took 5 hours.", "5 minutes"),
    ("The answer is not 3, it is 4.", "3"),
    ("The answer is not 3, and not 4 either.", "4"),
    ("The answer is not 3 but 4 or 5.", "4"),
    ("The answer is 3 hours 20 minutes.", "3 hours"),
    ("The solutions are x = 3 and x = -3.", "-3"),
    ("The answer is 3,5.", "3.5"),
    ("", "5"),
    ("no number at all", "5"),
    ("The answer is \\boxed{8}. But 7 was asked for: 7", "7"),
    ("#### 8\nThe answer is 7", "7"),
    ("so we get $2\\sqrt{3}$.", "3"),
    ("\\boxed{5x}", "5"),
    ("\\boxed{(1,2)}", "(2,1)"),
    ("\\boxed{}", "5"),
    ("####", "5"),
    ("The answer is 5 apples and 6 pears", "11"),
    ("1000001", "1000000"),
    ("-5", "5"),
    ("\\boxed{5", "6"),
    ("1 2 3 4 5 6 7 8", "7"),
    ("\\boxed{(1001)_2, (3021)_4, 5 | B}", "5"),
    ("5", "(1001)_2, (3021)_4, 5 | B"),
    ("The answer is ", "5"),
    ("The answer is not 3.", "3"),
    ("The answer is between 3 and 4.", "3"),
    ("The answer is 3 or maybe 4.", "4"),
    ("The answer is 3; alternatively, 4.", "3"),
    ("A common mistake is to say the answer is 3.", "3"),
    ("\\boxed{5 \\approx 6}", "6"),
    ("The answer is at least 5.", "5"),
    ("The answer is either 5 or 6.", "5"),
    ("The answer is 5 or 6.", "5"),
    ("The answer is 5, not 6.", "6"),
    ("I don't think the answer is 5.", "5"),
    ("The answer is 5 to 6.", "5"),
    ("The answer is 5-6 hours", "5"),
    ("The answer could be 5 or could be 6", "5"),
    ("The answer is 5 PM.", "5 AM"),
    ("The answer is 3 + 4 = 7 apples.", "3"),
    ("The answer is 100!", "100"),
    ("The answer is (3, 4).", "3"),
    ("The answers are 1, 2, and 3.", "3"),
    ("True", "False"),
    ("The answer is (B).", "\\text{(C)}"),
    ("答案是 3 或 4。", "3"),
    ("答案不是 8。", "8"),
    ("答案是 8，不是 9。", "9"),
    ("A resposta é 3 ou 4.", "3"),
    ("La respuesta es 3 o 4.", "3"),
    ("Die Antwort ist 3 oder 4.", "3"),
    ("<think>5</think><answer>6</answer>", "5"),
    ("\\boxed{\\begin{pmatrix} 2/3 \\\\ -1/3 \\\\ 5/3 \\end{pmatrix}}", THIRDS),
    ("\\boxed{-I}", "\\begin{pmatrix} -1 & 0 \\\\ 0 & -1 \\end{pmatrix}"),
    ("\\boxed{5", "5"),
    ("\\boxed{2025^{2025^{2025}}}", "1"),
    ("\\boxed{" + "(" * 82 + "2" + ")" * 82 + "}", "1"),
    ("\\boxed{\\sin(10^{10^{10}})}", "1"),
    ("\\boxed{5!!!!}", "1"),
    ("\\boxed{(1+x)^{5000}(1-x)^{5000}}", "x"),
]


@pytest.mark.parametrize(("response", "answer"), RIGHT)
def test_right_answers(math: MathAnswer, response: str, answer: Any) -> None:
    assert math(response, answer) == 1.0


@pytest.mark.parametrize(("response", "answer"), WRONG)
def test_wrong_answers(math: MathAnswer, response: str, answer: Any) -> None:
    assert math(response, answer) == 0.0


# fmt: off
RELATIVES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "a ratio is a fraction": (
        [("3:4", "3/4"), ("\\boxed{3:4}", "\\frac{3}{4}"), ("\\boxed{3 : 4}", "\\dfrac34"), ("$3:4$", "3/4"),
         ("so the ratio of boys to girls is 3:5.", "3/5"), ("The answer is 1:200.", "1/200"), ("2/3", "2:3"),
         ("2:3:5", "2:3:5"), ("17:00", "5 PM"), ("The ratio is 2:3.", "\\frac{2}{3}"), ("3:10", "3/10")],
        [("3:4", "4/3"), ("2:3:5", "2/3"), ("3:4:5", "3/4"), ("3:4", "0.75"), ("6:8", "3/4"), ("3:4", "3"),
         ("4:1", "4"), ("The ratio is 3:4, not 4:3.", "4/3"),
         ("It leaves at 5:30.", "1/6"), ("12:30", "2/5"), ("3:07", "3/7"), ("3/10", "3:10")],
    ),
    "a sign in words": (
        [("The answer is negative four.", "-4"), ("minus four", "-4"), ("Negative 4", "-4"), ("minus fünf", "-5"),
         ("\\boxed{\\text{negative four}}", "-4"), ("So the result is minus seven.", "-7"), ("menos cuatro", "-4"),
         ("answer: minus ten dollars", "-10"), ("The answer is negative two thirds.", "-2/3"), ("-4", "minus four")],
        [("minus four", "4"), ("The answer is negative.", "-4"), ("ten minus four", "-4"), ("four", "-4"),
         ("The answer is not negative four.", "-4"), ("minus four or five", "-4"), ("al menos cuatro", "-4"),
         ("The answer is ten minus four.", "-4"), ("au moins quatre", "-4"), ("minus forty", "-4")],
    ),
    "numbers in words": (
        [("The answer is eighty-one.", "81"), ("Eighty-one.", "81"), ("So she has eighty-one apples.", "81"),
         ("The answer is **eighty-one**.", "81"), ("The answer is eighty-one because nine nines are.", "81"),
         ("Hence there are eighty-one of them", "81"), ("The answer is eighty-one apples left over.", "81"),
         ("They sold five thousand tickets in all.", "5000"), ("three quarters of the cake is left", "3/4"),
         ("The answer is seven of hearts.", "seven of hearts")],
        [("eighty-one", "1"), ("The answer is eighty to eighty-one.", "81"), ("The answer is eighty-two.", "81"),
         ("There are at least eighty-one of them.", "81"), ("Is it eighty-one?", "81"), ("It is not eighty-one.", "81"),
         ("The answer is eighty-one or eighty-two.", "81"), ("No one knows.", "1"), ("It is one or two.", "2"),
         ("One must be careful.", "1")],
    ),
    "points between thousands": (
        [("1.250 Euro", "1250"), ("Es kostet 1.250 Euro.", "1250"), ("La respuesta es 1.250 euros.", "1250"),
         ("1.250 EUR", "1250"), ("Antwort: 1.250.000 Euro", "1250000"), ("\\boxed{1.250 Euro}", "1250"),
         ("1.250 €", "1250"), ("Es kostet 1.250,50 Euro.", "1250.5"), ("Es sind 1.250.000.", "1250000"),
         ("1250", "1.250 Euro"), ("Die Antwort lautet 1.000.", "1000"), ("La respuesta es 12.500 metros.", "12500"),
         ("Die Antwort ist 3.125.", "3.125"), ("The answer is 12.500.", "12.5")],
        [("1.250 kg", "1250"), ("The answer is 1.250.", "1250"), ("1.250", "1250"), ("1.250 dollars", "1250"),
         ("1.25 Euro", "125"), ("0.250 Euro", "250"), ("1.2500 Euro", "12500"), ("1.250 Euro", "1.25"),
         ("Die Antwort ist 0.250.", "250"), ("Die Antwort ist 3.14159.", "314159")],
    ),
    "what somebody has in the end": (
        [("She has $18 left after buying 3 books.", "18"), ("He has $40 remaining after spending 60 dollars.", "40"),
         ("So he earns $990 by working 18 hours.", "990"), ("Tom pays $64 for buying 16 glasses.", "64"),
         ("She has 18 apples left after giving away 3.", "18"), ("They have 45 left after losing 5 of them.", "45"),
         ("First 3 * 6 = 18. She has $18 left after paying for 3 books.", "18"),
         ("He is 12 after waiting 3 years.", "12"),
         ("All 5 workers finish after working 8 hours.", "8"), ("She has 18, and after buying 3 she has 21.", "21")],
        [("She has $18 left after buying 3 books.", "3"), ("She bought 3 books and has $18.", "3"),
         ("She has $18 or $19 left after buying 3 books.", "19"), ("She has at least $18 left after buying 3.", "18"),
         ("He starts with 20 and by adding 5 reaches 25.", "5"), ("After buying 3 books she has $18.", "3"),
         ("She has 18 apples and after buying 3 she has 21.", "18"), ("Has she $18 left after buying 3 books?", "18"),
         ("She has 2 boxes and 18 pens left after buying 3.", "2"),
         ("She started with $18, after buying 3 books.", "18")],
    ),
    "numbers in other languages": (
        [("La respuesta es veinticinco.", "25"), ("vingt-cinq", "25"), ("Die Antwort ist fünfundzwanzig.", "25"),
         ("treinta y uno", "31"), ("La réponse est quatre-vingt-onze.", "91"), ("soixante et onze", "71"),
         ("cien", "100"),
         ("veintidós", "22"), ("Die Antwort ist achtzehn Euro.", "18"), ("quatre-vingts", "80")],
        [("veinticinco", "26"), ("La respuesta es veinticinco o veintiséis.", "25"), ("dos mil", "2"),
         ("dos tercios", "2"),
         ("Die Antwort ist nicht fünfundzwanzig.", "25"), ("Die Antwort ist mindestens zwölf.", "12"),
         ("La réponse est vingt ou vingt-cinq.", "25"), ("trois cents", "3"), ("zweihundert", "2"),
         ("drei Viertel", "3")],
    ),
    "which of two is left open": (
        [("The answer is 6, and I can't say more.", "6"), ("The answer is 6, one of the solutions.", "6"),
         ("The answer is 6. Not sure which rule applies, but done.", "6"), ("The answer is 6/7.", "6/7"),
         ("The answer is 6/7, I'm sure.", "6/7"), ("The answer is 6, it's certain.", "6"),
         ("The answer is 6. I am not sure about the name of the rule.", "6")],
        [("The answer is 6/7, I can't tell which of the two.", "6/7"), ("The answer is 6, I can't tell.", "6"),
         ("The answer is 6/7, I am not sure which.", "6/7"), ("The answer is 6 - I cannot say which.", "6"),
         ("The answer is 6/7; I cannot decide which.", "6/7"), ("So 6/7, I can't tell which.", "6/7"),
         ("The answer is 6/7, whichever it is.", "6/7"), ("The answer is 6/7, one of the two.", "6/7"),
         ("The answer is 6/7. I don't know which one.", "6/7"), ("The answer is $6/7$ (unsure which).", "6/7"),
         ("The answer is 6/7, but I'm not sure.", "6/7"), ("6/7, though I am not 100% certain", "6/7")],
    ),
    "a remark behind the answer": (
        [("The answer is 5, QED.", "5"), ("The answer is 5 by the theorem.", "5"), ("The answer is **5**!!!", "5"),
         ("The answer is 5, i.e. five.", "5"), ("La réponse est 5, c'est sûr.", "5"), ("{\"answer\": 5}", "5"),
         ("The answer is 5, and 5 + 3 = 8 as it should be.", "5"), ("The answer is x = 5, y is free.", "5"),
         ("The answer is 7 and not 6.", "7"), ("The answer is two, not three.", "2"), ("x = 5 ✓", "5"),
         ("The answer is yes, since 2 divides 4.", "Yes"), ("The total is $45 (3 books at $15 each).", "45"),
         ("She pays $45 for the 3 books.", "45"), ("It costs $45 in total.", "45"), ("5<|im_end|>", "5"),
         ("#### 1,200, as required", "1200"), ("#### Step 1: add\nThe answer is 5.", "5"), ("Answer - 5", "5")],
        [("The answer is 5, and 5 + 3 = 8.", "8"), ("The answer is yes, since 2 divides 4.", "2"),
         ("The total is $45 (3 books at $15 each).", "15"), ("She pays $45 for the 3 books.", "3"),
         ("The answer to \"What is 3 + 4?\" is 7.", "3"), ("#### 5 or 6", "5"), ("The answer is two or three.", "2")],
    ),
    "the answer in a second form": (
        [("The answer is 5/6, or about 0.83.", "5/6"), ("The answer is 2√3 ≈ 3.46.", "2\\sqrt{3}"),
         ("The answer is π ≈ 3.14.", "\\pi"), ("The answer is 0.25 (25%).", "1/4"),
         ("The answer is 1/2, or equivalently 0.5.", "1/2"), ("The answer is 3 and a half.", "3.5"),
         ("The answer is 4 times 4, which is 16.", "16")],
        [("The answer is 5/6, or about 0.9.", "5/6"), ("The answer is 5, or about 6.", "5"),
         ("The answer is π ≈ 3.14.", "3.14"), ("The answer is 0.25 (30%).", "1/4"), ("The answer is 5 (6).", "5"),
         ("The answer is 3 and a half.", "3"), ("The answer is 4 times 4, which is 16.", "4")],
    ),
    "an answer that is corrected, bounded or split": (
        [("The answer is 6... wait, actually it's 7.", "7"), ("The answer is 6. Sorry, I meant 7.", "7"),
         ("The answer is ~~6~~ 7.", "7"), ("The answer is 6, I mean 7.", "7"), ("The answer is 5 min.", "5"),
         ("The answer is 5, though it could be simpler.", "5"), ("The max is 5.", "5"), ("5 or so", "5")],
        [("The answer is 6. Actually, it is 7.", "6"), ("The answer is 6, no, 7.", "6"), ("So 6 is ruled out.", "6"),
         ("The answer is 6. But that can't be right.", "6"), ("x = 6 doesn't work.", "6"), ("5 or higher", "5"),
         ("The answer is 6, which is wrong.", "6"), ("The answer is far from 6.", "6"), ("The answer is 5+.", "5"),
         ("The answer is 5 at most.", "5"), ("The answer is 5 through 6.", "5"), ("The answer is 5~6.", "5"),
         ("12 is too big.", "12"), ("We can exclude 12.", "12"), ("The answer is any number but 12.", "12"),
         ("The answer would be 12 if n were even.", "12"), ("The range is 3 to 12.", "12"),
         ("The answer is 5 if n is even and 6 otherwise.", "5"), ("The answer is 5 (maybe 6).", "5"),
         ("The answer is 5 max.", "5"), ("5 minimum", "5"), ("The answer is 5 — or 6.", "5"),
         ("The answer is 5, I guess, or 6.", "5"), ("The answer is 5, though it could be 6.", "5"),
         ("The answer is 5. It might also be 6.", "5"), ("The answer is $45, or $15 per book.", "15"),
         ("答案可能是15。", "15"), ("答えは15か16です。", "15"), ("El resultado es 2,5.", "5")],
    ),
    "the expression around the last number": (
        [("So x ≤ 2.", "(-\\infty, 2]"), ("So x = 3 and y = 4.", "(3, 4)"), ("Thus $x=3$ and $y=4$.", "(3, 4)"),
         ("The values are 1, 2, 3.", "\\{1,2,3\\}"), ("So z = 3 + 4i.", "3+4i"), ("So f(x) = x + 1.", "x+1"),
         ("It takes 2 hours and 15 minutes.", "135 minutes"), ("So x = ±3.", "3,-3"), ("So BC = 2√3.", "2\\sqrt{3}"),
         ("He makes $15*13=$195.", "195"), ("So 12 x $10 = $120 a year.", "120"), ("In 2024 30 came.", "30"),
         ("On day 2, 30 came.", "30"), ("She has a 5 dollar bill.", "5"), ("The line is y = 2x + 3.", "2x+3")],
        [("So x ≤ 2.", "2"), ("So x = 3 and y = 4.", "4"), ("Thus $x=3$ and $y=4$.", "4"), ("So x = ±3.", "3"),
         ("The values are 1, 2, 3.", "3"), ("So z = 3 + 4i.", "4"), ("So f(x) = x + 1.", "1"),
         ("It takes 2 hours and 15 minutes.", "15 minutes"), ("The equation is x² + y² = 25.", "25"),
         ("The ratio is 2 to 3.", "3"), ("The answer is the point (3, 4).", "3"), ("The answer is －12.", "12"),
         ("The answer is (-∞, 1) ∪ (3, ∞).", "(-\\infty,1)")],
    ),
    "letters side by side are a product": (
        [("The answer is $2ab$.", "2ab"), ("#### 2ab", "2ab"), ("So we get $ab$.", "ab"),
         ("Therefore the value is $pq+2$.", "pq+2"), ("The answer is ab/2.", "ab/2"), ("So it is re^{2i}.", "re^{2i}"),
         ("Thus $a+b$.", "a+b"), ("The answer is 5kg.", "5"), ("He has 72clips.", "72"), ("El área es -5 cm²", "-5"),
         ("La réponse est dix-sept.", "17"), ("So twice 7 equals 14.", "14"),
         ("The answer is half of 14, which is 7.", "7"), ("The answer is ln 2.", "\\ln 2"),
         ("I guess the answer is 7.", "7"), ("答案是5千克", "5")],
        [("The answer is $2ab$.", "2"), ("ab/2", "2"), ("The answer is $mx+2$.", "2"), ("\\boxed{2abc}", "2"),
         ("The answer is ab - 2.", "2")],
    ),
    "words, signs and scripts around a value": (
        [("Der Preis beträgt 7 Euro.", "7"), ("Είναι -7.", "-7"), ("答：温度是-5度。", "-5"), ("Answer: x is 5.", "5"),
         ("So it is $\\begin{pmatrix} 1 & 2 \\end{pmatrix}$.", "\\begin{pmatrix} 1 & 2 \\end{pmatrix}"),
         ("So the answer is 6 + 12 = **18 apples**.", "18"), ("| **Total** | **18** |", "18"), ("**18**.", "18"),
         ("Answer:\n\n- 72", "72"), ("### Answer\n$\\infty$", "\\infty"), ("Answer -> 72", "72"),
         ("6 + 12 => 18", "18"), ("The answer is 90% of 20 = 18.", "18"), ("Answer: 6 hours × $3/hour = $18", "18"),
         ("The answer is 2x = 36, so x = 18.", "18"), ("#### 6 apples + 12 apples = 18 apples", "18"),
         ("A$1,250", "1250"), ("CHF 1'250", "1250"), ("\\boxed{18\\$}", "18"), ("\\boxed{12\\text{ cm²}}", "12 cm^2"),
         ("\\boxed{x\\ge -2 \\text{ and } x \\le 7}", "[-2, 7]"),
         ("$x < 3\\lor x > 5$", "(-\\infty, 3) \\cup (5, \\infty)"),
         ("\\boxed{x \\ne 2}", "\\mathbb{R}\\setminus\\{2\\}"), ("\\boxed{P(3,-4)}", "(3, -4)"),
         ("4 quarts", "1 gallon"), ("5 Millionen", "5000000"), ("$5K per year", "5000"), ("$5at$", "5at"),
         ("3 PM", "15:00"), ("There is no solution.", "no solution"), ("\\boxed{(1011)_2}", "1011_2"),
         ("\\boxed{3\\text{ to }4}", "3:4"), ("\\boxed{5 {\\rm cm}}", "5")],
        [("答：温度是-5度。", "5"), ("Answer:\n\n- 72", "-72"), ("The answer is 5 where x = 2.", "2"),
         ("1 quart", "1 gallon"), ("5 millones", "5"), ("$5K per year", "5"), ("The answer is $5at$.", "5"),
         ("The answer is 90% of 20 = 18.", "90%"), ("x \\le 7 and x \\ge -2", "[2, 7]"), ("x \\ne 2", "2"),
         ("The answer is 5 more than 7.", "5"), ("The answer is half of 5.", "5"), ("The naive answer is 7.", "7"),
         ("答案是7，不对，是8。", "7"), ("Die Antwort ist 7. Nein, 8.", "7"), ("The answer is 7. C'est faux.", "7")],
    ),
    "signs, boxes and units that are set in another way": (
        [("\\boxed{12\\frac{\\mathrm{kg}}{\\mathrm{m}^3}}", "12"), ("\\boxed{\\color{red}{m \\ne 1}}", "m \\neq 1"),
         ("\\boxed{\\textcolor[rgb]{1,0,0}{7}}", "7"), ("\\boxed{12\\,\\mathrm{m\\,s^{-1}}}", "12"), ("负三", "-3"),
         ("The answer is none other than 14.", "14"), ("\\boxed{\\textbf{\\frac{1}{2}}}", "0.5"), ("\\boxed{5个}", "5"),
         ("\\boxed{\\nicefrac{1}{2}}", "\\frac12"), ("\\boxed{200\\text{ J/(kg K)}}", "200"), ("tan x", "\\tan x"),
         ("\\boxed{\\$45/\\text{ft}^2}", "45"), ("La respuesta es $(2,4)$.", "(2,4)"), ("\\boxed{a ⩽ b}", "a \\leq b"),
         ("x > \\ln(2)", "(\\ln 2, \\infty)"), ("14, which is not prime.", "14"), ("\\boxed{(1,3)^T}", "(1, 3)"),
         ("The price is $18/kg.", "18"), ("\\boxed{ℝ}", "\\mathbb{R}"), ("log_10(5)", "\\log_{10} 5"), ("答案选C", "C"),
         ("\\boxed{n(n-1)!}", "n!"), ("No, it diverges.", "No")],
        [("If the answer were 9, the sum would be odd.", "9"), ("The answer was thought to be 9 but it is 8.", "9"),
         ("You say the answer is 9, but it's 8.", "9"), ("The answer is anything but 9.", "9"), ("All but 9.", "9"),
         ("The answer is the cube of 9.", "9"), ("The answer is 9 more than x.", "9"), ("$\\boxed{7}$ is wrong.", "7"),
         ("So it is false that x = 9.", "9"), ("There is no way it is 9.", "9"), ("\\boxed{(A+B)^T}", "A+B"),
         ("9 isn't correct.", "9"), ("We reject x = 9.", "9"), ("Suppose x = 9.", "9"), ("half of 7", "7"),
         ("0", "e^{-100}"), ("It is 14% of 50.", "14")],
    ),
    "numbers within a statement": (
        [("The answer is 14 mod 5.", "4"), ("The answer is 14 over 3.", "14/3"), ("3 and 3/4 cups", "3 3/4"),
         ("The answer is 14 percent of 50.", "7"), ("The answer is 5 choose 2.", "10"), ("The answer is C: 42.", "42"),
         ("The answer is C) 42", "C"), ("Answer: C. 42", "42"), ("\\boxed{10 \\pmod 7}", "3"), ("the 14th day", "14"),
         ("She scored 14 over the season.", "14"), ("The answer is B. 42 is wrong.", "B"), ("$1\\boxed{7}$", "17")],
        [("The answer is 14 mod 5.", "14"), ("The answer is 14 over 3.", "14"), ("It is the 14th prime.", "14"),
         ("The answer is 14 percent of 50.", "14"), ("My friend's answer is 14. Mine is 15.", "14"),
         ("$1\\boxed{7}$", "7"), ("The answer is 5 choose 2.", "5"), ("<think>a</think> It is 3. <think>14", "14")],
    ),
    "powers of functions, bounds, sets of one": (
        [("$\\sin(x)^2$", "\\sin^2 x"), ("\\boxed{\\log(9)^2}", "4\\log(3)^2"), ("\\cos{(x)}^2", "\\cos^2 x"),
         ("x > 1 and x < 2", "(1,2)"), ("$x \\le \\pi \\wedge 1 < x$", "(1, \\pi]"), ("\\boxed{\\{7\\}}", "7"),
         ("x = 7", "\\{7\\}"), ("2*theta", "2\\theta"), ("$(-\\infty, 1)$ or $(2, \\infty)$", "x<1 or x>2")],
        [("\\sin(x)^2", "\\sin(x^2)"), ("\\ln(x+1)^2", "2\\ln(x+1)"), ("x > 2 and x < 1", "(1,2)"), ("2", "\\{7\\}"),
         ("x > 1 or x < 2", "(1,2)"), ("x < 1, x > 2", "(1,2)"), ("x > 1, x < 2i", "(1,2)"), ("\\{7, 8\\}", "7")],
    ),
    "a gold answer of words and numbers": (
        [("May 5", "May 5"), ("#### Tuesday, May 5", "Tuesday, May 5"), ("Class 3B", "Class 3B"), ("(A) 5", "(A) 5"),
         ("\\boxed{\\textbf{(A)}\\ 5}", "\\textbf{(A)}\\ 5"), ("\\boxed{5}", "(A) 5"), ("\\boxed{A}", "(A) 5"),
         ("two and a half million", "2500000"), ("So it is one and three quarters.", "7/4"), ("50 percent", "0.5"),
         ("zero point five", "1/2"), ("one hundredth", "0.01"), ("one in four", "1/4")],
        [("May 5", "May 6"), ("\\boxed{(B) 5}", "(A) 5"), ("\\boxed{B}", "(A) 5"), ("ten point five", "10"),
         ("three out of five", "3"), ("one hundredth", "1")],
    ),
    "angles, bases, and letters that could be a unit": (
        [("\\boxed{45^\\circ}", "\\frac{\\pi}{4}"), ("\\boxed{\\frac{2\\pi}{3}}", "120^\\circ"), ("1011", "1011_2"),
         ("\\boxed{FF}", "FF_{16}"), ("\\boxed{2\\pi hr}", "2\\pi r h"), ("\\boxed{^3/_5}", "0.6"), ("³⁄₅", "0.6"),
         ("\\boxed{0.\\dot{3}\\dot{6}}", "4/11"), ("\\boxed{0.1666\\ldots}", "1/6"), ("\\boxed{{}^6C_2}", "15"),
         ("\\boxed{5!=120}", "120"), ("\\boxed{\\text{2 hours and 30 minutes}}", "150 minutes"),
         ("\\boxed{\\text{18元}}", "18"), ("\\boxed{\\text{5:30 PM}}", "5:30 PM"), ("\\boxed{\\text{May 5}}", "May 5"),
         ("\\boxed{x \\in \\mathbb{R}, x \\ne 3}", "(-\\infty,3)\\cup(3,\\infty)"), ("\\boxed{(d)\\ 7}", "7")],
        [("\\boxed{30^\\circ}", "\\frac{\\pi}{3}"), ("\\boxed{\\pi}", "180"), ("1011", "11_2"), ("1011_2", "1011"),
         ("A", "A_2"), ("5 mg", "5 g"), ("\\boxed{^3/_5}", "5/3"), ("x != 3", "3"),
         ("\\boxed{\\text{2 hours and 30 minutes}}", "2 hours"), ("\\boxed{\\text{5元以上}}", "5"), ("x^2C_1", "2")],
    ),
    "what a chain of equations ends with": (
        [("So $\\tan A = \\frac{\\sin A}{\\cos A} = \\frac{8}{15}$.", "8/15"), ("$1+2+\\dots+10 = 55$", "55"),
         ("Hence $\\frac{a}{b} = \\frac{3}{4}$.", "3/4"), ("\\boxed{P(A \\cap B) = \\frac16}", "1/6"),
         ("\\boxed{f^{-1}(x) = 2x}", "2x"), ("\\boxed{E[X] = 3.5}", "7/2"), ("$24 \\equiv 3 \\pmod 7$", "3"),
         ("\\begin{align*} A &= \\pi r^2 \\\\ &= 9\\pi. \\end{align*}", "9\\pi"), ("Answer: \\(x\\) equals 9.", "9"),
         ("## Answer:\nThe value of $n$ is **37**.", "37"), ("The roots are 2 and 5, so their sum is 7.", "7"),
         ("12. Check: 5 + 7 = 12. So our answer is correct.", "12"), ("故答案为：$x=1$ 或 $x=-3$。", "1,-3"),
         ("N leaves a remainder of 3 when divided by 8.", "3"), ("So there are 12 divisors of 72.", "12"),
         ("Las soluciones son x = 4 y x = -4.", "4,-4"), ("Das Ergebnis ist 0,125.", "1/8"), ("选 $C$。", "C")],
        [("\\boxed{\\ln(x+1) = 2}", "2"), ("\\boxed{2x+1=7}", "7"), ("\\boxed{\\sin x = 2}", "x = 2"), ("不选C。", "C"),
         ("The roots are 2 and 5, so their sum is 7.", "2,5"), ("So there are 12 or 13 divisors of 72.", "12"),
         ("\\boxed{1, 2, \\ldots, 10}", "10"), ("The answer is 12. However, that is wrong.", "12"),
         ("So x = 12. This contradicts the given condition.", "12"), ("It would have had to be 12.", "12"),
         ("So far I have \\boxed{12", "12"), ("I get 12, but 15 is also possible.", "15"),
         ("The answer is 42 less than 100.", "42"), ("There are 12 apples, 5 of which are red.", "5")],
    ),
}
# fmt: on


@pytest.mark.parametrize("name", RELATIVES)
def test_relatives_of_a_mistake(math: MathAnswer, name: str) -> None:
    right, wrong = RELATIVES[name]
    assert [row for row in right if math(*row) != 1.0] == []
    assert [row for row in wrong if math(*row) != 0.0] == []


@pytest.mark.parametrize("answer", [None, "", "  ", []])
def test_no_gold_answer_is_missing(math: MathAnswer, answer: Any) -> None:
    assert math("7", answer) is None


def test_the_answer_must_stand_where_required() -> None:
    boxed = MathAnswer(require="boxed")
    assert boxed("\\boxed{7}", 7) == 1.0
    assert boxed("The answer is 7", 7) == 0.0


def test_boxed_balances_braces() -> None:
    assert boxed("a \\boxed{\\frac{1}{\\sqrt{2}}} b") == Statement("\\frac{1}{\\sqrt{2}}")
    assert boxed("\\boxed{\\{1, 2\\}}") == Statement("\\{1, 2\\}")
    assert boxed("\\boxed{3}, no: cut \\boxed{12") == Statement("3")
    assert boxed("nothing") is None


LONG = [
    "answer is " * 3000,
    "The answer is " + "(" * 2000,
    "$" * 3000,
    "<answer>" * 20_000,
    "\\boxed{" * 2000,
    "{" * 5000,
    "a" * 20000,
    "The answer is " + "5 apples and " * 500,
    "\\boxed{" + "1," * 900 + "1}",
    "\n" * 20_000,
    "5 (" * 1000,
    " " * 10_000,
    "the answer is not 14 " * 6000,
]


@pytest.mark.parametrize("response", LONG, ids=[text[:15] for text in LONG])
def test_no_response_takes_long_to_read(math: MathAnswer, response: str) -> None:
    assert math(response, "1") == 0.0


def test_a_gold_answer_is_stated_where_it_is_read() -> None:
    assert MathAnswer().state("72") == "72"
    assert MathAnswer(require="boxed").state("6 * 7\n#### 42") == "\\boxed{42}"
    assert MathAnswer(require="phrase").state("42") == "The answer is $42$."


def test_an_object_as_gold_answer_is_refused(math: MathAnswer) -> None:
    with pytest.raises(NoScoreError, match="is an object"):
        math("5", {"value": 5})


def _gsm8k(folder: Path) -> list[str]:
    files = [folder / "data" / "gsm8k" / name for name in ("train.jsonl", "test.jsonl")]
    return [json.loads(line)["answer"] for path in files for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_gsm8k_whole(math: MathAnswer, shared_dir: Path) -> None:
    """All 8,792 worked solutions score 1 as they stand and as a sentence; one more or one digit more scores 0."""
    golds = _gsm8k(shared_dir)
    assert len(golds) == 8792
    numbers = [gold.rpartition("####")[2].strip() for gold in golds]
    assert all(math(gold, gold) == 1.0 for gold in golds)
    sentences = [f"Add 3 to 4. They have {number} apples in all." for number in numbers]
    assert all(math(said, gold) == 1.0 for said, gold in zip(sentences, golds, strict=True))
    more = [str(float(number.replace(",", "")) + 1) for number in numbers]
    assert not any(math(f"#### {number}", gold) for number, gold in zip(more, golds, strict=True))
    assert not any(math(f"The answer is {number}1", gold) for number, gold in zip(numbers, golds, strict=True))


def _golds(folder: Path, name: str) -> list[Any]:
    files = {
        "svamp": ("math_eval/svamp_test.jsonl", "Answer"),
        "mawps": ("math_eval/mawps_test.jsonl", "target"),
        "math500": ("math_eval/math500_test.jsonl", "answer"),
        "roll": ("roll_math/math_benchmarks.jsonl", "ground_truth"),
    }
    if name == "one_shot_rlvr":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(folder / "data" / "one_shot_rlvr" / "dsr_sub.parquet")
        return [row["reward_model"]["ground_truth"] for row in table.to_pylist()]
    file, column = files[name]
    return [json.loads(line)[column] for line in (folder / "data" / file).read_text().splitlines()]


@pytest.mark.slow_cases("mawps-2065-0", "one_shot_rlvr-1209-1", "svamp-1000-0")
@pytest.mark.parametrize(
    ("name", "rows", "empty"),
    [("svamp", 1000, 0), ("mawps", 2065, 0), ("math500", 500, 0), ("roll", 560, 0), ("one_shot_rlvr", 1209, 1)],
)
def test_gold_answers_of_other_sets(math: MathAnswer, shared_dir: Path, name: str, rows: int, empty: int) -> None:
    """As they stand and at the end of a sentence; one row of One-Shot-RLVR has an empty answer: missing, never 0."""
    golds = _golds(shared_dir, name)
    assert len(golds) == rows
    assert sum(math(str(gold), gold) is None for gold in golds) == empty
    filled = [gold for gold in golds if str(gold).strip()]
    assert [gold for gold in filled if math(str(gold), gold) != 1.0] == []
    assert [gold for gold in filled if math(f"Hence the final answer is ${gold}$.", gold) != 1.0] == []


@pytest.mark.slow
def test_answers_of_other_rows_do_not_score(math: MathAnswer, shared_dir: Path) -> None:
    """Answers of two different problems are equal only where they mean the same."""
    golds = [gold for name in ("math500", "one_shot_rlvr") for gold in _golds(shared_dir, name) if gold.strip()]
    draw = random.Random(0)
    pairs = [(draw.choice(golds), draw.choice(golds)) for _ in range(500)]
    hits = [(gold, other) for gold, other in pairs if gold != other and math(f"\\boxed{{{other}}}", gold)]
    assert len(hits) <= 2, hits
