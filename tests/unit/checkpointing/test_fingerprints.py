"""What a run depends on besides its run file, and what is said when it has changed."""

import dataclasses
import hashlib
import os
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.checkpointing import fingerprints
from burnish.checkpointing.fingerprints import Fingerprints, FingerprintsInProgress, refuse_changes
from burnish.checkpointing.sources import named_files
from burnish.config.schema import RlConfig, RmConfig, RunConfig, SftConfig
from burnish.errors import CheckpointError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model, data, and a reward that imports its neighbours, one of them by way of another."""
    files = {
        "model/config.json": "{}",
        "model/model.safetensors": "weights",
        "model/tokenizer.json": "{}",
        "model/README.md": "read me",
        "train.jsonl": "{}\n",
        "words.txt": "good",
        "reward.py": "import json\nimport helper\nfrom pack.inner import score\n",
        "helper.py": "from deeper import limit\n",
        "deeper.py": "limit = 1\n",
        "pack/__init__.py": "",
        "pack/inner.py": "from . import table\n",
        "pack/table.py": "",
        "unrelated.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def rl(place: Path, **fields: Any) -> RlConfig:
    data = {
        "model": str(place / "model"),
        "data": {"train": str(place / "train.jsonl")},
        "rewards": [{"name": f"{place}/reward.py:digits", "options": {"words": str(place / "words.txt"), "n": 3}}],
    }
    return RlConfig.model_validate(data | fields)


def names(config: RunConfig) -> set[str]:
    return set(named_files(config))


MODEL = {"model.path: config.json", "model.path: model.safetensors", "model.path: tokenizer.json"}


def test_every_file_that_matters_is_found_and_no_other(place: Path) -> None:
    assert names(rl(place)) == {
        *MODEL,
        "data.train.0: train.jsonl",
        "rewards.0: reward.py",
        "rewards.0: helper.py",
        "rewards.0: deeper.py",
        "rewards.0 pack: __init__.py",
        "rewards.0 pack: inner.py",
        "rewards.0 pack: table.py",
        "rewards.0.options.words: words.txt",
    }


def test_a_reward_of_a_domain_has_the_path_that_the_run_file_has(place: Path) -> None:
    reward = {"name": f"{place}/reward.py:digits"}
    domains = {"sums": {"train": str(place / "train.jsonl"), "rewards": [reward]}}
    config = RlConfig.model_validate({"model": str(place / "model"), "rewards": "exact", "domains": domains})
    assert {"domains.sums.rewards.0: reward.py", "domains.sums.rewards.0: helper.py"} <= names(config)


def test_without_its_weights_a_model_is_configuration_and_tokenizer(place: Path) -> None:
    config = rl(place, model={"path": str(place / "model"), "from_scratch": True}, rewards="math")
    assert "model.path: model.safetensors" not in names(config)
    assert "model.path: config.json" in names(config)


def test_code_is_found_by_its_module_without_running_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "pack" / "inner.py").write_text("raise SystemExit('it was run')\nfrom . import table\n")
    monkeypatch.syspath_prepend(place)
    code = {"algorithm": {"estimator": "helper:mine"}, "rollout": {"engine": "deeper:E"}}
    found = names(rl(place, rewards="pack.inner:score", **code))
    assert {"rewards.0 pack: inner.py", "rewards.0 pack: __init__.py", "rewards.0 pack: table.py"} <= found
    assert {"algorithm.estimator: helper.py", "algorithm.estimator: deeper.py", "rollout.engine: deeper.py"} <= found


def test_data_folders_reward_models_critics_and_templates_count(place: Path) -> None:
    (place / "set" / "part").mkdir(parents=True)
    (place / "set" / "part" / "0.parquet").write_text("rows")
    config = rl(
        place,
        data={"train": str(place / "set")},
        rewards=f"model:{place}/model",
        algorithm={"estimator": "gae"},
        critic={"init": str(place / "model")},
        model={"path": str(place / "model"), "chat_template": str(place / "words.txt")},
    )
    of_data = {"data.train.0 part: 0.parquet", "rewards.0: model.safetensors"}
    assert of_data | {"critic.init: config.json", "model.chat_template: words.txt"} <= names(config)


def test_supervised_and_reward_model_runs_have_them_too(place: Path) -> None:
    data = {"model": str(place / "model"), "data": {"train": str(place / "train.jsonl")}}
    assert names(SftConfig.model_validate(data)) == {*MODEL, "data.train.0: train.jsonl"}
    rm = RmConfig.model_validate(data | {"normalization": {"kind": "bias", "prompts": str(place / "words.txt")}})
    assert names(rm) == {*MODEL, "data.train.0: train.jsonl", "normalization.prompts.0: words.txt"}


def test_a_program_goes_on_while_its_files_are_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, may_read = Fingerprints.of(rl(place)), Event()
    read = fingerprints._fingerprint
    monkeypatch.setattr(fingerprints, "_fingerprint", lambda path: may_read.wait() and read(path))
    in_progress = FingerprintsInProgress(rl(place))
    may_read.set()
    assert in_progress.result() == wanted == in_progress.result()


def test_what_ends_the_reading_is_raised_where_it_is_waited_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_fingerprint", Mock(side_effect=MemoryError("no room")))
    in_progress = FingerprintsInProgress(rl(place))
    with pytest.raises(MemoryError, match="no room"):
        in_progress.result()


def test_large_files_are_hashed_in_pieces(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 1_000
    (place / "model/model.safetensors").write_bytes(content)
    monkeypatch.setattr(fingerprints, "_PIECE_BYTES", 1_000)
    assert Fingerprints.of(rl(place)).files["model.path: model.safetensors"] == {
        "bytes": 256_000,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_pipes_hub_names_and_texts_that_no_path_can_be_are_no_files(place: Path) -> None:
    os.mkfifo(place / "pipe.jsonl")
    template = "{% for m in messages %}\n" + "{{ m['content'] }}" * 30 + "{% endfor %}"  # longer than any file's name
    config = rl(
        place,
        model={"path": "owner/model", "chat_template": template},
        data={"train": str(place / "pipe.jsonl")},
        rewards=[{"name": "math", "options": {"pattern": "~5.0", "long": "x." * 200, "nul": "."}}],
        algorithm={"estimator": "~nobody-here/mine.py:mine"},
    )
    assert names(config) == set()
    Fingerprints.of(config)


def test_a_folder_that_may_not_be_read_is_left_to_those_who_need_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert "model.path: config.json" not in names(rl(place))


def test_each_change_is_named(place: Path) -> None:
    before = Fingerprints.of(rl(place))
    assert before.changes(Fingerprints.of(rl(place))) == []
    (place / "train.jsonl").write_text("{}\n{}\n")
    (place / "deeper.py").write_text("limit = 2\n")
    (place / "words.txt").unlink()
    (place / "model" / "chat_template.jinja").write_text("x")
    now = dataclasses.replace(Fingerprints.of(rl(place)), versions={**before.versions, "torch": "1.0", "new": "2"})
    assert before.changes(now) == [
        "data.train.0: train.jsonl: 3 bytes before, 6 now",
        "model.path: chat_template.jinja: did not exist before",
        "rewards.0.options.words: words.txt: does not exist any more",
        "rewards.0: deeper.py: different content of the same size (10 bytes)",
        "new: none before, 2 now",
        f"torch: {before.versions['torch']} before, 1.0 now",
    ]
    with pytest.raises(CheckpointError, match=r"(?s)deeper\.py: different content.*torch: .*accept_changes=True"):
        refuse_changes(place, before.changes(now))


def test_they_read_back_and_a_damaged_file_is_named(place: Path) -> None:
    before = Fingerprints.of(rl(place))
    assert Fingerprints.read(place) is None
    (place / "fingerprints.json").write_text(before.dump())
    again = Fingerprints.read(place)
    assert again is not None
    assert again.changes(before) == []
    assert again.machine_changes(dataclasses.replace(before, machine={**before.machine, "threads": "64"})) != []
    entry = '{"files": {"a": %s}, "versions": %s, "machine": {}}'
    for text in ("[]", "null", "[" * 100_000, entry % (1, "{}"), entry % ('{"bytes": 1}', "{}"), entry % ("{}", "[]")):
        (place / "fingerprints.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"cannot read .*fingerprints\.json"):
            Fingerprints.read(place)


def test_rows_that_are_made_have_the_version_of_what_makes_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "reasoning_gym").mkdir()  # a folder of that name is not what the source means
    (place / "reasoning_gym" / "rows.jsonl").write_text("{}\n")
    monkeypatch.chdir(place)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1.25" if name == "reasoning-gym" else "1")
    made = rl(place, data={"train": {"path": "reasoning_gym", "reasoning_gym": {"gcd": {}}}})
    assert not any(name.startswith("data.") for name in names(made))
    assert Fingerprints.of(made).versions["reasoning-gym"] == "0.1.25"
    assert "reasoning-gym" not in Fingerprints.of(rl(place)).versions
    own = {"train": {"reasoning_gym": {"gcd": {}}}, "rewards": "reasoning_gym"}
    of_domain = rl(place, data={}, rewards=[], domains={"puzzles": own})
    assert Fingerprints.of(of_domain).versions["reasoning-gym"] == "0.1.25"
