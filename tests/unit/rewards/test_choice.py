"""The reward `choice`: whose options are whose, and which one a response states."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.rewards.builtins.choice import Choice, stated_option
from burnish.rewards.builtins.choice_rows import Question, question_of_row
from burnish.rewards.builtins.reading_rows import NoScoreError

CITIES = Question(("A", "B", "C", "D"), ("Paris", "Rome", "Berlin", "A dog"), 1)
A, B, D, NONE = 0, 1, 3, None

STATED = [
    ("B", B), ("b", B), ("(B)", B), ("**B**", B), ("$B$", B), ("It's B.", B), ("So B.", B), ("Rome", B), ("A dog", D),
    ("The answer is B.", B), ("The answer is A.", A), ("The answer is A because of x", A), ("The answer is A dog", D),
    ("the answer is rome", B), ("The answer is, I think, B", B), ("The answer is B, not A", B), ("Answer: **Rome**", B),
    ("**Answer:** B", B), ("Answer:\nB", B), ("### Answer\nB", B), ("Answer: B (A is wrong)", B),
    ("The answer is **B. Rome**.", B), ("The correct option is B", B), ("Option B is correct.", B),
    ("Rome is the right answer", B), ("The answer is 'Rome'.", B), ("The correct answer is therefore (B) Rome.", B),
    ("Therefore, the answer is **(B)**.\n\nLet me know if you have questions!", B), ("The answer is B's", NONE),
    ("I choose B", B), ("#### B", B), (r"\boxed{\text{(B)}}", B), ("<answer>\n(B) Rome\n</answer>", B),
    ("<think>the answer is A</think> B", B), ("A. Paris\nB. Rome\nC. Berlin\nD. A dog\n\nB", B),
    # the last statement counts
    ("Answer: C ... no, the answer is B", B), ("Answer: A. Answer: B", B),
    ("The answer is B\nThe question asks about A", B), ("The answer is A. The answer is B", B),
    # what is said of other options
    ("The answer is B. A is wrong because it is in France.", B), ("The answer is B. C is incorrect.", B),
    ("The correct answer is B. A, C and D are incorrect.", B), ("The answer is B, A and C are wrong.", B),
    ("The answer is Rome. Paris is the capital of France.", B), ("The answer is B. Paris is the capital of France.", B),
    ("The answer is B. Paris and Berlin are wrong.", B), ("The answer is B. I think A is tempting.", B),
    ("The answer is B - A is the capital of France", B), ("The answer is B. None of A, C, D is right.", B),
    ("The answer is B. Neither A nor D is right.", B), ("The answer is B. I don't think A is correct.", B),
    ("The answer is B. If A is correct, Rome is in France.", B), ("A is not in Italy, so B is correct.", B),
    ("The answer is probably, I think, B.", B), ("None of A, C, D is right.", NONE),
    # several at once, none, or what it is not
    ("A or B", NONE), ("The answer is A or B", NONE), ("The answer is either A or B.", NONE),
    ("The answer is Rome or Paris", NONE), ("The answer is A, B or C", NONE), ("A and B", NONE),
    ("The answer is B. Rome or A. Paris", NONE), ("The answer is A/B.", NONE), ("The answer is A to C.", NONE),
    ("The answer is Parıs", NONE), ("ParİS", NONE), ("Answer: B (or A)", NONE), ("Answer: (A)(B)", NONE),
    ("A, B, C, D", NONE), ("The answer is A B C D", NONE), ("A\nB\nC\nD", NONE),
    ("A. Paris\nB. Rome\nC. Berlin\nD. A dog", NONE), ("B) Paris", NONE), ("The answer is B. Paris", NONE),
    ("Answer: B. But then the answer is not B.", NONE), ("B is not correct", NONE), ("the answer is romeo", NONE),
    ("The answer is ABCD", NONE),
    # what is taken back, and what is concluded in the last clause
    ("I choose A. Wait, actually B.", B), ("The answer is A. No, B.", B), ("The answer is B. No, A is wrong.", B),
    ("The answer is A. Wait, that's wrong. It's B.", B), ("The answer is not A but B.", B),
    ("The answer is not A, but C or D", NONE), ("A is wrong, so B.", B), ("Hmm, so either A, or B", NONE),
    ("A. Paris B. Rome C. Berlin D. A dog", NONE), ('{"answer": "B"}', B),
    # what was chosen
    ("I think it's B.", B), ("My pick: B", B), ("I'm going with B", B), ("Let's go with option B.", B),
    ("I'd say it's B", B), ("I'm pretty sure it is B.", B), ("I'm not sure it's B.", NONE), ("It must be B.", B),
    ("That leaves us with B.", B), ("This leaves B and C.", NONE), ("B it is.", B), ("If B it is, then what?", NONE),
    ("Ans. B", B), ("My vote goes to A, not B", A), ("I wouldn't say it's B", NONE), ("=> B", B),
    ("The option that fits best is not B", NONE), ("We need to pick B first.", NONE), ("So B is the one.", B),
    # other languages
    ("La opción correcta es la B", B), ("La respuesta no es la B", NONE), ("<answer>B, not A</answer>", B),
    ("A alternativa correta é a B", B), ("Верный вариант: B", B), ("选项B正确", B), ("选项B不正确", NONE),
    ("Bが正しいです", B), ("B가 정답이 아니다", NONE), ("答案是B", B), ("正确答案是：B。罗马", B),
    ("所以选B，不选A", B), ("答案是A或B", NONE), ("答案不是B", NONE), ("答えはBです", B), ("答えはAかBです", NONE),
    ("정답은 B입니다", B), ("정답은 B가 아닙니다", NONE), ("La respuesta es B.", B), ("La respuesta es A o B", NONE),
    ("Die Antwort ist nicht A, sondern B.", B), ("La réponse n'est pas B.", NONE), ("Ответ: B", B), ("الجواب هو B", B),
    ("I have no idea", NONE), ("<think>The answer is B", NONE), ("", NONE),
]  # fmt: skip


@pytest.mark.parametrize(("response", "position"), STATED)
def test_what_a_response_states(response: str, position: int | None) -> None:
    assert stated_option(response, CITIES) == position


def test_numbers_are_not_taken_from_longer_ones() -> None:
    numbers = Question(("A", "B", "C"), ("12", "2", "12%"), 0)
    assert stated_option("The answer is 12.", numbers) == 0
    assert stated_option("The answer is 12%", numbers) == 2
    assert stated_option("The answer is 2,000", numbers) is None
    assert stated_option("The answer is -2", numbers) is None
    arc = Question(("1", "2", "3"), ("ice", "steam", "3 moons"), 1)
    assert stated_option("Answer: 2", arc) == 1
    assert stated_option("Answer: 3 moons", arc) == 2
    assert stated_option("There are 2", arc) is None


ROWS: list[tuple[dict[str, Any], Any, tuple[tuple[str, ...], tuple[str, ...], int]]] = [
    ({"choices": ["x", "y"]}, 1, (("A", "B"), ("x", "y"), 1)),  # MMLU
    ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}}, "2", (("1", "2"), ("x", "y"), 1)),  # ARC
    ({"options": {"A": "x", "B": "y"}}, "y", (("A", "B"), ("x", "y"), 1)),  # MedQA
    ({"options": ["A)21", "B)21.5"]}, "B", (("A", "B"), ("21", "21.5"), 1)),  # AQuA
    ({"options": '["x", "y"]'}, "(b)", (("A", "B"), ("x", "y"), 1)),
    ({"choices": [1, 2]}, "2", (("A", "B"), ("1", "2"), 1)),
    ({"choices": [], "options": ["a", "b"]}, "a", (("A", "B"), ("a", "b"), 0)),  # a label before a text
]


@pytest.mark.parametrize(("columns", "answer", "question"), ROWS)
def test_layouts_are_recognised(columns: dict[str, Any], answer: Any, question: Any) -> None:
    assert question_of_row(columns, answer) == Question(*question)


def test_rows_without_options_or_answer_have_no_score() -> None:
    assert Choice()("B", "B") is None
    assert Choice()("B", None, choices=["x", "y"]) is None
    assert Choice("endings")("B", "B", choices=["x", "y"]) is None
    named = Choice("endings")("B", 1, endings=["x", "y"])
    assert named is not None
    assert (named.value, dict(named.parts)) == (1.0, {"stated": 1.0})
    unclear = Choice()("A or B", 1, choices=["x", "y"])
    assert unclear is not None
    assert (unclear.value, dict(unclear.parts)) == (0.0, {"stated": 0.0})


@pytest.mark.parametrize(
    ("columns", "answer", "why"),
    [
        ({"choices": ["x", "y"]}, 2, "2 is not a position among the 2 options"),
        ({"choices": ["x", "y"]}, "z", "no option has this label or text; the labels are A, B"),
        ({"choices": ["x", "x"]}, "x", "several options have this text"),
        ({"choices": ["x"]}, 0, "needs two or more options"),
        ({"choices": {"text": ["x", "y"], "label": ["A"]}}, "A", "each with its own label"),
        ({"options": "[1"}, "A", "column 'options' is not valid JSON"),
        ({"options": 7}, "A", "must be a list of options"),
        ({"options": {"A": "", "B": " "}}, "A", "all options in the column 'options' are empty"),
    ],
)
def test_rows_that_cannot_be_read_are_an_error(columns: dict[str, Any], answer: Any, why: str) -> None:
    with pytest.raises(NoScoreError, match=why):
        question_of_row(columns, answer)


@pytest.mark.slow
@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 3), st.sampled_from(["The answer is {}.", "{}"]))
def test_the_order_of_the_options_changes_no_verdict(order: list[int], gold: int, said: int, form: str) -> None:
    """Stated by text the response stays, stated by label the label moves with its option."""
    texts = tuple(CITIES.texts[index] for index in order)
    moved = Question(CITIES.labels, texts, order.index(gold))
    right = said == gold
    assert (stated_option(form.format(CITIES.texts[said]), moved) == moved.gold) is right
    assert (stated_option(form.format(CITIES.labels[order.index(said)]), moved) == moved.gold) is right


@pytest.mark.slow
@given(
    st.lists(st.sampled_from("ABCD"), min_size=2, unique=True), st.sampled_from([", ", " ", "/", " or ", " and ", "\n"])
)
def test_a_list_of_labels_is_no_answer(labels: list[str], between: str) -> None:
    assert stated_option(between.join(labels), CITIES) is None
    if between != "\n":
        assert stated_option(f"The answer is {between.join(labels)}", CITIES) is None
