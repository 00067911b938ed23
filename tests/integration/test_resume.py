"""Killed at any instant and started again, a run ends as if nothing had happened: every metric, every bit."""

import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from runs import BuildPairs, BuildRl, BuildSft, Trace, num_rows, rows_of, run_file, trace, train, trained

from burnish.checkpointing import fingerprints
from burnish.config.schema import RlConfig, SftConfig
from burnish.errors import CheckpointError

pytestmark = pytest.mark.slow_cases("*")

BUSY = {
    "steps": 5,
    "optimization": {"learning_rate": 1e-2, "epochs": 2, "minibatches": 2},
    "evaluation": {"every_steps": 2, "max_prompts": 5},
    "checkpoint": {"every_steps": 2},
}
ADAPTIVE = {"preset": "reinforce_plus_plus", "kl_target": 0.05, "kl_horizon": 100}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"preset": "grpo", "dynamic_sampling": True}},
    "reinforce_plus_plus": {"algorithm": ADAPTIVE},
    "lora": {"algorithm": "grpo"},
    "opd": {"algorithm": {"preset": "opd", "estimator_options": {"reward_coef": 1.0}}, "teacher": "policy"},
    "ppo": {"algorithm": {"preset": "ppo", "kl_target": 0.05, "kl_horizon": 100}, "critic": {"learning_rate": 1e-2}},
    "ppo_shared": {"algorithm": "ppo", "critic": {"kind": "shared", "warmup_steps": 1, "learning_rate": 1e-2}},
}

DIE_AT_FSYNC = """
import os, signal
calls, real = [0], os.fsync
def fsync(descriptor):
    calls[0] += 1
    if calls[0] == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = fsync
"""
"""Dies when it asks for its n-th piece of data to be forced to disk: metrics, rollouts or a checkpoint's files."""


QUIET = ("evaluation.every_steps=null", "evaluation.at_start=false")


def rl_config(tiny_run: BuildRl, kind: str, *overrides: str) -> RlConfig:
    lora = ("model.lora={rank: 4, alpha: 8}",) if kind == "lora" else ()
    return tiny_run(*lora, *overrides, **{**BUSY, **ALGORITHMS[kind]})


@dataclass(frozen=True)
class Deaths:
    """Runs of the command line in a folder, which are killed and started again."""

    commands: Any
    folder: Path

    def undisturbed(self, words: tuple[str, ...]) -> tuple[Trace, float]:
        """What the run leaves behind when nothing happens to it, and how many seconds it takes."""
        started = time.monotonic()
        self.commands.finish(*words, f"output={self.folder / 'calm'}")
        return trace(self.folder / "calm"), time.monotonic() - started

    def finish(self, words: tuple[str, ...], run: Path) -> str:
        """What the same command says when it goes on to its end."""
        command = self.commands.finish(*words, f"output={run}")
        assert not list((run / "checkpoints").glob("*.*"))
        return str(command.output)

    def kill_when(self, words: tuple[str, ...], run: Path, condition: Callable[[], bool]) -> bool:
        """Whether the condition came true, and the kill came, before the run was done."""
        command = self.commands.start(*words, f"output={run}")
        came = command.wait_for(condition)
        command.kill()
        return came and command.code == -signal.SIGKILL

    def check_at_progress(self, *words: str) -> None:
        """Killed in the middle of writing its first checkpoint, then in the fourth step."""
        expected, _ = self.undisturbed(words)
        run = self.folder / "run"
        writing = run / "checkpoints"
        assert self.kill_when(words, run, lambda: any(writing.glob("*.writing")))
        assert self.kill_when(words, run, lambda: num_rows(run) >= 4)
        assert f"resuming {run} after step" in self.finish(words, run)
        assert trace(run) == expected

    def check_at_fsync(self, words: tuple[str, ...], numbers: Iterable[int]) -> int:
        """One death at each of the rising numbers, each time in a fresh run, until a run writes less often than that;
        returns how many died."""
        expected, _ = self.undisturbed(words)
        deaths = 0
        for number in numbers:
            run = self.folder / f"run-{number}"
            dying = self.commands.run(*words, f"output={run}", before=DIE_AT_FSYNC.format(number=number))
            deaths += dying.code == -signal.SIGKILL
            assert dying.code in (0, -signal.SIGKILL), dying.output
            self.finish(words, run)
            assert trace(run) == expected, f"died at fsync {number}"
            if dying.code == 0:
                break
        return deaths


