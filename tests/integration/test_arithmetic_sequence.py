"""A Llama with random weights learns to continue sequences from a dense reward alone."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console
from scripts import load_script

from burnish.config.loading import load_run_file
from burnish.config.schema import RlConfig
from burnish.models.loading import load_model
from burnish.observability.history import read_history
from burnish.observability.recorder import read_rollouts
from burnish.trainers.cluster import train_rl

STAGES = ("1_first_term", "2_second_term", "3_whole_answer")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "arithmetic_sequence"


reward = load_script(EXAMPLE / "reward.py")


def tokens(text: str) -> list[int]:
    return [reward.VOCABULARY.index(character) for character in text]


@pytest.fixture(scope="module")
def task(at_hand: Callable[[str], Path]) -> Path:
    return at_hand("data/arithmetic_sequence")


@pytest.fixture(scope="module")
def model_folder(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arithmetic-model")
    load_script(EXAMPLE / "prepare.py").build_model_folder(task / "model", folder)
    return folder


@pytest.fixture
def stage(task: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RlConfig]:
    """One of the example's run files on the real data; by default it starts from the random weights."""
    monkeypatch.chdir(EXAMPLE.parents[1])  # the run files name the reward from the repository's root

    def load_stage(name: str, model: Path = model_folder) -> RlConfig:
        given = [
            f"model={model}",
            f"data.train={task / 'data' / 'train.parquet'}",
            f"data.eval={task / 'data' / 'test.parquet'}",
            f"output={tmp_path / name}",
            "logging.sinks=[]",
        ]
        return load_run_file(EXAMPLE / f"{name}.yaml", given).config

    return load_stage


@pytest.mark.parametrize(
    ("prompt", "answer"), [("8,3:9,4", "7,2,6,1E"), ("0,0:9,2", "0,0E"), ("9,1:9,1", "2E"), ("3,1:9,0", "E")]
)
def test_the_right_answer_earns_one(prompt: str, answer: str) -> None:
    score = reward.prefix(prompt, tokens(answer))
    assert score.value == pytest.approx(1.0)
    assert score.token_rewards == pytest.approx([1 / len(answer)] * len(answer))
    assert score.parts["solved"] == 1.0
    assert score.parts["fraction_without_end"] == pytest.approx((len(answer) - 1) / len(answer))


@pytest.mark.parametrize(
    ("given", "right"), [("7,2,6,1", 7), ("7,2,5,1E", 4), ("E", 0), ("7E", 1), ("7,2,6,1,5E", 7), ("7SPU", 1)]
)
def test_nothing_is_earned_from_the_first_mistake_on(given: str, right: int) -> None:
    """Of 8 tokens, `7,2,6,1E`."""
    shares = reward.prefix("8,3:9,4", tokens(given))
    counted = reward.prefix("8,3:9,4", tokens(given), per_token=0.1)
    expected = [1.0] * right + [0.0] * (len(given) - right)
    assert shares.token_rewards == pytest.approx([value / 8 for value in expected])
    assert counted.token_rewards == pytest.approx([value / 10 for value in expected])
    assert shares.value == pytest.approx(right / 8) == shares.parts["fraction"] == counted.parts["fraction"]
    assert counted.value == pytest.approx(right / 10)
    assert counted.parts["solved"] == 0.0


def test_the_model_folder_reads_as_its_source_describes(stage: Callable[..., RlConfig]) -> None:
    """Ids as the given embedding has them, the prompt closed by the separator, weights in float32."""
    loaded = load_model(stage("1_first_term").model)
    text = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "8,3:9,4"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "8,3:9,4S"
    assert loaded.tokenizer(text, add_special_tokens=False)["input_ids"] == tokens(text)
    assert loaded.eos_token_ids == (1,)
    assert loaded.pad_token_id == 2
    assert sum(p.numel() for p in loaded.model.parameters()) == 795_776
    assert loaded.model.dtype == torch.float32


def test_each_run_starts_where_the_one_before_ends(stage: Callable[..., RlConfig]) -> None:
    for before, after in pairwise(STAGES):
        written = yaml.safe_load((EXAMPLE / f"{after}.yaml").read_text())["model"]
        first = yaml.safe_load((EXAMPLE / f"{before}.yaml").read_text())
        assert written == f"{first['output']}/checkpoints/step-{stage(before).steps:06d}/policy"


@pytest.mark.matrix  # 18 minutes without AVX-512; run by hand (make test-matrix)
@pytest.mark.timeout(2400)
def test_a_random_model_learns_the_sequences(stage: Callable[..., RlConfig], one_thread: None) -> None:
    """The three runs of the example, by reward alone: above half of each answer right, in training and held out."""
    result = None
    for name in STAGES:
        start = {} if result is None else {"model": result.folder / f"checkpoints/step-{result.step:06d}/policy"}
        result = train_rl(stage(name, **start), console=Console(quiet=True))
    assert result is not None
    held_out = read_rollouts(result.folder / "rollouts" / f"eval-{result.step:06d}.jsonl")
    fraction = sum(row["reward_parts"]["prefix/fraction"] for row in held_out) / len(held_out)
    _, trained = read_history(result.folder)["reward/part/prefix/fraction"]
    untrained = read_rollouts(Path(stage(STAGES[0]).output) / "rollouts" / "eval-000000.jsonl")
    assert sum(row["reward_parts"]["prefix/fraction"] for row in untrained) / len(untrained) < 0.05
    assert fraction >= 0.5, fraction
    assert max(trained) >= 0.5, max(trained)
