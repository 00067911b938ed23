"""`burnish push`: the card says what the run was, its run file is the run's, and only the stub of the hub is called."""

from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
import yaml
from runs import BuildRl, trained

from burnish.api.run import run_config
from burnish.board.model_card import CardFacts, model_card
from burnish.cli import main
from burnish.cli.push import upload
from burnish.config.loading import load_run_data
from burnish.errors import BurnishError

HELD_OUT = ("evaluation.every_steps=2", "checkpoint.every_steps=2", "steps=2")


class Hub:
    """A stub of `HfApi`: repositories that exist, and what was uploaded to them."""

    repositories: dict[str, dict[str, Any]]

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if name in self.repositories and not exist_ok:
            raise OSError("409 Conflict: you already created this model repo")
        self.repositories[name] = {"private": private}
        return f"https://hub/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        self.repositories[repo_id]["files"] = {path.name: path.read_bytes() for path in folder_path.iterdir()}


def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **more: object) -> str:
        raise httpx2.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", unreachable)
    with pytest.raises(BurnishError, match=r"cannot upload to user/name: .* not known") as caught:
        upload(tmp_path, "user/name", public=False, update=False)
    assert "network" in caught.value.remedy


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    monkeypatch.setattr(Hub, "repositories", {}, raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    return Hub.repositories


@pytest.mark.slow
def test_a_run_is_pushed_with_a_card_that_repeats_it(
    tiny_run: BuildRl, hub: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(tiny_run(*HELD_OUT))
    assert main(["push", f"{folder}@best", "user/name"]) == 0
    pushed = hub["user/name"]
    assert pushed["private"]
    assert {"README.md", "config.json", "tokenizer.json"} <= set(pushed["files"])
    assert any(name.endswith(".safetensors") for name in pushed["files"])
    card = pushed["files"]["README.md"].decode()
    assert card.count("of 20 held-out prompts are answered right (95 % interval") == 1
    assert "| digits | 1 |" in card
    again = load_run_data(yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0])).config
    assert again == run_config(folder).config
    assert main(["push", str(folder), "user/name"]) == 2
    assert "needs --update" in capsys.readouterr().err
    assert main(["push", str(folder), "user/name", "--update", "--public"]) == 0
    assert not pushed.keys() - {"private", "files"}
    assert main(["push", str(folder), "--card-only", str(tmp_path / "card.md")]) == 0
    assert main(["push", str(folder), "--card-only", str(tmp_path / "card.md")]) == 2
    assert main(["push", str(folder), "--card-only", str(tmp_path / "new.md"), "--public"]) == 2
    assert (tmp_path / "card.md").read_text().startswith("---\nlibrary_name: transformers\n")
    assert list(hub) == ["user/name"]


@pytest.mark.parametrize("preset", ["grpo", "rloo", "oai_2019"])
def test_the_settings_of_a_card_are_those_of_the_run_behind_any_preset(preset: str) -> None:
    """Also where the run took a preset's value back to the default."""
    data = {"model": "user/base", "data": {"train": "a.jsonl"}, "rewards": "exact"}
    config = load_run_data({**data, "algorithm": {"preset": preset, "kl_in": "none"}}, ["seed=3"]).config
    facts = CardFacts("name", config, 4, "the newest", [{"step": 4, "eval/accuracy": 0.5}], {"burnish": "1"}, 4)
    card = model_card(facts)
    assert load_run_data(yaml.safe_load(card.partition("```yaml\n")[2].partition("```")[0])).config == config
    assert "50.0% of 4 held-out prompts are answered right (95 % interval 15.0% to 85.0%)." in card  # Wilson 1927
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == "user/base"
