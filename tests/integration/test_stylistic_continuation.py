"""The 2019 pipeline on a real model: labels, reward model, PPO with the preset `oai_2019` (learning is slow)."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from runs import lines_of, rows_of

from burnish.cli import main
from burnish.config.loading import load_run_file
from burnish.config.schema import RlConfig, RmConfig

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "stylistic_continuation"
FOLDER = "examples/stylistic_continuation"


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.syspath_prepend(str(EXAMPLE))


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_descriptiveness() -> None:
    styles = script("styles")
    assert styles.descriptiveness("The big red ball was soft!") == 0.5
    assert styles.descriptiveness("...") == 0.0


def test_the_run_files_say_what_they_change() -> None:
    loaded = load_run_file(EXAMPLE / "rl.yaml", [], "rl")
    policy = loaded.of(RlConfig)
    assert policy.algorithm.preset == "oai_2019"
    assert policy.algorithm.kl_target == 6.0
    assert loaded.provenance["scoring.truncate_token"] == "preset oai_2019"
    reward_model = load_run_file(EXAMPLE / "rm.yaml", [], "rm").of(RmConfig)
    folder = f"{reward_model.output}/checkpoints/step-{reward_model.steps:06d}/policy"
    assert policy.rewards[0].name == f"model:{folder}"
    labelled = [source.path for source in (*reward_model.data.train, *reward_model.data.eval)]
    assert {Path(path).parent for path in labelled} == {Path(source.path).parent for source in policy.data.train}


@pytest.mark.slow
def test_labels_are_of_the_published_schema(stories: Path, stories_model: Path, tmp_path: Path) -> None:
    said = list(script("label").prepare(str(stories_model), stories, tmp_path, style="descriptiveness", labels=40))
    assert "comparisons have one best" in said[0]
    row = lines_of(tmp_path / "labels.jsonl")[0]
    assert list(row) == ["query", "sample0", "sample1", "sample2", "sample3", "best"]
    assert len(row["query"]) <= 64
    assert {len(row[f"sample{n}"]) for n in range(4)} == {24}
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(stories_model)
    assert tokenizer.decode(row["query"]).endswith(".")
    rule = script("styles").descriptiveness
    scores = [rule(tokenizer.decode(row[f"sample{n}"], skip_special_tokens=True)) for n in range(4)]
    assert scores.index(max(scores)) == row["best"]
    documents = [set((tmp_path / f"{name}.txt").read_text().split("\n\n")) for name in ("train", "heldout")]
    assert not documents[0] & documents[1]


@pytest.mark.matrix  # three CPU minutes
def test_oai_2019_on_stories(stories: Path, stories_model: Path, tmp_path: Path) -> None:
    """A third of the sizes of the example: learned score and true sentiment rise together, within the KL asked for."""
    list(script("label").prepare(str(stories_model), stories, tmp_path, style="sentiment", labels=2200))
    given = [f"model.path={stories_model}", "model.device=cpu", "logging.sinks=[]"]
    words = [
        f"data.train={tmp_path}/labels.jsonl",
        f"data.eval={tmp_path}/heldout_labels.jsonl",
        f"output={tmp_path}/rm",
        "steps=55",
    ]
    assert main(["rm", f"{FOLDER}/rm.yaml", *given, *words]) == 0
    learned = rows_of(tmp_path / "rm")
    assert learned[-1]["eval/accuracy_low"] > 0.4  # chance is .25
    words = [
        f"data.train={tmp_path}/train.txt",
        f"data.eval={tmp_path}/heldout.txt",
        f"rewards.0.name=model:{tmp_path}/rm/checkpoints/step-000055/policy",
        f"output={tmp_path}/policy",
        "steps=16",
        "evaluation.every_steps=16",
    ]
    assert main(["rl", f"{FOLDER}/rl.yaml", *given, *words]) == 0
    trained = [row for row in rows_of(tmp_path / "policy") if "reward/part/learned" in row]

    def change(metric: str) -> float:
        values = [row[metric] for row in trained]
        return mean(values[-3:]) - mean(values[:3])

    assert change("reward/part/learned") > 0.5
    assert change("reward/part/sentiment") > 0.15
    assert change("reward/incomplete_fraction") < 0.05
    assert 2 < trained[-1]["kl/reference"] < 12
    assert {row["rollout/response_tokens_mean"] for row in trained} == {24.0}
    assert trained[0]["critic/value_mean"] == 0.0
    assert trained[0]["policy/optimizer_steps"] == 4


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
