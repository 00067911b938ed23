"""The pages for newcomers: their commands run in order, and what they convert from other systems runs as converted."""

import ast
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import rows_of

from burnish.cli import main
from burnish.config.explain import _words
from burnish.observability.alarms import DETECTORS

DOCS = Path(__file__).parents[2] / "docs"
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
SMALL = (
    *("steps=2", "rollout.prompts_per_step=2", "rollout.group_size=2", "optimization.minibatches=1"),
    *("rollout.max_response_tokens=4", "checkpoint.every_steps=1", "scoring.workers=1"),
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), flags=re.S | re.M)


def rows_of_fields(page: str) -> list[tuple[list[str], str]]:
    """Names in the first column of the page's table of fields, and the second column."""
    table = (DOCS / page).read_text(encoding="utf-8").partition("## Fields\n")[2].split("\n\n")[1]
    cells = [row.strip("|").split("|") for row in table.splitlines()[2:]]
    return [(re.findall(r"`([^`]+)`", first), second) for first, second, *_ in cells]


@pytest.fixture
def model(save_tiny_llama: Callable[..., Path]) -> str:
    return str(save_tiny_llama(string.printable.replace("$", "").replace("_", ""), context_length=1024))


@pytest.mark.parametrize("page", ["from_trl.md", "from_verl.md"])
def test_a_table_of_fields_says_what_the_hints_say(page: str) -> None:
    same, differs = _words()
    for names, here in rows_of_fields(page):
        for leaf in (name.rpartition(".")[2] for name in names):
            if leaf in same:
                assert same[leaf].removeprefix("rewards.N.") in here or "critic" in here, leaf
            else:
                assert leaf in differs or f".{leaf}`" in here, leaf


def test_the_questions_explain_every_alarm() -> None:
    table = (DOCS / "faq.md").read_text(encoding="utf-8").partition("| alarm | means |\n|---|---|\n")[2]
    named = [row.split("|")[1].strip() for row in table.partition("\n\n")[0].splitlines()]
    assert sorted(named) == sorted(detector.name for detector in DETECTORS)


def test_the_sizes_of_the_converted_script_are_those_of_trl() -> None:
    calls = [node for node in ast.walk(ast.parse(blocks("from_trl.md", "python")[0])) if isinstance(node, ast.Call)]
    (config,) = (call for call in calls if ast.unparse(call.func) == "GRPOConfig")
    trl = {str(one.arg): ast.literal_eval(one.value) for one in config.keywords}
    here = yaml.safe_load(blocks("from_trl.md", "yaml")[0])
    responses = trl["per_device_train_batch_size"] * trl["gradient_accumulation_steps"]
    assert here["rollout"]["prompts_per_step"] == responses / trl["num_generations"]
    assert here["rollout"]["group_size"] == trl["num_generations"]
    assert here["rollout"]["max_response_tokens"] == trl["max_completion_length"]
    assert here["steps"] == trl["max_steps"]
    assert here["checkpoint"]["every_steps"] == trl["save_steps"]


def test_the_sizes_of_the_converted_script_are_those_of_verl() -> None:
    verl = dict(re.findall(r"([\w.]+)=(\S+)", blocks("from_verl.md", "text")[0]))
    here = yaml.safe_load(blocks("from_verl.md", "yaml")[0])
    assert here["rollout"] == {
        "prompts_per_step": int(verl["data.train_batch_size"]),
        "group_size": int(verl["actor_rollout_ref.rollout.n"]),
        "max_prompt_tokens": int(verl["data.max_prompt_length"]),
        "max_response_tokens": int(verl["data.max_response_length"]),
    }
    minibatch = int(verl["actor_rollout_ref.actor.ppo_mini_batch_size"])
    assert here["optimization"]["minibatches"] == here["rollout"]["prompts_per_step"] / minibatch
    assert here["checkpoint"]["every_steps"] == int(verl["trainer.save_freq"])
    assert here["steps"] == int(verl["trainer.total_training_steps"])


@pytest.mark.slow
@pytest.mark.parametrize(("page", "function"), [("from_trl.md", "reward_answer"), ("from_verl.md", "compute_score")])
def test_a_converted_script_trains_with_the_reward_as_it_was(
    page: str, function: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = ast.parse(blocks(page, "python")[0])
    (reward,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    (tmp_path / "my_rewards.py").write_text(ast.unparse(reward))
    (tmp_path / "run.yaml").write_text(blocks(page, "yaml")[0])
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n')
    held_out = ["data.eval=[]", "evaluation.every_steps=null", "evaluation.at_start=false"]
    words = [f"model.path={model}", "data.train=train.jsonl", *held_out, *SMALL]
    assert main(["rl", "run.yaml", *words]) == 0
    rows = rows_of(tmp_path / "runs/first")
    assert [row["reward/failed_fraction"] for row in rows] == [0, 0]


@pytest.mark.slow
def test_the_first_run_from_a_csv_to_a_saved_model(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the page, in its order; only the model and the sizes are others."""
    monkeypatch.chdir(tmp_path)
    csv = blocks("first_run.md", "csv")[0]
    (tmp_path / "questions.csv").write_text(csv)
    (tmp_path / "held_out.csv").write_text("question,answer,level\nWhat is 2+2?,4,1\nWhat is 2+3?,5,1\n")
    reward, use = blocks("first_run.md", "python")
    said = ""
    for command in "".join(blocks("first_run.md", "bash")).splitlines():
        words = command.replace(MODEL, model).split()[1:]
        if words[0] == "chat":  # asks
            continue
        if words[0] == "rl":
            words = [*words[:2], *SMALL] if len(words) == 2 else [*words[:2], "steps=3", *SMALL[1:]]
        assert main(words) == 0, command
        said += capsys.readouterr().out
        if words[0] == "init":
            (tmp_path / "first/reward.py").write_text(reward)
    for line in [*blocks("first_run.md", "text")[0].splitlines(), *blocks("first_run.md", "text")[1].splitlines()]:
        assert line in said
    assert "resuming first/run after step 2" in said
    names: dict[str, Any] = {}
    exec(use, names)
    assert (tmp_path / "my-model/config.json").is_file()


def test_a_line_of_the_first_run_is_a_line_of_progress() -> None:
    from burnish.observability.console import plain_line

    row = {"reward/mean": 0.312, "eval/reward_mean": 0.287, "eval/accuracy": 0.21, "kl/reference": 0.0021}
    row |= {"rollout/response_tokens_mean": 84.3, "policy/entropy": 0.412, "throughput/response_tokens_per_second": 310}
    assert blocks("first_run.md", "text")[2].strip() == plain_line(12, 100, row, 4320)
