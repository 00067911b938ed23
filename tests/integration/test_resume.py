"""Killed at any instant and started again, a run ends as if nothing had happened: every metric, every bit."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from runs import num_rows, train

from burnish.checkpointing import fingerprints
from burnish.config.schema import RlConfig, RunConfig, SftConfig
from burnish.errors import CheckpointError

ReadTrace = Callable[[Path], Any]
WriteRunFile = Callable[[RunConfig], str]
BuildRl = Callable[..., RlConfig]
BuildSft = Callable[..., SftConfig]

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
    "lora": {"algorithm": "grpo", "lora": True},
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


def rl_config(tiny_run: BuildRl, kind: str, *overrides: str) -> RlConfig:
    fields = {**BUSY, **ALGORITHMS[kind]}
    lora = ("model.lora={rank: 4, alpha: 8}",) if fields.pop("lora", False) else ()
    return tiny_run(*lora, *overrides, **fields)


def undisturbed(commands: Any, words: tuple[str, ...], folder: Path, trace: ReadTrace) -> tuple[Any, float]:
    """What the run leaves behind when nothing happens to it, and how many seconds it takes."""
    started = time.monotonic()
    command = commands.run(*words, f"output={folder}")
    assert command.code == 0, command.output
    return trace(folder), time.monotonic() - started


def finish(commands: Any, words: tuple[str, ...], folder: Path) -> Any:
    """The same command again, to its end."""
    command = commands.run(*words, f"output={folder}")
    assert command.code == 0, command.output
    assert not list((folder / "checkpoints").glob("*.*"))
    return command


def kill_when(commands: Any, words: tuple[str, ...], folder: Path, condition: Callable[[], bool]) -> bool:
    """Whether the condition came true, and the kill came, before the run was done."""
    command = commands.start(*words, f"output={folder}")
    came = command.wait_for(condition)
    command.kill()
    return came and command.code == -signal.SIGKILL


def check_kills_at_progress(commands: Any, words: tuple[str, ...], folder: Path, trace: ReadTrace) -> None:
    """Killed in the middle of writing its first checkpoint, then in the fourth step."""
    expected, _ = undisturbed(commands, words, folder / "calm", trace)
    run = folder / "run"
    writing = run / "checkpoints"
    assert kill_when(commands, words, run, lambda: any(writing.glob("*.writing")))
    assert kill_when(commands, words, run, lambda: num_rows(run) >= 4)
    resumed = finish(commands, words, run)
    assert f"resuming {run} after step" in resumed.output
    assert trace(run) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "grpo",
        "reinforce_plus_plus",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("lora", "opd", "ppo", "ppo_shared")),
    ],
)
def test_a_killed_run_ends_like_an_undisturbed_one(
    commands: Any, run_file: WriteRunFile, tiny_run: BuildRl, trace: ReadTrace, tmp_path: Path, kind: str
) -> None:
    words = ("rl", run_file(rl_config(tiny_run, kind)))
    check_kills_at_progress(commands, words, tmp_path, trace)


@pytest.mark.slow
def test_killed_supervised_fine_tuning_ends_like_an_undisturbed_one(
    commands: Any, run_file: WriteRunFile, tiny_sft: BuildSft, trace: ReadTrace, tmp_path: Path
) -> None:
    check_kills_at_progress(commands, ("sft", run_file(tiny_sft())), tmp_path, trace)


@pytest.mark.slow
def test_killed_distillation_ends_like_an_undisturbed_one(
    commands: Any, run_file: WriteRunFile, tiny_sft: BuildSft, tiny_model: Path, trace: ReadTrace, tmp_path: Path
) -> None:
    """Every second step is on responses that the student, of random weights, samples."""
    fields = (f"teacher={tiny_model}", "model.from_scratch=true", "sampled_share=0.5", "hard_weight=0.2")
    resting = ("cluster.offload=[teacher,optimizer]", "divergence=jsd")
    check_kills_at_progress(commands, ("distill", run_file(tiny_sft()), *fields, *resting), tmp_path, trace)


@pytest.mark.slow
def test_killed_learning_from_preferences_ends_like_an_undisturbed_one(
    commands: Any, tiny_model: Path, trace: ReadTrace, tmp_path: Path
) -> None:
    """Also where the kill comes before the reference is kept, whose numbers are those of the start."""
    rows = [{"prompt": f"{n}+1=", "chosen": f"{n}7", "rejected": f"{n % 3}"} for n in range(10)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {
        "model": str(tiny_model),
        "data": {"train": str(tmp_path / "pairs.jsonl")},
        "losses": ["ipo", {"name": "sft", "weight": 0.1}],
        "steps": 6,
        "max_tokens": 16,
        "optimization": {"comparisons_per_batch": 4, "learning_rate": 1e-2},
        "checkpoint": {"every_steps": 1},
        "logging": {"sinks": []},
    }
    (tmp_path / "prefer.yaml").write_text(json.dumps(data))
    check_kills_at_progress(commands, ("prefer", str(tmp_path / "prefer.yaml")), tmp_path, trace)


def check_deaths_at_fsync(
    commands: Any, words: tuple[str, ...], folder: Path, trace: ReadTrace, numbers: Iterable[int]
) -> int:
    """One death at each of the rising numbers, each time in a fresh run, until a run writes less often than that;
    returns how many died."""
    expected, _ = undisturbed(commands, words, folder / "calm", trace)
    deaths = 0
    for number in numbers:
        run = folder / f"run-{number}"
        dying = commands.run(*words, f"output={run}", before=DIE_AT_FSYNC.format(number=number))
        deaths += dying.code == -signal.SIGKILL
        assert dying.code in (0, -signal.SIGKILL), dying.output
        finish(commands, words, run)
        assert trace(run) == expected, f"died at fsync {number}"
        if dying.code == 0:
            break
    return deaths


@pytest.mark.slow
def test_a_run_may_die_whenever_it_writes(
    commands: Any, run_file: WriteRunFile, tiny_run: BuildRl, trace: ReadTrace, tmp_path: Path
) -> None:
    words = ("rl", run_file(rl_config(tiny_run, "reinforce_plus_plus")), "steps=2", "checkpoint.every_steps=1")
    assert check_deaths_at_fsync(commands, words, tmp_path, trace, [6, 25]) == 2


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("first", "every", "kind"),
    [
        (3, 9, "lora"),
        *(pytest.param(1 + number % 3, 3, kind, marks=pytest.mark.matrix) for number, kind in enumerate(ALGORITHMS)),
    ],
)
def test_a_run_may_die_at_every_single_write(
    commands: Any,
    run_file: WriteRunFile,
    tiny_run: BuildRl,
    trace: ReadTrace,
    tmp_path: Path,
    first: int,
    every: int,
    kind: str,
) -> None:
    """Each kind of run at every third write, one further on than the kind before: any three meet all of them. Every
    commit waits for a few."""
    words = ("rl", run_file(rl_config(tiny_run, kind)), "steps=2", "checkpoint.every_steps=1")
    assert check_deaths_at_fsync(commands, words, tmp_path, trace, count(first, every)) > 30 // every


@pytest.mark.matrix
@pytest.mark.timeout(1500)
def test_supervised_fine_tuning_may_die_at_every_single_write(
    commands: Any, run_file: WriteRunFile, tiny_sft: BuildSft, trace: ReadTrace, tmp_path: Path
) -> None:
    words = ("sft", run_file(tiny_sft()), "steps=3", "checkpoint.every_steps=1")
    assert check_deaths_at_fsync(commands, words, tmp_path, trace, count(1, 3)) > 10


MANY_KILLS = [("ppo_shared", 0)]
"""The cases that every commit waits for."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        (kind, seed) if (kind, seed) in MANY_KILLS else pytest.param(kind, seed, marks=pytest.mark.matrix)
        for kind in ALGORITHMS
        for seed in (0, 1, 2)
    ],
)
def test_several_kills_at_random_instants(
    commands: Any, run_file: WriteRunFile, tiny_run: BuildRl, trace: ReadTrace, tmp_path: Path, kind: str, seed: int
) -> None:
    words = ("rl", run_file(rl_config(tiny_run, kind)), "steps=12")
    expected, seconds = undisturbed(commands, words, tmp_path / "calm", trace)
    randomness, run = random.Random(seed), tmp_path / "run"
    for lines in [0, *sorted(randomness.sample(range(1, 9), 5))]:  # counted in steps: machines differ in speed

        def far_enough(lines: int = lines) -> bool:
            return num_rows(run) >= lines

        def some_time_later(due: float = randomness.uniform(0.0, seconds / 24)) -> bool:
            time.sleep(due)
            return True

        assert kill_when(commands, words, run, lambda: far_enough() and some_time_later())
    finish(commands, words, run)
    assert trace(run) == expected


