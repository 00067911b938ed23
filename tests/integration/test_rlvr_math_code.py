"""The example of three domains: its rows, and its run file with a tiny model."""

import gzip
import importlib
import json
import string
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from runs import Run, ctrl_c_in_step, lines_of, trace, write_lines
from tiny_models import save_llama

from burnish.cli import main
from burnish.models.characters import character_tokenizer
from burnish.rewards.builtins.instruction_checks import INSTRUCTIONS
from burnish.rewards.builtins.instructions import Instructions

pytest.importorskip("langdetect", reason="langdetect is not installed (pip install 'burnish[instructions]')")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "rlvr_math_code"
RUN_FILE = str(FOLDER / "rl.yaml")
DOMAINS = {"math": "math", "code": "code", "instructions": "instructions"}  # and what scores it
TEMPLATE = "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}assistant: "

WORD_PROBLEMS = [
    {
        "question": f"Ann has {a} pens and buys {b} more. How many has she?",
        "answer": f"{a} + {b} = {a + b}\n#### {a + b}",
    }
    for a, b in ((2, 3), (10, 7), (31, 11), (4, 4), (8, 15), (1, 1))
]
# The columns and the form of MBPP's sanitized rows, where tasks 11 to 510 are for testing.
PROGRAMS = [
    {"task_id": 3, "prompt": "Write a function to triple a number.", "test_imports": [],
     "code": "def triple(n):\n    return 3 * n", "test_list": ["assert triple(2) == 6", "assert triple(-1) == -3"]},
    {"task_id": 12, "prompt": "Write a function to find the letters that two words share.", "test_imports": [],
     "code": "def shared(a, b):\n    return set(a) & set(b)",
     "test_list": ["assert sorted(shared('tea', 'eat')) == ['a', 'e', 't']", "assert shared('ab', 'cb') == set('b')"]},
    {"task_id": 20, "prompt": "Write a function to tell whether a number is a square.", "test_imports": ["import math"],
     "code": "import math\ndef root(n):\n    return math.isqrt(n)\ndef is_square(n):\n    return root(n) ** 2 == n",
     "test_list": ["assert is_square(9) == True", "assert is_square(8) == False", "assert is_square(0)"]},
    {"task_id": 601, "prompt": "Write a function to find the area of a circle.", "test_imports": ["import math"],
     "code": "import math\ndef area(r):\n    return math.pi * r * r",
     "test_list": ["assert math.isclose(area(1), 3.14159, rel_tol=1e-3)", "assert area(0) == 0"]},
    {"task_id": 700, "prompt": "Write a function to reverse a list.", "test_imports": [],
     "code": "def turned(items):\n    return items[::-1]",
     "test_list": ["assert turned([1, 2]) == [2, 1]", "assert turned([]) == []"]},
]  # fmt: skip