@pytest.fixture
def deaths(commands: Any, tmp_path: Path) -> Deaths:
    return Deaths(commands, tmp_path)


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_killed_run_ends_like_an_undisturbed_one(deaths: Deaths, tiny_run: BuildRl, kind: str) -> None:
    deaths.check_at_progress("rl", run_file(rl_config(tiny_run, kind)))


def test_killed_supervised_fine_tuning_ends_like_an_undisturbed_one(deaths: Deaths, tiny_sft: BuildSft) -> None:
    deaths.check_at_progress("sft", run_file(tiny_sft()))


def test_killed_distillation_ends_like_an_undisturbed_one(deaths: Deaths, tiny_sft: BuildSft, tiny_model: Path) -> None:
    """Every second step is on responses that the student, of random weights, samples."""
    fields = (f"teacher={tiny_model}", "model.from_scratch=true", "sampled_share=0.5", "hard_weight=0.2")
    resting = ("cluster.offload=[teacher,optimizer]", "divergence=jsd")
    deaths.check_at_progress("distill", run_file(tiny_sft()), *fields, *resting)


def test_killed_learning_from_preferences_ends_like_an_undisturbed_one(deaths: Deaths, tiny_pairs: BuildPairs) -> None:
    """Also where the kill comes before the reference is kept, whose numbers are those of the start."""
    rows = [{"prompt": f"{n}+1=", "chosen": f"{n}7", "rejected": f"{n % 3}"} for n in range(10)]
    losses = ["ipo", {"name": "sft", "weight": 0.1}]
    optimization = {"comparisons_per_batch": 4, "learning_rate": 1e-2}
    config = tiny_pairs("prefer", rows, "steps=6", "checkpoint.every_steps=1", losses=losses, optimization=optimization)
    deaths.check_at_progress("prefer", run_file(config))


def test_a_run_may_die_whenever_it_writes(deaths: Deaths, tiny_run: BuildRl) -> None:
    words = ("rl", run_file(rl_config(tiny_run, "reinforce_plus_plus")), "steps=2", "checkpoint.every_steps=1")
    assert deaths.check_at_fsync(words, [6, 25]) == 2


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("first", "every", "kind"),
    [
        (3, 9, "lora"),
        *(pytest.param(1 + number % 3, 3, kind, marks=pytest.mark.matrix) for number, kind in enumerate(ALGORITHMS)),
    ],
)
def test_a_run_may_die_at_every_single_write(
    deaths: Deaths, tiny_run: BuildRl, first: int, every: int, kind: str
) -> None:
    """Each kind of run at every third write, one further on than the kind before: any three meet all of them. Every
    commit waits for a few."""
    words = ("rl", run_file(rl_config(tiny_run, kind)), "steps=2", "checkpoint.every_steps=1")
    assert deaths.check_at_fsync(words, count(first, every)) > 30 // every


@pytest.mark.matrix
@pytest.mark.timeout(1500)
def test_supervised_fine_tuning_may_die_at_every_single_write(deaths: Deaths, tiny_sft: BuildSft) -> None:
    words = ("sft", run_file(tiny_sft()), "steps=3", "checkpoint.every_steps=1")
    assert deaths.check_at_fsync(words, count(1, 3)) > 10


