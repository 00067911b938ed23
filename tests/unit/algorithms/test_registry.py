import re
import sys
import types
from pathlib import Path

import pytest
import torch

from burnish.algorithms import advantages, policy_losses
from burnish.algorithms.advantages import ESTIMATORS, resolve_estimator
from burnish.algorithms.aggregation import AGGREGATIONS
from burnish.algorithms.kl import KL_ESTIMATORS
from burnish.algorithms.pair_losses import PAIR_LOSSES
from burnish.algorithms.policy_losses import PolicyLoss
from burnish.algorithms.policy_losses.table import POLICY_LOSSES, resolve_policy_loss
from burnish.errors import ConfigError

TABLES = {
    "ESTIMATORS": ESTIMATORS,
    "POLICY_LOSSES": POLICY_LOSSES,
    "PAIR_LOSSES": PAIR_LOSSES,
    "AGGREGATIONS": AGGREGATIONS,
    "KL_ESTIMATORS": KL_ESTIMATORS,
}
ROWS = [pytest.param(key, row, id=f"{table}-{key}") for table, rows in TABLES.items() for key, row in rows.items()]
DOCS = Path(__file__).resolve().parents[3] / "docs" / "algorithms.md"


@pytest.mark.parametrize(("key", "row"), ROWS)
def test_every_row_is_complete_and_documented_with_formula_source_and_options(key, row):
    assert row.name == key
    assert row.source.startswith(("https://", "http://"))
    assert row.summary
    assert row.function.__doc__
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    documented = [line for line in lines if line.startswith(f"| `{key}` |")]
    assert len(documented) == 1
    assert f"`{row.formula}`" in documented[0].replace("\\|", "|")
    assert f"({row.source})" in documented[0]
    assert all(f"`{option}`" in "".join(lines) for option in row.options)


def test_rows_are_importable_by_their_names():
    for key, row in ESTIMATORS.items():
        # `remax` of scores alone is public too; the row works by token
        assert vars(advantages)[{"remax": "remax_per_token"}.get(key, key)] is row.function
    for key, loss in POLICY_LOSSES.items():
        assert vars(policy_losses)[key] is loss.function


def halved(scores_B, group_ids_B, *, factor=0.5):
    """Half the score."""
    return scores_B * factor


def mystery(scores_B, rewards_B):
    """Asks for what nobody has."""


def catch_all(*tensors):
    """Hides what it needs."""


def constant_loss(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, *, level=1.0):
    """One everywhere."""
    return PolicyLoss(torch.full_like(logprobs_BT, level), {})


@pytest.fixture
def outside(monkeypatch):
    module = types.ModuleType("my_algorithms")
    for function in (halved, mystery, catch_all, constant_loss):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "my_algorithms", module)


@pytest.mark.usefixtures("outside")
def test_functions_from_outside_are_found_and_understood():
    estimator = resolve_estimator("my_algorithms:halved")
    assert "group_ids_B" in estimator.inputs
    assert not estimator.token_level
    assert estimator.options == {"factor": 0.5}
    assert estimator.summary == "Half the score."
    tensors = {"scores_B": torch.tensor([2.0]), "group_ids_B": torch.tensor([0])}
    assert estimator(tensors, {"factor": 0.25}).tolist() == [0.5]
    loss = resolve_policy_loss("my_algorithms:constant_loss")
    assert loss.options == {"level": 1.0}
    assert not loss.selection


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("resolve", "name", "words"),
    [
        (resolve_estimator, "my_algorithms:mystery", "asks for 'rewards_B'"),
        (resolve_estimator, "my_algorithms:catch_all", "every parameter"),
        (resolve_estimator, "my_algorithms:halve", "did you mean 'halved'"),
        (resolve_estimator, "my_algorithm:halved", "cannot import module 'my_algorithm'"),
        (resolve_estimator, ":halved", "package.module:function"),
        (resolve_estimator, "my_algorithms:", "package.module:function"),
        (resolve_policy_loss, "my_algorithms:halved", "takes (scores_B, group_ids_B)"),
        (resolve_estimator, "GRPO", "did you mean 'grpo'"),
        (resolve_estimator, "drgrpo", "did you mean 'dr_grpo'"),
        (resolve_policy_loss, "ppo-clip", "did you mean 'ppo_clip'"),
        (resolve_policy_loss, "xyz", "known: ppo_clip"),
    ],
)
def test_names_that_lead_nowhere_say_why(resolve, name, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        resolve(name)


PARTS = """
from neighbour import FACTOR
import torch
from burnish.algorithms.policy_losses import PolicyLoss

ran = []


def scaled(scores_B, *, factor=FACTOR):
    return scores_B * factor


def constant(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT):
    return PolicyLoss(torch.full_like(logprobs_BT, 2.0), {})
"""


@pytest.fixture
def parts_file(tmp_path, monkeypatch):
    (tmp_path / "neighbour.py").write_text("FACTOR = 3.0\n")
    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return "parts.py"


def test_a_file_gives_estimators_and_losses(parts_file, tmp_path):
    estimator = resolve_estimator(f"{parts_file}:scaled")
    assert estimator({"scores_B": torch.tensor([2.0])}, estimator.options).tolist() == [6.0]
    loss = resolve_policy_loss(f"./{parts_file}:constant")  # the same file by another name: run once all the same
    assert loss.function.__module__ == estimator.function.__module__
    assert resolve_estimator(f"{tmp_path}/{parts_file}:scaled").function is estimator.function


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("part.py:scaled", "there is no file 'part.py'"),
        ("parts.py:scale", "did you mean 'scaled'"),
        ("parts.py:", "path/to/file.py:function"),
        ("broken.py:scaled", "its file fails: ZeroDivisionError: division by zero"),
        ("torn.py:scaled", "its file fails: SyntaxError"),
        ("leaving.py:scaled", "its file fails: SystemExit"),
    ],
)
def test_files_that_lead_nowhere_say_why(parts_file, tmp_path, place, words):
    for name, code in {"broken": "1 / 0", "torn": "def scaled(", "leaving": "raise SystemExit(3)"}.items():
        (tmp_path / f"{name}.py").write_text(code)
    for _ in range(2):  # a file that failed has left nothing behind
        with pytest.raises(ConfigError, match=re.escape(words)) as caught:
            resolve_estimator(place)
        assert "advantage estimator" in str(caught.value)
