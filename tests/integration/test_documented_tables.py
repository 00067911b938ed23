"""The tables and lists of the pages have every row that the code has, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from rich.console import Console

from burnish.algorithms.advantages import ESTIMATOR_INPUTS, ESTIMATORS
from burnish.algorithms.policy_losses import POLICY_LOSSES
from burnish.checkpointing import fingerprints
from burnish.checkpointing.run import MAY_DIFFER
from burnish.config.loading import load_run_data
from burnish.config.presets import PRESETS
from burnish.config.schema import RlConfig, SftConfig
from burnish.config.schema_data import DataSource
from burnish.data.schemas import ROLES
from burnish.observability.alarms import DETECTORS
from burnish.rewards.inputs import ROW_VALUES
from burnish.rewards.registry import BUILT_INS
from burnish.trainers.reward_model.loop import train_reward_model
from burnish.trainers.rl.run import train_rl
from burnish.trainers.sft import train_sft

DOCS = Path(__file__).parents[2] / "docs"


def rows_of(text: str, first: str) -> list[list[str]]:
    """Cells of the table whose head begins with this cell."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    assert rows, f"no table with the head {first}"
    return rows


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def paragraph_of(page: str, beginning: str) -> str:
    """The paragraph that holds these words."""
    found = [part for part in (DOCS / page).read_text(encoding="utf-8").split("\n\n") if beginning in part]
    assert len(found) == 1, beginning
    return found[0]


def documented_metrics() -> re.Pattern[str]:
    """All metrics in the tables of docs/operations.md. Capitals and `...` stand for any name."""
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    cells = [
        row[0] for part in text.split("| metric | meaning |")[1:] for row in rows_of(f"| metric |{part}", "metric")
    ]
    names = [name for cell in cells for name in in_backticks(cell)]
    return re.compile("|".join(re.sub(r"[A-Z]+|\\\.\\\.\\\.", ".+", re.escape(name)) for name in names))


def written_metrics(folder: Path) -> set[str]:
    return {name for line in (folder / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)} - {
        "step"
    }


PPO = {"preset": "ppo", "kl_target": 2.0, "entropy_coef": 0.01, "max_epoch_kl": 1.0, "reward_clip": 2.0,
       "advantage_clip": 2.0, "whiten_rewards": True, "loss_options": {"dual_clip": 3.0}}  # fmt: skip
GRPO = {"preset": "grpo", "kl_in": "none", "kl_coef": 0, "dynamic_sampling": True, "skip_zero_advantages": True,
        "overlong_buffer": 0.5, "mismatch_correction": "token_truncate"}  # fmt: skip


@pytest.mark.parametrize(
    "algorithm", [PPO, GRPO, {"preset": "grpo", "kl_coef": 0.1, "loss": "clip_cov"}], ids=["ppo", "grpo", "cov"]
)
def test_every_metric_of_rl_is_in_the_tables(algorithm: dict[str, Any], tiny_run: Callable[..., RlConfig]) -> None:
    config = tiny_run(algorithm=algorithm, steps=2, evaluation={"every_steps": 1, "samples": 2, "max_prompts": 4})
    train_rl(config, console=Console(quiet=True))
    found = written_metrics(Path(config.output))
    assert len(found) > 50
    assert not [name for name in sorted(found) if not documented_metrics().fullmatch(name)]


