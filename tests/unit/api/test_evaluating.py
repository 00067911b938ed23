"""What `burnish.evaluate` refuses before it measures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import burnish
from burnish.api import evaluating
from burnish.api.inputs import Inputs
from burnish.config.schema import RlConfig
from burnish.errors import BurnishError, ConfigError
from burnish.trainers.result import EvalReport

ROWS = [{"prompt": "1+1=", "answer": "2", "domain": "sums"}]


def brief(response: str) -> float:
    return 1.0 / (1.0 + len(response))


def run_of(folder: Path, **fields: Any) -> dict[str, Any]:
    run = {"model": "m", "data": {"train": ROWS}, "rewards": "contains", "output": str(folder / "run")}
    return run | fields


@pytest.mark.parametrize(
    ("own", "given", "words"),
    [
        ({"rewards": "exact"}, {"rewards": brief}, 'got rewards, .*domain sums(?s:.*)domains={"sums": {"rewards"'),
        ({"eval": ROWS}, {"data": ROWS}, 'got data, .*domain sums(?s:.*)domains={"sums": {"eval"'),
    ],
)
def test_what_a_domain_has_of_its_own_is_not_half_replaced(
    own: dict[str, Any], given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        burnish.evaluate(run_of(tmp_path, domains={"sums": own, "words": {}}), quiet=True, **given)


def test_what_a_domain_has_of_its_own_is_replaced_by_name(tmp_path: Path) -> None:
    """What is refused then is the model, which does not exist."""
    run = run_of(tmp_path, model=str(tmp_path / "none"), domains={"sums": {"rewards": "exact"}, "words": {}})
    replaced = {"sums": {"rewards": [brief]}}
    with pytest.raises(BurnishError, match=re.escape(str(tmp_path / "none"))):
        burnish.evaluate(run, data=ROWS, rewards="contains", domains=replaced, quiet=True)


def test_evaluations_at_the_same_time_read_their_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one comes to where rows are written while the first is about to write its own."""
    write, read = evaluating.write_inputs, []

    def evaluate(answer: str) -> None:
        burnish.evaluate(run_of(tmp_path), data=[{"prompt": "1+1=", "answer": answer}], quiet=True)

    def waiting(inputs: Inputs, *, may_change: bool) -> None:
        monkeypatch.setattr(evaluating, "write_inputs", write)
        evaluate("second")
        write(inputs, may_change=may_change)

    def reading(config: RlConfig, *rest: object) -> EvalReport:
        (source,) = config.data.eval
        read.append(json.loads(Path(source.path).read_text())["answer"])
        return EvalReport({}, tmp_path / "metrics.json", None)

    monkeypatch.setattr(evaluating, "write_inputs", waiting)
    monkeypatch.setattr(evaluating, "measured", reading)
    evaluate("first")
    assert read == ["second", "first"]
    assert len(list((tmp_path / "run" / "eval" / "inputs").iterdir())) == 2