@pytest.fixture(scope="module")
def prepare() -> Any:
    """The module `prepare.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        for name in ("prepare", "instruction_rows"):
            patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module("prepare")
        for name in ("prepare", "instruction_rows"):
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def prepared(prepare: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the script writes."""
    folder = tmp_path_factory.mktemp("rlvr")
    (folder / "mbpp.json").write_text(json.dumps(PROGRAMS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare.py", str(folder), "--mbpp", str(folder / "mbpp.json")])
        prepare.main()
    return folder


def test_every_kind_of_instruction_comes_often(prepared: Path) -> None:
    for split, number, least in (("train", 800, 32), ("test", 160, 6)):
        rows = lines_of(prepared / f"instructions_{split}.jsonl")
        assert len(rows) == len({row["prompt"] for row in rows}) == number
        named = [name for row in rows for name in row["instruction_id_list"]]
        assert set(named) == set(INSTRUCTIONS)
        assert min(named.count(name) for name in INSTRUCTIONS) >= least


@pytest.mark.slow
def test_the_instructions_of_a_row_can_be_followed_together(prepared: Path) -> None:
    reward, scores = Instructions(), []
    for row in lines_of(prepared / "instructions_train.jsonl") + lines_of(prepared / "instructions_test.jsonl"):
        asked = (row["instruction_id_list"], row["kwargs"])
        followed, ignored = reward(row["gold_response"], *asked), reward("No.", *asked)
        assert followed is not None
        assert followed.value == 1.0, row
        assert ignored is not None
        scores.append(ignored.value)
    assert sum(scores) / len(scores) < 0.4  # what asks for nothing would be followed by any response


def test_training_and_evaluation_share_no_topic(prepare: ModuleType, prepared: Path) -> None:
    trained = " ".join(row["prompt"] for row in lines_of(prepared / "instructions_train.jsonl"))
    for row in lines_of(prepared / "instructions_test.jsonl"):
        (topic,) = [topic for topic in prepare.HELD_OUT_TOPICS if topic in row["prompt"]]
        assert topic not in trained


def test_rows_are_the_same_each_time(prepare: ModuleType, prepared: Path) -> None:
    assert [*prepare.instructions("test")] == lines_of(prepared / "instructions_test.jsonl")


def test_programming_tasks(prepare: ModuleType, prepared: Path) -> None:
    train, test = (lines_of(prepared / f"mbpp_{split}.jsonl") for split in ("train", "test"))
    assert [(row["task_id"], row["call"]) for row in train] == [
        (3, "triple(2)"),
        (601, "area(1)"),
        (700, "turned([1, 2])"),
    ]
    assert [(row["task_id"], row["call"]) for row in test] == [(12, "shared('tea', 'eat')"), (20, "is_square(9)")]
    full = {"text": " Write it. ", "code": "def f(x):\n    return x", "test_list": ["assert f( f(1) ) == 1"]}
    assert prepare.programming_task(full)["prompt"] == "Write it."
    assert prepare.programming_task(full)["call"] == "f(f(1))"
    with pytest.raises(ValueError, match="calls none of f"):
        prepare.first_call(full["code"], "assert g(1) == 1")


@pytest.fixture(params=["written", "real"])
def swaps(request: pytest.FixtureRequest, sandbox_holds: None, prepared: Path, tmp_path: Path) -> list[str]:
    """Overrides that name rows at hand, and a tiny model."""
    problems, tasks = written_rows(tmp_path, prepared)
    if request.param == "real":
        problems, tasks = real_rows(request.getfixturevalue("at_hand"), tasks)
    words = [f"model.path={write_model(tmp_path / 'model')}", "model.dtype=float32"]
    for split, limit in (("train", 12), ("eval", 6)):
        words += [
            f"domains.math.{split}.0.{word}" for word in (f"path={problems[split]}", "subset=null", "split=train")
        ]
        words += [f"domains.math.{split}.0.limit={limit}", f"domains.code.{split}={json.dumps(tasks[split])}"]
        file = prepared / f"instructions_{'train' if split == 'train' else 'test'}.jsonl"
        words += [f"domains.instructions.{split}.0.path={file}", f"domains.instructions.{split}.0.limit=50"]
    return [*words, "scoring.workers=1"]


def written_rows(folder: Path, prepared: Path) -> tuple[dict[str, Path], dict[str, list[dict[str, Any]]]]:
    file = folder / "problems.jsonl"
    write_lines(file, WORD_PROBLEMS)
    template = "{prompt} {call}"
    tasks = {split: [{"path": str(prepared / f"mbpp_{name}.jsonl"), "prompt_template": template}]
             for split, name in (("train", "train"), ("eval", "test"))}  # fmt: skip
    return {"train": file, "eval": file}, tasks


def real_rows(
    at_hand: Callable[[str], Path], tasks: dict[str, list[dict[str, Any]]]
) -> tuple[dict[str, Path], dict[str, list[dict[str, Any]]]]:
    """HumanEval next to the tasks in the form of MBPP."""
    programs = at_hand("data/humaneval/HumanEval.jsonl.gz")
    problems = {"train": at_hand("data/gsm8k/train.jsonl"), "eval": at_hand("data/gsm8k/test.jsonl")}
    assert "canonical_solution" in json.loads(gzip.decompress(programs.read_bytes()).splitlines()[0])
    return problems, {split: [*sources, {"path": str(programs), "limit": 8}] for split, sources in tasks.items()}


def write_model(folder: Path) -> Path:
    """One layer with random weights; a character is a token, and what no letter is, is one as well."""
    tokenizer = character_tokenizer(
        string.printable, eos="\x03", pad="\x04", unk="\x05", context_length=3072, chat_template=TEMPLATE
    )
    return save_llama(folder, tokenizer, hidden_size=16, num_layers=1, num_heads=2, context_length=3072)


@pytest.mark.slow
def test_check_passes(swaps: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code = main(["check", RUN_FILE, *swaps])
    said = capsys.readouterr().out
    counted = [line.split(" gold")[0] for line in said.splitlines() if " of " in line and "reach" in line]
    assert counted in (["6 of 6", "3 of 3", "6 of 6", "2 of 2"], ["12 of 12", "11 of 11", "6 of 6", "10 of 10"])
    assert said.count("50 of 50 gold answers count as solved (instructions at least 1)") == 2
    assert said.count("no row pays for a response that solves nothing") == 2
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("swaps", ["written"], indirect=True)
def test_plan_says_what_the_page_says(
    swaps: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plan", RUN_FILE, *swaps]) == 0
    said = capsys.readouterr().out
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for number in ("262,144", "102,400", "12.8", "19.2"):
        assert number in said
        assert number in page
    for name, label in DOMAINS.items():
        assert f"prompts of {name} " in said
        assert f"x 8 responses; rewards: {label}\n" in said


@pytest.fixture
def run(swaps: list[str], tmp_path: Path) -> Run:
    """Two steps in `tmp_path/NAME`, where every group is trained on: a random model solves nothing."""
    small = [
        "steps=2", "optimization.warmup_steps=0", "rollout.prompts_per_step=8", "rollout.group_size=2",
        "rollout.max_prompt_tokens=2048", "rollout.max_response_tokens=8", "evaluation.max_prompts=2",
        "domains.math.evaluation.max_prompts=2", "domains.math.difficulty.keep=[0, 1]", "logging.sinks=[]",
    ]  # fmt: skip

    def train(name: str) -> Path:
        assert main(["rl", RUN_FILE, *swaps, *small, f"output={tmp_path / name}"]) == 0
        return tmp_path / name

    return train


@pytest.mark.slow
def test_each_domain_is_scored_by_its_own_reward(run: Run) -> None:
    folder = run("run")
    rollouts = [line for file in sorted(folder.glob("rollouts/step-*.jsonl")) for line in lines_of(file)]
    assert len(rollouts) == 2 * 8 * 2
    for line in rollouts:
        assert line["status"] == "ok"
        assert {name.partition("/")[0] for name in line["reward_parts"]} == {DOMAINS[line["domain"]]}
    first, *trained = lines_of(folder / "metrics.jsonl")
    assert len(trained) == 2
    for row in trained:
        assert row["domain/math/prompts"] == 4
        assert abs(row["domain/code/prompts"] - 1.6) < 1
        assert abs(row["domain/instructions/prompts"] - 2.4) < 1
        assert row["reward/failed_fraction"] == 0
        assert all(row[f"reward/failed_fraction/{name}"] == 0 for name in DOMAINS)
    for row in (first, trained[-1]):
        assert {f"eval/domain/{name}/accuracy" for name in DOMAINS} <= row.keys()


@pytest.mark.slow
@pytest.mark.parametrize("swaps", ["written", pytest.param("real", marks=pytest.mark.matrix)], indirect=True)
def test_a_resumed_run_is_the_same(run: Run, tmp_path: Path) -> None:
    """Ctrl-C in the first step ends the run after it."""
    expected = trace(run("whole"))
    with ctrl_c_in_step(1):
        run("halves")
    assert lines_of(tmp_path / "halves" / "metrics.jsonl")[-1]["step"] == 1
    assert trace(run("halves")) == expected