@pytest.mark.slow
def test_the_position_in_the_data_is_kept(tiny_run: BuildRl, trace: ReadTrace, tmp_path: Path) -> None:
    """Over several passes through the data, with refills that draw an uneven number of prompts a step."""

    def run(name: str, steps: int) -> tuple[Path, str]:
        quiet = ("evaluation.every_steps=null", "evaluation.at_start=false", "data.train.0.limit=7")
        return train(rl_config(tiny_run, "grpo", f"output={tmp_path}/{name}", f"steps={steps}", *quiet))

    expected = trace(run("calm", 5)[0])
    drawn = [int(row["groups/sampled"]) for row in expected.metrics]
    assert len(set(drawn)) > 1
    assert sum(drawn) > 2 * 7
    for step in range(1, 6):
        folder, _ = run("run", step)
        (state,) = (folder / "checkpoints" / f"step-{step:06d}").glob("training_state.json")
        assert json.loads(state.read_text())["position"] == sum(drawn[:step])
    assert trace(folder) == expected


@pytest.mark.slow
def test_every_optimizer_step_is_made_and_counted(tiny_run: BuildRl, trace: ReadTrace, tmp_path: Path) -> None:
    """epochs x minibatches a step, refills or not; an interruption loses and repeats none."""

    def run(name: str, steps: int) -> Path:
        return train(rl_config(tiny_run, "grpo", f"output={tmp_path}/{name}", f"steps={steps}"))[0]

    run("run", 2)
    folder = run("run", 5)
    assert [row["policy/optimizer_steps"] for row in trace(folder).metrics[1:]] == [4.0] * 5
    state = json.loads((folder / "checkpoints/step-000005/training_state.json").read_text())
    assert state["policy"]["version"] == 5 * 4