@pytest.mark.matrix_cases("[!p]*", "ppo-*", "*-[12]")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_several_kills_at_random_instants(deaths: Deaths, tiny_run: BuildRl, kind: str, seed: int) -> None:
    words = ("rl", run_file(rl_config(tiny_run, kind)), "steps=12")
    expected, seconds = deaths.undisturbed(words)
    randomness, run = random.Random(seed), deaths.folder / "run"
    for lines in [0, *sorted(randomness.sample(range(1, 9), 5))]:  # counted in steps: machines differ in speed

        def far_enough(lines: int = lines) -> bool:
            return num_rows(run) >= lines

        def some_time_later(due: float = randomness.uniform(0.0, seconds / 24)) -> bool:
            time.sleep(due)
            return True

        assert deaths.kill_when(words, run, lambda: far_enough() and some_time_later())
    deaths.finish(words, run)
    assert trace(run) == expected


def part(tiny_run: BuildRl, kind: str, folder: Path, steps: int, *overrides: str) -> str:
    """What a run in this folder says that is started for so many steps."""
    return train(rl_config(tiny_run, kind, f"output={folder}", f"steps={steps}", *overrides))[1]


def test_the_position_in_the_data_is_kept(tiny_run: BuildRl, tmp_path: Path) -> None:
    """Over several passes through the data, with refills that draw an uneven number of prompts a step."""
    words, folder = (*QUIET, "data.train.0.limit=7"), tmp_path / "run"
    part(tiny_run, "grpo", tmp_path / "calm", 5, *words)
    expected = trace(tmp_path / "calm")
    drawn = [int(row["groups/sampled"]) for row in expected.metrics]
    assert len(set(drawn)) > 1
    assert sum(drawn) > 2 * 7
    for step in range(1, 6):
        part(tiny_run, "grpo", folder, step, *words)
        state = json.loads((folder / f"checkpoints/step-{step:06d}/training_state.json").read_text())
        assert state["position"] == sum(drawn[:step])
    assert trace(folder) == expected


def test_every_optimizer_step_is_made_and_counted(tiny_run: BuildRl, tmp_path: Path) -> None:
    """epochs x minibatches a step, refills or not; an interruption loses and repeats none."""
    folder = tmp_path / "run"
    for steps in (2, 5):
        part(tiny_run, "grpo", folder, steps)
    assert [row["policy/optimizer_steps"] for row in rows_of(folder)[1:]] == [4.0] * 5
    state = json.loads((folder / "checkpoints/step-000005/training_state.json").read_text())
    assert state["policy"]["version"] == 5 * 4


def test_more_steps_go_on_where_a_finished_run_ended(tiny_run: BuildRl, tmp_path: Path) -> None:
    calm, folder = tmp_path / "calm", tmp_path / "run"
    for where, steps in ((calm, 5), (folder, 3)):
        part(tiny_run, "reinforce_plus_plus", where, steps, *QUIET)
    assert "after step 3" in part(tiny_run, "reinforce_plus_plus", folder, 5, *QUIET)
    assert trace(folder) == trace(calm)


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_finished_run_started_again_says_so_and_changes_nothing(
    tiny_run: BuildRl, tiny_sft: BuildSft, kind: str
) -> None:
    config = rl_config(tiny_run, "grpo") if kind == "rl" else tiny_sft()
    folder, first = train(config)
    assert "nothing to do" not in first
    names = ("config.yaml", "environment.json", "metrics.jsonl")
    before, written = trace(folder), [(folder / name).read_text() for name in names]
    _, said = train(config)
    assert "nothing to do" in said
    assert trace(folder) == before
    assert [(folder / name).read_text() for name in names] == written


def test_fewer_steps_than_done_do_no_harm(tiny_run: BuildRl) -> None:
    folder = trained(rl_config(tiny_run, "grpo"))
    before, written = trace(folder), (folder / "config.yaml").read_text()
    _, said = train(rl_config(tiny_run, "grpo", "steps=2"))
    assert f"{folder} is finished at step 5 (2 asked for), nothing to do; raise `steps` to continue" in said
    assert trace(folder) == before
    assert (folder / "config.yaml").read_text() == written
    assert "steps: 5" in written


