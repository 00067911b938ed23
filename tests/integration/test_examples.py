"""The lessons under examples/ run as they stand; only sizes, data folders and the big model are swapped."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import rollouts_of, rows_of
from scripts import load_script
from tiny_models import save_llama

from burnish.cli import main
from burnish.config.loading import load_run_file

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
CUSTOM = "examples/custom_reward/run.yaml"
GSM8K = "examples/gsm8k_grpo/run.yaml"
ON_RAY = "examples/cluster_ray/run.yaml"
WITH_TORCHRUN = "examples/cluster_torchrun/run.yaml"


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def custom_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs the lesson's script; the overrides that point its run file there."""
    folder = tmp_path / "task"
    monkeypatch.setattr(sys, "argv", ["prepare.py", str(folder)])
    load_script(REPOSITORY / "examples/custom_reward/prepare.py").main()
    return [
        f"model.path={folder / 'model'}",
        f"data.train.0.path={folder / 'train.jsonl'}",
        f"data.eval.0.path={folder / 'heldout.jsonl'}",
        f"output={tmp_path / 'run'}",
    ]


def test_custom_reward_gold_answers(custom_task: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", CUSTOM, *custom_task]) == 0
    said = capsys.readouterr().out
    assert "52 of 52 gold answers" in said
    assert "12 of 12 gold answers" in said
    assert "judged by: solved, overlap, judged, prefix, details" in said
    # Brief: two letters and the end are within 3 tokens. In all 1 + .2 + .1 + 0 + 1 + .1
    cells = [re.split(r"\s{2,}", line) for line in said.splitlines()]
    assert ["prefix", "1", "1", "52"] in cells
    assert ["(total)", "2.4", "2.4", "52"] in cells


def test_custom_reward_run(custom_task: list[str], tmp_path: Path) -> None:
    words = ["steps=2", "rollout.prompts_per_step=8", "evaluation.max_prompts=4"]
    assert main(["rl", CUSTOM, *custom_task, *words]) == 0
    weights = {r.name.partition(":")[2]: r.weight for r in load_run_file(CUSTOM).config.rewards}
    assert set(weights) == {"solved", "overlap", "judged", "Brief", "prefix", "details"}
    for line in rollouts_of(tmp_path / "run"):
        parts = line["reward_parts"]
        assert line["status"] == "ok"
        assert line["reward"] == pytest.approx(sum(weight * parts[name] for name, weight in weights.items()))
        assert len(line["token_rewards"]) == len(line["response_tokens"])  # the dense one made the sum dense
        assert sum(line["token_rewards"]) == pytest.approx(line["reward"])
        assert parts["Brief"] == pytest.approx(-0.1 * max(0, len(line["response_tokens"]) - 3))
    last = rows_of(tmp_path / "run")[-1]
    assert {f"reward/part/{name}" for name in weights} | {"reward/part/details/length"} <= last.keys()


@pytest.mark.matrix
def test_custom_reward_learns(custom_task: list[str], tmp_path: Path) -> None:
    assert main(["rl", CUSTOM, *custom_task]) == 0
    measured = rows_of(tmp_path / "run")
    assert measured[-1]["eval/reward_mean"] > measured[0]["eval/reward_mean"] + 0.8
    assert measured[-1]["reward/mean"] > measured[1]["reward/mean"] + 0.8


@pytest.fixture
def gsm8k(at_hand: Callable[[str], Path]) -> list[str]:
    folder = at_hand("data/gsm8k")
    return [f"data.train.0.path={folder / 'train.jsonl'}", f"data.eval.0.path={folder / 'test.jsonl'}"]


@pytest.fixture
def small_chat_model(at_hand: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny random Llama with a real tokenizer that has a chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(at_hand("models/minimind_tokenizer"))
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "context_length": 1024}
    return save_llama(tmp_path / "small-chat-model", tokenizer, **sizes)


def test_gsm8k_check_of_every_row(gsm8k: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", GSM8K, *gsm8k]) == 0
    said = capsys.readouterr().out
    assert "7,473 of 7,473 gold answers reach the top score 1" in said
    assert "1,319 of 1,319 gold answers reach the top score 1" in said


def test_gsm8k_plan_says_what_the_page_says(gsm8k: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", GSM8K, *gsm8k]) == 0
    said = capsys.readouterr().out
    page = (REPOSITORY / "examples/gsm8k_grpo/README.md").read_text()
    for number in ("262,144", "102,400", "1.71"):
        assert number in said
        assert number in page
    assert "Qwen/Qwen2.5-0.5B-Instruct" in said


QWEN_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
}


def test_gsm8k_memory_is_what_the_page_says(
    small_chat_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_05B))
    row = tmp_path / "rows.jsonl"
    row.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    words = [
        f"data.train.0.path={row}",
        "data.eval=[]",
        "evaluation.every_steps=null",
        "model.from_scratch=true",
        "model.device=cuda",
    ]
    assert main(["plan", GSM8K, f"model.path={tmp_path}", f"model.tokenizer={small_chat_model}", *words]) == 0
    lines = (re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    table = {cells[0]: cells[1] for cells in lines if len(cells) > 2}
    page = (REPOSITORY / "examples/gsm8k_grpo/README.md").read_text()
    listed = page.partition("memory      ")[2].partition("```")[0]
    shown = {"weights": "policy weights", "gradients": "gradients", "float32 masters": "master weights",
             "Adam": "Adam moments", "reference": "reference weights", "cache": "key/value cache",
             "activations": "activations", "log-probabilities": "log-probabilities"}  # fmt: skip
    for word, name in shown.items():
        size, unit = table[name].split()
        gibibytes = float(size) / (1024 if unit == "MiB" else 1)
        assert f"{word} {gibibytes:.1f}" in listed, name
    assert f"{float(table['together, at most'].split()[0]):.1f} GiB at most" in listed


def test_gsm8k_run_with_a_small_model(gsm8k: list[str], small_chat_model: Path, tmp_path: Path) -> None:
    words = [
        f"model.path={small_chat_model}",
        "model.dtype=float32",
        "steps=2",
        "optimization.warmup_steps=0",
        "rollout.prompts_per_step=2",
        "rollout.max_response_tokens=8",
        "evaluation.max_prompts=2",
        "data.train.0.limit=50",
        "data.eval.0.limit=20",
        "logging.sinks=[]",
        f"output={tmp_path / 'run'}",
    ]
    assert main(["rl", GSM8K, *gsm8k, *words]) == 0
    measured = rows_of(tmp_path / "run")
    assert [row["step"] for row in measured] == [0, 1, 2]
    assert "eval/accuracy" in measured[0]
    assert measured[1]["kl/reference"] == pytest.approx(0.0, abs=1e-5)
    lines = rollouts_of(tmp_path / "run")
    assert len(lines) == 2 * 8
    assert {line["status"] for line in lines} == {"ok"}

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(small_chat_model)
    for line in lines:
        asked = tokenizer.decode(line["prompt_tokens"])
        assert asked.startswith("<|im_start|>user\n")
        assert "put the final answer in \\boxed{}.<|im_end|>" in asked
        assert asked.rstrip().endswith("</think>")  # this template opens the answer with an empty thought
        assert "####" in line["answer"]
    assert (tmp_path / "run" / "checkpoints" / "step-000002" / "policy" / "model.safetensors").is_file()


ALONE = ("backend=inline", "trainers=1", "rollout_workers=0")


def assert_the_same_alone(words: list[str], folder: Path, *cluster: str) -> None:
    """As on several processes in `run`: the same weights."""
    assert main([*words, f"output={folder}/alone", *(f"cluster.{field}" for field in (*ALONE, *cluster))]) == 0
    weights = "checkpoints/step-000004/policy/model.safetensors"
    assert (folder / "run" / weights).read_bytes() == (folder / "alone" / weights).read_bytes()


@pytest.mark.matrix
def test_the_run_on_ray_is_the_run_on_one_process(custom_task: list[str], tmp_path: Path) -> None:
    """The commands of its page, cut to four steps."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'burnish[ray]')")
    words = ["rl", ON_RAY, *custom_task[:-1], "steps=4", "checkpoint.every_steps=4"]
    assert main([*words, f"output={tmp_path}/run"]) == 0
    assert_the_same_alone(words, tmp_path, "cpus_per_worker=null")


@pytest.mark.matrix
def test_the_run_with_torchrun_is_the_run_on_one_process(custom_task: list[str], tmp_path: Path) -> None:
    """The commands of its page, cut to four steps."""
    words = ["rl", WITH_TORCHRUN, *custom_task[:-1], "steps=4", "checkpoint.every_steps=4"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    subprocess.run([*torchrun, "-m", "burnish", *words, f"output={tmp_path}/run"], check=True, timeout=500)
    assert_the_same_alone(words, tmp_path)
