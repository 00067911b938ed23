"""Each formula has one home. What is tested here is run, and where a formula has a second form the two agree."""

import ast
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from source_trees import SOURCE, parse_folder

from burnish.algorithms.comparison_losses import best_of, share_of_first
from burnish.algorithms.shaping import overlong_penalty
from burnish.rewards.builtins.text import Overlong
from burnish.trainers.reward_model.preference_metrics import ScoredComparison

HOME = SOURCE / "algorithms"


def _names_used(tree: ast.AST) -> set[str]:
    """Names that code refers to; imports alone do not count."""
    nodes = list(ast.walk(tree))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


def _definitions(tree: ast.Module) -> dict[str, set[str]]:
    """Functions, classes and tables of a module, and the names that each refers to."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = _names_used(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = _names_used(node.value)
    return found


@pytest.mark.slow
def test_every_formula_runs() -> None:
    """From the rooms that use formulas, through tables and other formulas, every public one is reached. One that only
    tests use is dead, or the twin of something that runs."""
    uses: dict[str, set[str]] = {}
    reached: set[str] = set()
    for file, tree in parse_folder(SOURCE).items():
        if HOME not in file.parents:
            reached |= _names_used(tree)
            continue
        for name, used in _definitions(tree).items():
            uses[name] = uses.get(name, set()) | used
    waiting = reached & uses.keys()
    while waiting:
        found = uses[waiting.pop()] - reached
        reached |= found
        waiting |= found & uses.keys()
    assert len(uses) > 80
    assert not sorted(name for name in uses if not name.startswith("_") and name not in reached)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(length=st.integers(1, 200), maximum=st.integers(1, 150), data=st.data())
def test_the_reward_overlong_is_the_penalty_of_the_algorithm(length: int, maximum: int, data: st.DataObject) -> None:
    """The built-in reward runs in a process without torch, so it has the formula in plain numbers."""
    buffer = data.draw(st.integers(1, maximum))
    expected = overlong_penalty(torch.tensor([length]), max_response_tokens=maximum, buffer_tokens=buffer).item()
    assert Overlong(maximum, buffer)(length) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(scores=st.lists(st.integers(-3, 3), min_size=2, max_size=5), data=st.data())
def test_comparisons_are_judged_alike_in_training_and_evaluation(scores: list[int], data: st.DataObject) -> None:
    """Training reads tensors, evaluation the plain numbers of a finished pass."""
    best = data.draw(st.integers(0, len(scores) - 1))
    comparison = ScoredComparison(tuple(map(float, scores)), (1,) * len(scores), best)
    scores_BK = torch.tensor([[*scores, 9]], dtype=torch.float64)
    mask_BK = torch.tensor([[True] * len(scores) + [False]])
    column = torch.tensor([best])
    assert share_of_first(scores_BK, column, mask_BK=mask_BK).item() == pytest.approx(comparison.hit)
    assert best_of(scores_BK, column, mask_BK=mask_BK).item() == pytest.approx(comparison.loss, abs=1e-12)
    assert math.isfinite(comparison.loss)