CHANGES = {
    "data": ("rl", "train.jsonl", "data.train.0: train.jsonl: "),
    "reward": ("rl", "reward.py", "rewards.0: reward.py: "),
    "a module that the reward imports": ("rl", "helper.py", "rewards.0: helper.py: "),
    "base weights": ("rl", "model/model.safetensors", "model.path: model.safetensors: "),
    "tokenizer": ("sft", "model/tokenizer_config.json", "model.path: tokenizer_config.json: "),
    "supervised data": ("sft", "train.jsonl", "data.train.0: train.jsonl: "),
    "version": ("sft", None, "torch: "),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_numbers_depend_on_may_not_change_between_two_starts(
    tiny_run: BuildRl,
    tiny_sft: BuildSft,
    tiny_model: Path,
    tiny_task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    kind, file, told = CHANGES[change]
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "train.jsonl").write_text((tiny_task / "train.jsonl").read_text())
    (tmp_path / "helper.py").write_text("half = 0.5\n")
    (tmp_path / "reward.py").write_text("import helper\n" + (tiny_task / "reward.py").read_text())
    fields = {
        "model": str(tmp_path / "model"),
        "data": {"train": str(tmp_path / "train.jsonl")},
        "rewards": [{"name": f"{tmp_path}/reward.py:digits"}],
    }

    def build(steps: int) -> RlConfig | SftConfig:
        if kind == "rl":
            return tiny_run(**fields, steps=steps)
        quiet = {"data": fields["data"], "evaluation": {"every_steps": None, "at_start": False}}
        return tiny_sft("optimization.schedule=constant", model=fields["model"], steps=steps, **quiet)

    if kind == "sft":
        tiny_sft()
        shutil.copy(tmp_path / "sft-train.jsonl", tmp_path / "train.jsonl")
    folder = trained(build(2))
    before = trace(folder)
    if file is None:
        monkeypatch.setattr(fingerprints, "_versions", lambda _: {"torch": "1.0"})
    else:
        content = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(content + b"\n")
    config = build(3)
    with pytest.raises(CheckpointError) as refused:
        train(config)
    assert told in str(refused.value)
    assert "--accept-changes" in str(refused.value)
    assert trace(folder) == before
    if file == "model/model.safetensors":
        return  # these are no weights any more
    _, said = train(config, accept_changes=True)
    assert f"accepted change: {told}" in said
    starts = json.loads((folder / "environment.json").read_text())["starts"]
    assert [told in str(start.get("accepted_changes")) for start in starts] == [False, True]
    _, said_again = train(config)  # from now on the new ones hold
    assert "nothing to do" in said_again


def test_checkpoints_from_before_there_were_fingerprints_go_on_with_a_note(tiny_run: BuildRl) -> None:
    folder = trained(rl_config(tiny_run, "grpo", "steps=2"))
    newest = folder / "checkpoints" / "step-000002"
    (newest / "fingerprints.json").unlink()
    manifest = json.loads((newest / "manifest.json").read_text())
    del manifest["files"]["fingerprints.json"]
    (newest / "manifest.json").write_text(json.dumps(manifest))
    _, said = train(rl_config(tiny_run, "grpo", "steps=3"))
    assert "step-000002 has no fingerprints, so changes of files or versions since then cannot be detected" in said
    assert (folder / "checkpoints" / "step-000003" / "fingerprints.json").exists()


def test_a_changed_configuration_is_refused_by_name(tiny_run: BuildRl) -> None:
    folder = trained(rl_config(tiny_run, "grpo", "steps=2"))
    before = trace(folder)
    changed = ("seed=4", "optimization.learning_rate=0.5", "logging.project=other", "steps=3")
    with pytest.raises(CheckpointError) as refused:
        train(rl_config(tiny_run, "grpo", *changed))
    message = str(refused.value)
    for said in ("optimization.learning_rate: 0.01 before, 0.5 now", "seed: 0 before, 4 now", "--fresh"):
        assert said in message
    assert "logging" not in message
    assert "steps" not in message
    assert trace(folder) == before