@pytest.mark.slow
def test_more_steps_go_on_where_a_finished_run_ended(tiny_run: BuildRl, trace: ReadTrace, tmp_path: Path) -> None:
    def run(name: str, steps: int) -> tuple[Path, str]:
        quiet = ("evaluation.every_steps=null", "evaluation.at_start=false")
        return train(rl_config(tiny_run, "reinforce_plus_plus", f"output={tmp_path}/{name}", f"steps={steps}", *quiet))

    calm, _ = run("calm", 5)
    run("run", 3)
    folder, said = run("run", 5)
    assert "after step 3" in said
    assert trace(folder) == trace(calm)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_finished_run_started_again_says_so_and_changes_nothing(
    tiny_run: BuildRl, tiny_sft: BuildSft, trace: ReadTrace, kind: str
) -> None:
    config = rl_config(tiny_run, "grpo") if kind == "rl" else tiny_sft()
    folder, first = train(config)
    assert "nothing to do" not in first
    before, metrics = trace(folder), (folder / "metrics.jsonl").read_text()
    written = [(folder / name).read_text() for name in ("config.yaml", "environment.json")]
    _, said = train(config)
    assert "nothing to do" in said
    assert trace(folder) == before
    assert (folder / "metrics.jsonl").read_text() == metrics
    assert [(folder / name).read_text() for name in ("config.yaml", "environment.json")] == written


@pytest.mark.slow
def test_fewer_steps_than_done_do_no_harm(tiny_run: BuildRl, trace: ReadTrace) -> None:
    folder, _ = train(rl_config(tiny_run, "grpo"))
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


@pytest.mark.slow
@pytest.mark.parametrize("change", list(CHANGES))
def test_what_the_numbers_depend_on_may_not_change_between_two_starts(
    tiny_run: BuildRl,
    tiny_sft: BuildSft,
    tiny_model: Path,
    tiny_task: Path,
    trace: ReadTrace,
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
    folder, _ = train(build(2))
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


@pytest.mark.slow
def test_checkpoints_from_before_there_were_fingerprints_go_on_with_a_note(tiny_run: BuildRl) -> None:
    folder, _ = train(rl_config(tiny_run, "grpo", "steps=2"))
    newest = folder / "checkpoints" / "step-000002"
    (newest / "fingerprints.json").unlink()
    manifest = json.loads((newest / "manifest.json").read_text())
    del manifest["files"]["fingerprints.json"]
    (newest / "manifest.json").write_text(json.dumps(manifest))
    _, said = train(rl_config(tiny_run, "grpo", "steps=3"))
    assert "step-000002 has no fingerprints, so changes of files or versions since then cannot be detected" in said
    assert (folder / "checkpoints" / "step-000003" / "fingerprints.json").exists()


@pytest.mark.slow
def test_a_changed_configuration_is_refused_by_name(tiny_run: BuildRl, trace: ReadTrace) -> None:
    folder, _ = train(rl_config(tiny_run, "grpo", "steps=2"))
    before = trace(folder)
    changed = ("seed=4", "optimization.learning_rate=0.5", "logging.project=other", "steps=3")
    with pytest.raises(CheckpointError) as refused:
        train(rl_config(tiny_run, "grpo", *changed))
    message = str(refused.value)
    assert "optimization.learning_rate: 0.01 before, 0.5 now" in message
    assert "seed: 0 before, 4 now" in message
    assert "--fresh" in message
    assert "logging" not in message
    assert "steps" not in message
    assert trace(folder) == before
