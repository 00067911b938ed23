"""Where a run may write: never over what it reads, so that starting anew moves nothing away that it needs."""

from pathlib import Path
from typing import Any

import pytest

from burnish.checkpointing.sources import check_output
from burnish.config.schema import RlConfig, RmConfig
from burnish.errors import ConfigError

BASE = {"model": "owner/model", "data": {"train": "owner/data"}, "rewards": "math"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run, with a file of each kind in it."""
    for name in ("config.yaml", "reward.py", "template.jinja", "rows.jsonl"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_text("")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("model.path", {"model": "RUN@best"}),
        ("model.tokenizer", {"model": {"path": "owner/model", "tokenizer": "RUN@3"}}),
        ("model.chat_template", {"model": {"path": "owner/model", "chat_template": "RUN/template.jinja"}}),
        ("data.eval.0", {"data": {"train": "owner/data", "eval": "RUN/rows.jsonl"}}),
        ("rewards.0", {"rewards": "model:RUN@200"}),
        ("rewards.0", {"rewards": "RUN/reward.py:score"}),
        ("algorithm.estimator", {"algorithm": {"estimator": "RUN/reward.py:mine"}}),
        ("critic.init", {"algorithm": {"estimator": "gae"}, "critic": {"init": "RUN"}}),
    ],
)
def test_what_an_rl_run_reads_may_not_lie_where_it_writes(run: Path, field: str, given: dict[str, Any]) -> None:
    config = RlConfig.model_validate(BASE | {"output": str(run)} | _with_run(given, run))
    with pytest.raises(ConfigError, match=rf"is or contains .*, which {field}( |\.)"):
        check_output(config)
    check_output(config.model_copy(update={"output": str(run.parent / "other")}))


@pytest.mark.parametrize("field", ["policy", "prompts", "references"])
def test_nor_what_a_reward_model_is_normalised_on(run: Path, field: str) -> None:
    place = run if field == "policy" else run / "rows.jsonl"
    settings = {"kind": "bias", "on": "references" if field == "references" else "policy", field: str(place)}
    data = {"model": "owner/model", "data": {"train": "owner/data"}, "output": str(run), "normalization": settings}
    with pytest.raises(ConfigError, match=rf"which normalization\.{field}"):
        check_output(RmConfig.model_validate(data))


def test_an_option_of_a_reward_may_name_what_the_reward_writes_there(run: Path) -> None:
    rewards = [{"name": "math", "options": {"cache": str(run / "rows.jsonl")}}]
    check_output(RlConfig.model_validate(BASE | {"output": str(run), "rewards": rewards}))


def _with_run(value: Any, run: Path) -> Any:
    if isinstance(value, dict):
        return {key: _with_run(item, run) for key, item in value.items()}
    return value.replace("RUN", str(run)) if isinstance(value, str) else value
