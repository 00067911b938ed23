"""What happens to the folder, the output and the limits of a run while it is going on, as its user would see it."""

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import SLOW_REWARD, BuildRl, num_rows, run_file, trace

pytestmark = pytest.mark.slow


@pytest.fixture
def words(tiny_run: BuildRl, tmp_path: Path) -> tuple[str, ...]:
    """The command of a run of eight steps of about 0.2 seconds, with a checkpoint every second step."""
    (tmp_path / "slow.py").write_text(SLOW_REWARD)
    config = tiny_run(
        steps=8,
        rewards=[{"name": f"{tmp_path}/slow.py:digits", "label": "digits"}],
        optimization={"learning_rate": 1e-2},
        checkpoint={"every_steps": 2},
    )
    return ("rl", run_file(config), f"output={tmp_path}/run")


def pause_between_writes(command: Any, run: Path) -> None:
    """Stop the process at an instant at which no checkpoint is half-written."""
    while True:
        command.send(signal.SIGSTOP)
        if not list(run.glob("checkpoints/*.writing")):
            return
        command.send(signal.SIGCONT)
        time.sleep(0.001)


def disturbed(commands: Any, words: tuple[str, ...], run: Path, disturb: Callable[[], Any]) -> Any:
    """The command, ended, after something was done to its folder behind its third step."""
    command = commands.start(*words)
    assert command.wait_for(lambda: num_rows(run) >= 3)
    pause_between_writes(command, run)
    disturb()
    command.send(signal.SIGCONT)
    command.wait()
    return command