def test_every_metric_of_sft_and_rm_is_in_the_tables(
    tiny_sft: Callable[..., SftConfig], tiny_model: Path, tmp_path: Path
) -> None:
    sft = tiny_sft(output=str(tmp_path / "sft"))
    train_sft(sft, console=Console(quiet=True))
    pairs = [{"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": "0+0", "margin": n % 2} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    data = {
        "output": str(tmp_path / "rm"),
        "model": str(tiny_model),
        "data": {"train": str(tmp_path / "pairs.jsonl")},
        "held_out_fraction": 0.3,
        "max_tokens": 16,
        "steps": 2,
        "margins": True,
        "normalization": {"kind": "gain_bias", "trainable": True, "responses": 8, "max_response_tokens": 2},
        "optimization": {"comparisons_per_batch": 4},
        "logging": {"sinks": []},
    }
    train_reward_model(load_run_data(data, [], "rm").rm, console=Console(quiet=True))
    found = written_metrics(tmp_path / "sft") | written_metrics(tmp_path / "rm")
    assert len(found) > 30
    assert not [name for name in sorted(found) if not documented_metrics().fullmatch(name)]


def test_the_table_of_alarms_has_every_alarm() -> None:
    rows = rows_of((DOCS / "operations.md").read_text(encoding="utf-8"), "alarm")
    assert {row[0] for row in rows} == {detector.name for detector in DETECTORS}
    metrics = {detector.name: detector.metric for detector in DETECTORS}
    for name, fires_when, _ in rows:
        for metric in in_backticks(fires_when):
            assert "/" not in metric or metric.partition("/")[0] == metrics[name].partition("/")[0], name


def test_the_table_of_built_in_rewards_is_the_code() -> None:
    rows = rows_of((DOCS / "rewards.md").read_text(encoding="utf-8"), "name")
    assert {row[0].strip("`") for row in rows} == set(BUILT_INS)
    for name, _, options in rows:
        named = set(in_backticks(options))
        assert set(BUILT_INS[name.strip("`")].options) <= named, name


def test_the_layouts_and_roles_of_data_are_the_code() -> None:
    text = (DOCS / "data.md").read_text(encoding="utf-8")
    named = {word for row in rows_of(text, "layout (`schema_name`)") for word in in_backticks(row[0])}
    assert named == set(get_args(DataSource.model_fields["schema_name"].annotation)) - {"auto"}
    roles = paragraph_of("data.md", "**`columns`** names").partition("Roles:")[2].partition("Dots reach")[0]
    assert set(in_backticks(roles)) == set(ROLES)


def test_the_fields_that_may_differ_at_a_resume_are_the_code() -> None:
    text = paragraph_of("operations.md", "These fields may differ").partition("These fields may differ")[2]
    listed = text.partition("`steps`")[0]
    assert set(in_backticks(listed)) == set(MAY_DIFFER)


def test_the_packages_in_fingerprints_are_the_code() -> None:
    text = (
        paragraph_of("operations.md", "A checkpoint also holds `fingerprints.json`")
        .partition("the versions of")[2]
        .partition(". ")[0]
    )
    named = {word.strip().casefold() for word in re.split(r",| and ", " ".join(text.split()))}
    assert named == {"burnish", "python", *fingerprints.PACKAGES}


def test_what_an_estimator_may_ask_for_is_the_code() -> None:
    rows = rows_of((DOCS / "extending.md").read_text(encoding="utf-8"), "parameter")
    assert {name for row in rows for name in in_backticks(row[0])} == set(ESTIMATOR_INPUTS)
    listed = paragraph_of("algorithms.md", "Names that it may ask for:").partition("Asking for")[0]
    assert set(in_backticks(listed)) == set(ESTIMATOR_INPUTS)


def test_what_a_reward_may_ask_for_is_the_code() -> None:
    rows = rows_of((DOCS / "rewards.md").read_text(encoding="utf-8"), "parameter")
    named = {name for row in rows for name in in_backticks(row[0])} - {"**columns"}
    assert named == set(ROW_VALUES)
    plurals = {name for row in rows for name in in_backticks(row[2])}
    assert plurals == {plural for name, (plural, _) in ROW_VALUES.items() if plural != name}


def test_the_comparison_counts_the_values_of_our_example() -> None:
    def values(node: Any) -> int:
        return sum(map(values, node.values())) if isinstance(node, dict) else 1

    example = yaml.safe_load((DOCS.parent / "examples/gsm8k_grpo/run.yaml").read_text(encoding="utf-8"))
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if "values set" in line]
    assert f"| {values(example)} in one YAML file" in row


def test_the_comparison_counts_our_algorithms() -> None:
    text = (DOCS / "comparison.md").read_text(encoding="utf-8")
    counts = (len(ESTIMATORS), len(POLICY_LOSSES), len(PRESETS))
    assert "{} estimators, {} policy losses, {} presets".format(*counts) in text
