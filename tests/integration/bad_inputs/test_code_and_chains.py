"""Reward files, other code from outside and references to runs that cannot be used, and what is said about each."""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Refuse, Row, row

REWARD = "def digits(*, response, **_):\n    "


def reward(name: str, code: str, *says: str, **how: Any) -> Row:
    return row(name, "reward", *says, files={"reward.py": code}, **how)


LOADING = [
    reward("interrupted at import", "raise KeyboardInterrupt\n", "KeyboardInterrupt", "reward.py:1"),
    reward("own kind of BaseException at import", "class Odd(BaseException): ...\nraise Odd('no')", "Odd: no",
           "reward.py:2"),
    reward("GeneratorExit at import", "raise GeneratorExit", "GeneratorExit", "reward.py:1"),
    reward("exit at import", "import sys\nsys.exit(0)", "SystemExit: 0", "reward.py:2"),
    row("hard exit at import", "loading 'digits'", "exit status 5", files={"reward.py": "import os\nos._exit(5)"}),
    row("crash at import", "SIGSEGV", files={"reward.py": "import os\nos.kill(os.getpid(), 11)"}),
    reward("endless loop at import", "while True: pass", "within 1 seconds", "scoring.start_timeout_seconds",
           words="scoring.start_timeout_seconds=1"),
    reward("stopped at import", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "within 1 seconds",
           words="scoring.start_timeout_seconds=1"),
    reward("endless recursion at import", "def f(): f()\nf()", "RecursionError"),
    reward("an error of ten million letters", "raise ValueError('x' * 10**7)", "ValueError"),
    reward("an error without text", "class E(Exception):\n  def __str__(self): raise RuntimeError\nraise E", "reward"),
    reward("waits for the keyboard", "input()", "EOFError"),
    reward("a class without __call__", "class digits: ...", "no __call__ method"),
]  # fmt: skip
CALLING = [
    reward("interrupted", REWARD + "raise KeyboardInterrupt", "KeyboardInterrupt", "reward.py:2", "--debug"),
    reward("exits", REWARD + "exit(3)", "SystemExit: 3", "reward.py:2"),
    reward("fails", REWARD + "return 1 / 0", "ZeroDivisionError: division by zero", "reward.py:2"),
    reward("interrupted while awaited", "async " + REWARD + "raise KeyboardInterrupt", "KeyboardInterrupt"),
    row("no answer in the data", "TypeError", "reward.py", files={"d.jsonl": '{"prompt": "1+1="}\n' * 3},
        words="data.train=d.jsonl"),
]  # fmt: skip
NAMES = [
    row(f"reward named {name}", *says, words=[f"rewards={json.dumps(name)}"])
    for name, *says in (
        (":",),
        ("..:f",),
        ("reward.py:",),
        ("a b:c",),
        (".:f",),
        ("1:f",),
        ("reward.py:digits:x", "'reward.py:digits' is neither a module nor a file", "one colon"),
        ("reward.py: digits", "digits"),
    )
]
PARTS = [
    row(
        f"{field}: BaseException at import",
        "Odd: no",
        "parts.py:2",
        files={"parts.py": "class Odd(BaseException): ...\nraise Odd('no')"},
        words=[f"{field}={value}"],
    )
    for field, value in (
        ("algorithm.estimator", "parts.py:f"),
        ("algorithm.loss", "parts.py:f"),
        ("rollout.engine", "parts.py:E"),
        ("logging.sinks", "[parts.py:E]"),
    )
]


def run_folder(folder: Path) -> None:
    """What a run leaves: enough of it for its checkpoints to be looked for."""
    (folder / "runs" / "old" / "checkpoints" / "step-000002").mkdir(parents=True)
    (folder / "runs" / "old" / "config.yaml").write_text("model: ./model\n")


CHAINS = [
    row(f"{choice} of a run", "runs/old", make=run_folder, **how)
    for choice in ("²", "+2", "-1", "1.5", "0x2", "٣", "9" * 200, "best:", "latest", " 2", "2@2")
    for how in (
        {"words": [f"model={json.dumps(f'runs/old@{choice}')}"]},
        {"command": ("eval",), "words": [f"runs/old@{choice}"]},
    )
]
TEMPLATE = (
    "{{ tools | tojson if tools }}{% for message in messages %}{{ message.content }}"
    "{{ message.tool_calls | tojson if message.tool_calls }}{{ eos_token }}{% endfor %}"
)
PLANS = [
    row(
        f"plan: {words}",
        says,
        files={"parts.py": "class Shop:\n    def reset(self): ...\n", "t.jinja": TEMPLATE},
        command=("plan", "run.yaml"),
        words=["data.chat=always", "model.chat_template=t.jinja", f"conversation={words}"],
    )
    for words, says in (
        ("{environment: 'parts.py:Shopp'}", "Shopp"),
        ("{environment: 'parts.py:Shop', environment_options: {size: 3}}", "size"),
        ("{tools: ['parts.py:add']}", "has no add"),
        ("{tools: calculator, parser: hermes}", '"name": "calculator"'),  # prompts offer it
        ("{agent: 'parts.py:play'}", "has no play"),
    )
]
ROWS = [*LOADING, *CALLING, *NAMES, *PARTS, *CHAINS, *PLANS]


@pytest.mark.slow_cases("1[0-9]-*", "2[1-5]-*", "[23469]-*")
@pytest.mark.parametrize("case", ROWS, ids=[f"{number}-{case['name'][:40]}" for number, case in enumerate(ROWS)])
def test_is_refused_in_one_message(case: Row, refuse: Refuse) -> None:
    refuse(case)