def test_a_removed_folder_ends_the_run_with_one_message(commands: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"

    def remove() -> None:
        run.rename(tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone")

    disturbed(commands, words, run, remove).check_refused(f"the run's folder {run} was removed or moved away")
    assert not run.exists()


def test_a_moved_folder_is_found_and_goes_on_where_it_is(commands: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = disturbed(commands, words, run, lambda: run.rename(tmp_path / "moved"))
    command.check_refused(f"it is now {tmp_path}/moved")
    commands.finish(*words[:2], f"output={tmp_path}/moved")
    commands.finish(*words)
    assert trace(tmp_path / "moved") == trace(run)


def test_files_removed_from_the_folder_are_made_anew_with_a_word(
    commands: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def remove() -> None:
        for name in ("metrics.jsonl", "config.yaml", "environment.json", "run.lock"):
            (run / name).unlink()
        for name in ("checkpoints", "rollouts"):
            (run / name).rename(tmp_path / name)

    command = disturbed(commands, words, run, remove)
    assert command.code == 0, command.output
    assert "Traceback" not in command.output
    for name in ("metrics.jsonl", "config.yaml", "environment.json", "rollouts"):
        assert f"{run / name} was removed during the run" in command.output
    assert "was removed during the run; a new one is made now" in command.output
    commands.finish(*words[:2], f"output={tmp_path}/calm")
    found, wanted = trace(run), trace(tmp_path / "calm")
    assert (found.metrics, found.state) == (wanted.metrics, wanted.state)
    assert "nothing to do" in commands.run(*words).output


def test_a_live_run_is_not_started_over(commands: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = commands.start(*words)
    assert command.wait_for(lambda: num_rows(run) >= 1)
    commands.refuse(*words, "--fresh", says=[f"{run} is in use by process {command.pid} on "])
    assert command.wait() == 0
    commands.finish(*words, "--fresh")
    assert trace(run) == trace(tmp_path / "run.old-1")


def test_a_terminal_that_goes_away_stops_the_run_as_ctrl_c_does(
    commands: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = commands.start(*words)
    assert command.wait_for(lambda: num_rows(run) >= 1)
    command.send(signal.SIGHUP)
    assert command.wait() == 0, command.output
    assert "stopped at step" in command.output
    before = num_rows(run)
    ignoring = commands.start(*words, before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    assert ignoring.wait_for(lambda: num_rows(run) > before)
    ignoring.send(signal.SIGHUP)
    assert ignoring.wait() == 0
    assert "finished at step 8" in ignoring.output


LOST = {
    "output on a full disk": "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "output into a pipe without a reader": "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1)",
    "no output": "import os, sys; os.close(1); sys.stdout = None",
    "errors on a full disk": "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "no errors": "import os, sys; os.close(2); sys.stderr = None",
    "errors for a reader who has left": "import os; r, w = os.pipe(); os.dup2(w, 2); os.close(w); os.close(r)",
}


@pytest.mark.parametrize("how", LOST)
def test_without_a_stream_the_run_goes_on_and_an_error_keeps_its_code(
    commands: Any, words: tuple[str, ...], tmp_path: Path, how: str
) -> None:
    command = commands.finish(*words, "steps=2", before=LOST[how])
    assert ("standard output is lost" in command.output) is how.startswith("output ")
    assert num_rows(tmp_path / "run") == 2
    if "errors" in how:
        assert commands.run(*words, "seed=77", before=LOST[how]).code == 2


def test_nobody_else_may_change_what_a_run_writes(commands: Any, words: tuple[str, ...], tmp_path: Path) -> None:
    commands.finish(*words, "steps=2", before="import os; os.umask(0)")
    run = tmp_path / "run"
    assert [path for path in (run, *run.rglob("*")) if path.stat().st_mode & 0o022] == []


REFUSE_PROCESSES = """
import errno, os
import burnish.outside.supervise as supervise
def refuse(*arguments, **named):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
supervise.subprocess.Popen = refuse
"""
ASK_TOO_MUCH = """
import torch, burnish.trainers.rl.loop as rl
real, calls = rl.credit_rows, [0]
def hungry(*arguments, **named):
    calls[0] += 1
    return torch.empty(1 << 50) if calls[0] == 4 else real(*arguments, **named)
rl.credit_rows = hungry
"""
FEW_FILES = """
import os, resource
limit = max(map(int, os.listdir('/proc/self/fd'))) + 2
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
"""
NO_FOLDER = "import os, tempfile; os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())"
NO_WORKER = "error: cannot start a reward worker: Resource temporarily unavailable"
LACKING = {
    "working folder": (NO_FOLDER, ["error: the current folder cannot be used: No such file"]),
    "processes": (REFUSE_PROCESSES, [NO_WORKER, "ulimit -u"]),
    "files": (FEW_FILES, ["Too many open files", "ulimit -n"]),
}


@pytest.mark.parametrize("what", LACKING)
def test_what_the_system_lacks_is_told_in_one_message(commands: Any, words: tuple[str, ...], what: str) -> None:
    before, says = LACKING[what]
    commands.refuse(*words, before=before, says=says)


def test_memory_that_cannot_be_had_is_one_message_and_the_steps_are_saved(
    commands: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    says = ["error: memory ran out: ", "lower optimization.tokens_per_microbatch", "step 3 is saved"]
    commands.refuse(*words, before=ASK_TOO_MUCH, says=says)
    assert (tmp_path / "run" / "checkpoints" / "step-000003").is_dir()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("metrics.jsonl", "{path} is a folder"),
        ("config.yaml", "{path} is a folder"),
        ("environment.json", "cannot read {path}"),
        ("rollouts", "cannot write to {run}"),
        ("checkpoints", "{path} is not a folder"),
        ("run.lock", "{path} is a folder"),
    ],
)
def test_something_of_another_kind_in_the_place_of_a_file_is_named(
    commands: Any, words: tuple[str, ...], tmp_path: Path, name: str, told: str
) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    commands.finish(*words, "steps=2")
    path = run / name
    path.rename(kept)
    path.write_text("x") if kept.is_dir() else path.mkdir()
    commands.refuse(*words, says=[told.format(path=path, run=run)])
    path.unlink() if kept.is_dir() else path.rmdir()
    kept.rename(path)
    commands.finish(*words, "steps=3")


@pytest.mark.parametrize("text", ['{"starts": 3}', "[" * 100_000])
def test_a_damaged_record_of_starts_is_named(commands: Any, words: tuple[str, ...], tmp_path: Path, text: str) -> None:
    commands.finish(*words, "steps=2")
    path = tmp_path / "run" / "environment.json"
    path.write_text(text)
    commands.refuse(*words, says=[str(path)])
    path.unlink()
    commands.finish(*words, "steps=3")


PARTS = """
from burnish.algorithms.policy_losses import PolicyLoss
def text(scores_B, group_ids_B): return "high"
def raising(scores_B): return {}["x"]
def nothing(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT): return None
"""


def test_a_changed_reward_is_refused_and_an_accepted_change_is_on_record(
    commands: Any, words: tuple[str, ...], tmp_path: Path
) -> None:
    commands.finish(*words, "steps=2")
    (tmp_path / "slow.py").write_text(SLOW_REWARD.replace("0.01", "0.001"))
    change = f"rewards.0: slow.py: {len(SLOW_REWARD)} bytes before, {len(SLOW_REWARD) + 1} now"
    commands.refuse(*words, says=[change])
    commands.finish(*words, "--accept-changes")
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())["starts"]
    assert starts[1]["accepted_changes"] == [change]
