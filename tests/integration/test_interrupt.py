"""Ctrl-C: the first finishes the step and saves, the second stops at once; neither loses or leaves anything."""

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import SLOW_REWARD, BuildRl, BuildSft, num_rows, run_file, trace
from watching import children, runs

from burnish.config.schema import RlConfig
from burnish.trainers.cluster import train_rl
from burnish.trainers.sft import train_sft

pytestmark = pytest.mark.slow_cases("*")

NOTE_WORKERS = """
import burnish.rewards.worker_process as process
real = process.WorkerProcess.__init__
def init(self, *arguments):
    real(self, *arguments)
    with open({path!r}, "a") as file:
        file.write(str(self.pid) + "\\n")
process.WorkerProcess.__init__ = init
"""
"""Writes the process id of every reward worker to a file."""


@pytest.fixture
def slow_run(tiny_run: BuildRl, tmp_path: Path) -> RlConfig:
    """Five steps of about 0.2 seconds."""
    (tmp_path / "slow.py").write_text(SLOW_REWARD)
    return tiny_run(
        steps=5,
        rewards=[{"name": f"{tmp_path}/slow.py:digits", "label": "digits"}],
        evaluation={"every_steps": 2, "max_prompts": 5},
        optimization={"learning_rate": 1e-2},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_the_step_and_saves(
    commands: Any, slow_run: RlConfig, tmp_path: Path, number: signal.Signals
) -> None:
    words, run = ("rl", run_file(slow_run)), tmp_path / "stopped"
    commands.finish(*words, f"output={tmp_path}/calm")
    command = commands.start(*words, f"output={run}")
    assert command.wait_for(lambda: num_rows(run) >= 2)
    command.send(number)
    assert command.wait() == 0, command.output
    assert "stopping after this step, then saving (once more to stop now)" in command.output
    assert "stopped at step" in command.output
    assert "run the same command again" in command.output
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert num_rows(run) == 1 + int(checkpoint.name.removeprefix("step-")) < 6
    resumed = commands.run(*words, f"output={run}")
    assert "resuming" in resumed.output
    assert "finished at step 5" in resumed.output
    assert trace(run) == trace(tmp_path / "calm")


def test_supervised_fine_tuning_stops_and_goes_on_as_well(commands: Any, tiny_sft: BuildSft, tmp_path: Path) -> None:
    words, run = ("sft", run_file(tiny_sft())), tmp_path / "stopped"
    commands.finish(*words, f"output={tmp_path}/calm")
    command = commands.start(*words, f"output={run}")
    assert command.wait_for(lambda: num_rows(run) >= 2)
    command.send(signal.SIGINT)
    assert command.wait() == 0, command.output
    assert "stopped at step" in command.output
    assert "finished" in commands.run(*words, f"output={run}").output
    assert trace(run) == trace(tmp_path / "calm")


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_stopped_before_the_first_step_it_goes_on(
    tiny_run: BuildRl, tiny_sft: BuildSft, tmp_path: Path, kind: str
) -> None:
    """Asked to stop while everything is still being loaded: a checkpoint of step 0, and the same run after it."""

    def train(name: str, stop_at_once: bool) -> tuple[Path, str]:
        said = io.StringIO()

        class Hasty(Console):
            """Asks to stop as soon as anything is said."""

            def print(self, *what: Any, **how: Any) -> None:
                super().print(*what, **how)
                if stop_at_once and "stopping" not in said.getvalue():
                    signal.raise_signal(signal.SIGINT)

        console = Hasty(file=said, width=200)
        if kind == "sft":
            result = train_sft(tiny_sft(f"output={tmp_path}/{name}"), console=console)
        else:
            config = tiny_run(f"output={tmp_path}/{name}", evaluation={"every_steps": 2, "max_prompts": 5})
            result = train_rl(config, console=console)
        assert result.weights.is_dir()
        return result.folder, said.getvalue()

    calm, _ = train("calm", False)
    stopped, said = train("run", True)
    assert "stopping" in said
    assert num_rows(stopped) == 1  # the evaluation at the start
    resumed, said = train("run", False)
    assert "after step 0" in said
    assert trace(resumed) == trace(calm)


def test_the_second_signal_stops_at_once_and_leaves_no_process(
    commands: Any, slow_run: RlConfig, tmp_path: Path
) -> None:
    """The reward sleeps for a minute: nothing but the second signal ends this step."""
    words = ("rl", run_file(slow_run), "checkpoint.every_steps=1")
    commands.finish(*words, f"output={tmp_path}/calm")
    run, pids = tmp_path / "run", tmp_path / "pids"
    commands.finish(*words, f"output={run}", "steps=2")
    reward = (tmp_path / "slow.py").read_text()
    asleep = f"open({str(tmp_path / 'asleep')!r}, 'w').close(); time.sleep(60)"
    (tmp_path / "slow.py").write_text(reward.replace("time.sleep(0.01)", asleep))
    changed = (*words, f"output={run}", "--accept-changes")
    command = commands.start(*changed, before=NOTE_WORKERS.format(path=str(pids)))
    assert command.wait_for((tmp_path / "asleep").exists)
    command.send(signal.SIGINT)
    assert command.wait_for(lambda: "stopping after this step" in command.output)
    command.send(signal.SIGINT)
    assert command.wait(seconds=30) == 130
    assert "stopped; the same command continues from the newest checkpoint" in command.output
    assert "Traceback" not in command.output
    workers = [int(line) for line in pids.read_text().split()]
    assert workers
    assert not any(map(runs, workers))
    (tmp_path / "slow.py").write_text(reward)
    assert "finished at step 5" in commands.run(*words, f"output={run}").output
    assert trace(run) == trace(tmp_path / "calm")


def test_a_signal_to_every_process_of_the_job_is_an_orderly_stop(
    commands: Any, slow_run: RlConfig, tmp_path: Path
) -> None:
    """As a scheduler sends it: workers and supervisors get it first, and twice in a row."""
    words, run = ("rl", run_file(slow_run)), tmp_path / "run"
    commands.finish(*words, f"output={tmp_path}/calm")
    command = commands.start(*words, f"output={run}")
    assert command.wait_for(lambda: num_rows(run) >= 2)
    started = children(command.pid)
    assert len(started) >= 2
    for pid in (*started, command.pid, command.pid):
        os.kill(pid, signal.SIGTERM)
    assert command.wait() == 0, command.output
    assert "stopped at step" in command.output
    assert not any(map(runs, started))
    assert "finished at step 5" in commands.run(*words, f"output={run}").output
    assert trace(run) == trace(tmp_path / "calm")
