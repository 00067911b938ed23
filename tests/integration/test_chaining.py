"""Runs that begin where others ended: `model: runs/sft`, a step, the best one; as policy, reward model and critic."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import BuildPairs, BuildRl, BuildSft, rows_of, run_file, trained, write_lines
from safetensors.torch import load_file
from transformers import AutoTokenizer

from burnish.checkpointing.store import Pending, seal, write_pending
from burnish.cli import main
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.errors import CheckpointError
from burnish.trainers.chaining import pinned
from burnish.trainers.rl.setup.parts import open_rl_run

QUIET = Console(quiet=True)
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture
def sft_run(tiny_sft: BuildSft, tmp_path: Path, tiny_model: Path) -> Path:
    """A finished run with checkpoints of steps 2 and 4, and a chat template of its own."""
    model = {"path": str(tiny_model), "chat_template": TEMPLATE}
    config = tiny_sft(f"output={tmp_path}/sft", "steps=4", "evaluation.every_steps=2", model=model)
    return trained(config)


def policy(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:06d}" / "policy"


def chosen(model: Path | str) -> tuple[str, str]:
    """The folder of a policy that this choice is, and what is said about it."""
    config, (line,) = pinned(load_run_data({"model": str(model), "data": {"train": "x"}}, [], "sft").config)
    return config.model.path, line


@pytest.mark.slow
def test_a_run_begins_from_the_newest_checkpoint_and_says_so(
    tiny_run: BuildRl, sft_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rl", run_file(tiny_run("steps=1", "algorithm.kl_in=loss", model=str(sft_run)))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"model.path: checkpoint of step 4 of {sft_run} (the newest)" in said
    assert f"path: {policy(sft_run, 4)}" in (tmp_path / "run" / "config.yaml").read_text()
    assert rows_of(tmp_path / "run")[-1]["kl/reference"] == pytest.approx(
        0.0, abs=1e-4
    )  # the reference is the same checkpoint
    result = policy(tmp_path / "run", 1)
    assert AutoTokenizer.from_pretrained(result).chat_template == TEMPLATE


@pytest.mark.slow
def test_policy_and_reference_hold_the_chosen_weights(tiny_run: BuildRl, sft_run: Path) -> None:
    for choice, step in (("", 4), ("@2", 2), ("@4", 4)):
        config = tiny_run(f"output={sft_run.parent}/rl{choice}", "algorithm.kl_in=loss", model=f"{sft_run}{choice}")
        with open_rl_run(config, QUIET) as run:
            mine = dict(run.policy.model.named_parameters())  # type: ignore[attr-defined]
            theirs = dict(run.reference.model.named_parameters())  # type: ignore[union-attr]
            saved = weights(policy(sft_run, step))
            assert all(torch.equal(mine[name], saved[name]) for name in saved if name in mine)
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.slow
def test_the_best_is_that_of_a_metric_among_those_kept(sft_run: Path) -> None:
    """Rewritten losses: step 4 is worse than step 2; an older, better one has no checkpoint any more."""
    measured = ((0, 0.5, 0.1), (2, 1.0, 0.2), (4, 2.0, 0.3))
    rows = [{"step": step, "eval/loss": loss, "eval/token_accuracy": share} for step, loss, share in measured]
    write_lines(sft_run / "metrics.jsonl", rows)

    path, line = chosen(f"{sft_run}@best")
    assert path == str(policy(sft_run, 2))
    assert "lowest eval/loss of those kept, 1; step 0 had 0.5, but has no checkpoint (any more)" in line
    assert chosen(f"{sft_run}@best:eval/token_accuracy")[0] == str(policy(sft_run, 4))


@pytest.mark.slow_cases("*/*/*", "eval/truncated*", "my/*")
@pytest.mark.parametrize(
    ("metric", "is_lowest"),
    [
        ("eval/loss", True),
        ("eval/accuracy", False),
        ("eval/domain/glossary/accuracy", False),
        ("eval/domain/errors/reward_mean", False),
        ("eval/part/no_errors", False),
        ("eval/conversation/out_of_turns_fraction", True),
        ("eval/truncated_fraction", True),
        ("my/perplexity", True),
        ("failed_runs/score", False),
    ],
)
def test_the_direction_of_a_metric(sft_run: Path, metric: str, is_lowest: bool) -> None:
    """By the table of metrics, and never by the names of domains and rewards."""
    write_lines(sft_run / "metrics.jsonl", [{"step": 2, metric: 1.0}, {"step": 4, metric: 2.0}])
    assert chosen(f"{sft_run}@best:{metric}")[0] == str(policy(sft_run, 2 if is_lowest else 4))


@pytest.mark.slow_cases("@best:eval/los-has not measured 'eval/los'-did you mean 'eval/loss'?")
@pytest.mark.parametrize(
    ("choice", "message", "remedy"),
    [
        ("@3", "has no checkpoint of step 3", "it has checkpoints of steps 2, 4"),
        ("@best:eval/los", "has not measured 'eval/los'", "did you mean 'eval/loss'?"),
        ("@newest", "'newest' does not name a checkpoint", "@best:METRIC"),
    ],
)
def test_a_choice_that_there_is_not_names_those_there_are(
    sft_run: Path, choice: str, message: str, remedy: str
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        chosen(f"{sft_run}{choice}")
    assert remedy in str(caught.value.remedy)


def test_runs_without_a_whole_checkpoint_and_misspelt_ones_are_refused(sft_run: Path) -> None:
    def refused(path: Any) -> CheckpointError:
        with pytest.raises(CheckpointError) as caught:
            chosen(path)
        return caught.value

    misspelt = refused(f"{sft_run.parent / 'stf'}@2")
    assert "is not the folder of a run" in misspelt.message
    assert f"did you mean {str(sft_run)!r}?" in str(misspelt.remedy)
    (policy(sft_run, 4) / "model.safetensors").write_bytes(b"torn")
    path, line = chosen(sft_run)
    assert path == str(policy(sft_run, 2))  # as resuming does, and said
    assert "not used: " in line
    assert "is damaged" in refused(f"{sft_run}@4").message
    (policy(sft_run, 2) / "model.safetensors").unlink()
    assert "whose checkpoints are all damaged" in refused(sft_run).message
    empty = sft_run.parent / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text("seed: 0\n")
    assert "a run without a checkpoint" in refused(empty).message


@pytest.mark.slow
def test_a_resumed_run_keeps_to_the_weights_it_began_with(tiny_run: BuildRl, sft_run: Path) -> None:
    trained(tiny_run("steps=1", model=str(sft_run)))
    newer = policy(sft_run, 4).parent.with_name("step-000006")
    policy(sft_run, 4).parent.rename(newer)
    manifest = newer / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 4', '"step": 6'))
    with pytest.raises(CheckpointError, match=r"(?s)model\.path: .*step-000004.* before, .*step-000006.* now"):
        trained(tiny_run("steps=2", model=str(sft_run)))


PAIRS = [{"prompt": f"{n}+1=", "chosen": f"{n + 1:02d}", "rejected": "99"} for n in range(9)]


def test_scores_from_before_the_last_step_are_said_not_to_be_normalised(tiny_pairs: BuildPairs, tmp_path: Path) -> None:
    normalization = {"kind": "bias", "on": "references"}
    trained(tiny_pairs("rm", PAIRS, "steps=2", "checkpoint.every_steps=1", normalization=normalization))

    def said(choice: str) -> bool:
        lines = pinned(RlConfig(model="m", rewards=f"model:{tmp_path}/rm{choice}"))[1]
        return any("are not normalised" in line for line in lines)

    assert said("@1")
    assert not said("")
    recorded = tmp_path / "rm" / "config.yaml"
    recorded.write_text(recorded.read_text().replace("steps: 2\n", "steps: 3\n", 1))  # as if it had been stopped
    assert said("")
    recorded.write_text(recorded.read_text().replace("steps: 3\n", "steps: null\n", 1))
    assert not said("")
    write_pending(policy(tmp_path / "rm", 2).parent, Pending({}))  # as of a run that ended before it normalised
    seal(policy(tmp_path / "rm", 2).parent, 2)
    assert said("")


@pytest.mark.slow
def test_reward_model_and_critic_come_from_runs_too(tiny_run: BuildRl, tiny_pairs: BuildPairs, tmp_path: Path) -> None:
    """rm -> reward and critic of a PPO run -> critic of the next; a run without either is refused by name."""
    trained(tiny_pairs("rm", PAIRS, "steps=1"))

    def ppo(name: str, init: str) -> RlConfig:
        return tiny_run(
            f"output={tmp_path}/{name}", "steps=1", algorithm="ppo", rewards=f"model:{tmp_path}/rm@best",
            critic={"init": init},
        )  # fmt: skip

    with pytest.raises(CheckpointError, match="has measured no eval/accuracy"):
        trained(ppo("first", str(tmp_path / "rm")))
    (tmp_path / "rm" / "metrics.jsonl").write_text('{"step": 1, "eval/accuracy": 0.7}\n')
    trained(ppo("first", str(tmp_path / "rm")))
    with open_rl_run(ppo("second", f"{tmp_path}/first"), QUIET) as run:
        trunk = dict(run.critic.trunk.named_parameters())  # type: ignore[union-attr]
        head = run.critic.head.weight  # type: ignore[union-attr]
        saved = policy(tmp_path / "first", 1).with_name("critic")
        assert all(torch.equal(trunk[name], value) for name, value in weights(saved).items())
        assert torch.equal(head, load_file(saved / "value_head.safetensors")["weight"])
