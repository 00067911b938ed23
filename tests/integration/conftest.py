"""A policy of a few thousand parameters and a task it can learn something of, built in a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from confining import where_confined
from runs import BuildPairs, BuildRl, BuildSft, lines_of, write_lines

from burnish.agents.endpoint.server import ServerThread, Service
from burnish.agents.endpoint.serving import StandingLoop
from burnish.cli.serve import _standing
from burnish.cli.speakers import policy_named
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig, RunConfig, SftConfig
from burnish.distributed import peers
from burnish.distributed.processes import RoleProcess
from burnish.rollouts.engine import Sampling
from burnish.sandbox.trial import strongest

SERVER = """
import json, os, sys
import burnish.trainers.rl.measuring, burnish.trainers.sft, peft, transformers
from burnish.cli import main
from burnish.cli.app import build_app
build_app()
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
transformers.AutoTokenizer.from_pretrained(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    if "poll" in request:
        done, status = os.waitpid(request["poll"], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if done else None), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        exec(request["before"], {})
        sys.exit(main(request["words"]))
    print(pid, flush=True)
"""

REWARD = """
def digits(response: str, answer: str) -> float:
    return sum(a == b for a, b in zip(response, answer)) / 2
"""


class CommandServer:
    """A process that has imported everything and loaded a model once, and forks one child a command."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder = folder
        self._started = 0
        environment = {**os.environ, "COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(model)], stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def start(self, *words: str, before: str = "") -> Command:
        """`burnish WORDS` in a process of its own, which first runs the code `before`."""
        self._started += 1
        log = self._folder / f"{self._started:03d}.log"
        return Command(self, int(self.ask({"words": words, "log": str(log), "before": before})), log)

    def run(self, *words: str, before: str = "") -> Command:
        """The same, finished."""
        command = self.start(*words, before=before)
        command.wait()
        return command

    def finish(self, *words: str, before: str = "") -> Command:
        """The same, which has to end well."""
        command = self.run(*words, before=before)
        assert command.code == 0, command.output
        return command

    def refuse(self, *words: str, says: Sequence[str], before: str = "") -> None:
        """The same, which has to end with one message."""
        self.run(*words, before=before).check_refused(*says)

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Command:
    """One `burnish ...`; `code` is its exit status once it has ended (minus the signal that killed it)."""

    server: CommandServer
    pid: int
    log: Path
    code: int | None = None

    @property
    def output(self) -> str:
        """What it has said so far, standard output and error together, as one line of words."""
        return " ".join(self.log.read_text().split()) if self.log.exists() else ""

    def ended(self) -> bool:
        if self.code is None:
            self.code = self.server.ask({"poll": self.pid})
        return self.code is not None

    def wait(self, seconds: float = 120.0) -> int:
        self.wait_for(self.ended, seconds, look=0.02)
        assert self.code is not None
        return self.code

    def wait_for(self, condition: Callable[[], bool], seconds: float = 120.0, look: float = 0.0005) -> bool:
        """True when the condition came true, False when the command ended before. look: seconds between two looks."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.ended():
                return False
            assert time.monotonic() < deadline, f"nothing after {seconds} s; said so far: {self.output}"
            time.sleep(look)
        return True

    def check_refused(self, *says: str) -> None:
        """It has ended with one message, which holds these words."""
        assert self.code == 2, self.output
        assert "Traceback" not in self.output
        assert [words for words in says if words not in self.output] == [], self.output

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, if it still lives (an ended child keeps its number until it is polled)."""
        if not self.ended():
            self.send(signal.SIGKILL)
            self.wait()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RoleProcess]:
    """The processes that have been started so far, in order."""
    processes: list[RoleProcess] = []
    begin = RoleProcess.__init__

    def noting(process: RoleProcess, *arguments: Any, **named: Any) -> None:
        begin(process, *arguments, **named)
        processes.append(process)

    monkeypatch.setattr(RoleProcess, "__init__", noting)
    return processes


@pytest.fixture
def killed_while_sampling(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first process that samples for step 2 is killed while it does. Holds its id from then on."""
    killed: list[int] = []

    def killing(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(role: Any, *arguments: Any, **named: Any) -> Any:
            if named["step"] == 2 and not killed:
                killed.append(role.process.pid)
                threading.Timer(0.01, os.kill, (role.process.pid, signal.SIGKILL)).start()
            return ask(role, *arguments, **named)

        return asked

    monkeypatch.setattr(peers.ProcessRole, "generate", killing(peers.ProcessRole.generate))
    monkeypatch.setattr(peers.ProcessRole, "generate_until", killing(peers.ProcessRole.generate_until))
    return killed


@pytest.fixture(scope="session")
def tiny_model(save_tiny_llama: Callable[..., Path]) -> Path:
    """Folder of a random character-level Llama."""
    return save_tiny_llama("0123456789+=", hidden_size=32, intermediate_size=64)


@pytest.fixture(scope="session")
def tiny_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with train.jsonl, eval.jsonl and a reward that counts right digits."""
    folder = tmp_path_factory.mktemp("tiny-task")
    rows = [{"prompt": f"{a}+{b}=", "answer": f"{a + b:02d}"} for a in range(10) for b in range(10)]
    for name, part in (("train", rows[:80]), ("eval", rows[80:])):
        write_lines(folder / f"{name}.jsonl", part)
    (folder / "reward.py").write_text(REWARD)
    return folder


@pytest.fixture
def tiny_run(tiny_model: Path, tiny_task: Path, tmp_path: Path) -> BuildRl:
    """An RL configuration on the tiny task; overrides as on the command line."""

    def build(*overrides: str, **fields: Any) -> RlConfig:
        data = {
            "output": str(tmp_path / "run"),
            "model": str(tiny_model),
            "data": {"train": str(tiny_task / "train.jsonl"), "eval": str(tiny_task / "eval.jsonl")},
            "rewards": [{"name": f"{tiny_task / 'reward.py'}:digits", "label": "digits"}],
            "scoring": {"workers": 1},
            "algorithm": "grpo",
            "steps": 3,
            "rollout": {"prompts_per_step": 4, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 4},
            "optimization": {"learning_rate": 1e-3},
            "evaluation": {"every_steps": None, "at_start": False},
            "checkpoint": {"every_steps": None},
            "logging": {"sinks": []},
            **fields,
        }
        return load_run_data(data, list(overrides), "rl").config

    return build


@pytest.fixture(scope="session")
def sandbox_holds() -> None:
    """Skips the test on a machine where programs cannot be confined."""
    with where_confined():
        strongest(processes=1).close()


@pytest.fixture
def tiny_sft(tiny_model: Path, tiny_task: Path, tmp_path: Path) -> BuildSft:
    """A supervised configuration on the same sums: about six optimizer steps a pass."""
    for name in ("train", "eval"):
        rows = lines_of(tiny_task / f"{name}.jsonl")
        pairs = [{"prompt": row["prompt"], "completion": row["answer"] + "$"} for row in rows]
        write_lines(tmp_path / f"sft-{name}.jsonl", pairs)

    def build(*overrides: str, **fields: Any) -> SftConfig:
        data = {
            "output": str(tmp_path / "run"),
            "model": str(tiny_model),
            "data": {"train": str(tmp_path / "sft-train.jsonl"), "eval": str(tmp_path / "sft-eval.jsonl")},
            "max_tokens": 16,
            "optimization": {"learning_rate": 1e-2, "tokens_per_batch": 128, "epochs": 2},
            "evaluation": {"every_steps": 4},
            "checkpoint": {"every_steps": 2},
            "logging": {"sinks": []},
            **fields,
        }
        return load_run_data(data, list(overrides), "sft").config

    return build


@pytest.fixture
def tiny_pairs(tiny_model: Path, tmp_path: Path) -> BuildPairs:
    """A configuration of `burnish rm` or `burnish prefer` for these rows."""

    def build(kind: str, rows: Sequence[dict[str, Any]], *overrides: str, **fields: Any) -> RunConfig:
        write_lines(tmp_path / "pairs.jsonl", rows)
        data = {
            "output": str(tmp_path / kind),
            "model": {"path": str(tiny_model), "device": "cpu"},
            "data": {"train": str(tmp_path / "pairs.jsonl")},
            "max_tokens": 16,
            "logging": {"sinks": []},
        }
        return load_run_data({**data, **fields}, list(overrides), kind).config

    return build


@pytest.fixture
def serve() -> Iterator[Callable[[str], str]]:
    """Serves a model as `burnish serve` does, under the name `big`, and returns the address."""
    started: list[tuple[ServerThread, threading.Thread]] = []

    def start(model: str) -> str:
        settings: Any = {"others": "follow", "context": None, "rows": 8, "parser": "auto", "seed": 0}
        loop = StandingLoop(_standing(policy_named(model), Sampling(16), "big", **settings))
        started.append((ServerThread(loop.desk, Service()), threading.Thread(target=loop.run)))
        started[-1][1].start()
        return f"{started[-1][0].url}/v1"

    yield start
    for server, answering in started:
        server.close()
        answering.join()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def commands(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServer]:
    """Starts the command line in processes of its own, that can be killed."""
    server = CommandServer(tmp_path_factory.mktemp("commands"), tiny_model)
    yield server
    server.close()
