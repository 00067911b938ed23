"""The demo's task: two-digit additions, a forgetful demonstrator, a tiny transformer, and the two run files.

Everything depends only on the seed. `burnish demo` writes all of it into a folder, where ordinary commands can use it.
A program takes the pieces: `split_problems`, `problem_rows`, `demonstration_rows` and `write_model`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

ALPHABET = "0123456789+="
NUM_HELD_OUT = 500
FORGET_PROBABILITY = 0.8
"""Probability that the demonstrator drops the carry out of the ones, if there is one."""
NUM_DEMONSTRATIONS = 4
"""Demonstrations per problem, each forgetful or not independently. With only one, the model would memorise which
problems are shown with a carry, instead of learning how to carry."""

SFT_STEPS = 1300
RL_STEPS = 60


@dataclass(frozen=True, slots=True)
class Addition:
    """One problem. The answer is written with the ones first, so that carries flow in the direction of writing."""

    a: int
    b: int

    @property
    def prompt(self) -> str:
        return f"{self.a:02d}+{self.b:02d}="

    @property
    def answer(self) -> str:
        return f"{self.a + self.b:03d}"[::-1]

    @property
    def without_carry(self) -> str:
        """The answer without the carry out of the ones."""
        tens = self.a // 10 + self.b // 10
        return f"{(self.a % 10 + self.b % 10) % 10}{tens % 10}{tens // 10}"


@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The folder of a demo, and the paths in it."""

    path: Path

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def demonstrations(self) -> Path:
        return self.path / "data" / "demonstrations.jsonl"

    @property
    def train(self) -> Path:
        return self.path / "data" / "train.jsonl"

    @property
    def held_out(self) -> Path:
        return self.path / "data" / "held_out.jsonl"

    @property
    def sft_file(self) -> Path:
        return self.path / "sft.yaml"

    @property
    def rl_file(self) -> Path:
        return self.path / "rl.yaml"

    @property
    def sft_run(self) -> Path:
        return self.path / "sft"

    @property
    def rl_run(self) -> Path:
        return self.path / "rl"

    def is_demo(self) -> bool:
        """True if an earlier demo was started here."""
        return self.sft_file.is_file() and self.rl_file.is_file()


def split_problems(seed: int) -> tuple[list[Addition], list[Addition]]:
    """Shuffle all 10,000 additions and split them into training and held-out problems."""
    problems = [Addition(a, b) for a in range(100) for b in range(100)]
    random.Random(seed).shuffle(problems)
    return problems[NUM_HELD_OUT:], problems[:NUM_HELD_OUT]


def demonstrate(problems: Iterable[Addition], seed: int) -> list[str]:
    """Write the forgetful demonstrator's answer to each problem."""
    chance = random.Random(seed + 1)
    return [p.without_carry if chance.random() < FORGET_PROBABILITY else p.answer for p in problems]


def problem_rows(problems: Iterable[Addition]) -> list[dict[str, str]]:
    """Make rows for a reward: prompts with their right answers."""
    return [{"prompt": p.prompt, "answer": p.answer} for p in problems]


def demonstration_rows(problems: Iterable[Addition], seed: int) -> list[dict[str, str]]:
    """Make rows for supervised fine-tuning: the demonstrator's answers, several to each problem, most of them wrong if
    there is a carry."""
    asked = [problem for problem in problems for _ in range(NUM_DEMONSTRATIONS)]
    pairs = zip(asked, demonstrate(asked, seed), strict=True)
    return [{"prompt": p.prompt, "completion": text} for p, text in pairs]


def write_data(folder: DemoFolder, seed: int) -> float:
    """Write the three data files. Returns the fraction of demonstrations that are wrong."""
    train, held_out = split_problems(seed)
    demonstrations = demonstration_rows(train, seed)
    _write_lines(folder.demonstrations, demonstrations)
    for path, problems in ((folder.train, train), (folder.held_out, held_out)):
        _write_lines(path, problem_rows(problems))
    answers = {problem.prompt: problem.answer for problem in train}
    return sum(row["completion"] != answers[row["prompt"]] for row in demonstrations) / len(demonstrations)


def write_model(folder: Path, seed: int, *, hidden_size: int = 64, intermediate_size: int = 256) -> int:
    """Write a randomly initialised transformer with its tokenizer. Returns the number of its parameters."""
    from burnish.models.characters import character_tokenizer, tiny_llama

    tokenizer = character_tokenizer(ALPHABET, eos="<eos>", pad="<pad>", context_length=64)
    model = tiny_llama(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_layers=2,
        num_heads=4,
        intermediate_size=intermediate_size,
        context_length=64,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_embeddings=False,
        initializer_range=0.06,  # the usual 0.02 is for wide models; with it, this narrow one starts three times slower
        seed=seed,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_run_files(folder: DemoFolder, seed: int) -> None:
    """Write the run files of both halves."""
    values = {
        "seed": seed,
        "sft_steps": SFT_STEPS,
        "rl_steps": RL_STEPS,
        "model": _quoted(folder.model),
        "sft_run": _quoted(folder.sft_run),
        "rl_run": _quoted(folder.rl_run),
        "sft_model": _quoted(folder.sft_run / "checkpoints" / f"step-{SFT_STEPS:06d}" / "policy"),
        "demonstrations": _quoted(folder.demonstrations),
        "train": _quoted(folder.train),
        "held_out": _quoted(folder.held_out),
    }
    for path, text in ((folder.sft_file, _SFT), (folder.rl_file, _RL)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(values), encoding="utf-8")


def _quoted(path: Path) -> str:
    """A path quoted so that YAML reads it back unchanged, whatever characters it contains."""
    return json.dumps(str(path), ensure_ascii=False)


def _write_lines(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


_SFT = """\
# First half of the demo: learn from a demonstrator who mostly forgets to carry.  burnish sft FILE
output: $sft_run
seed: $seed
model: {path: $model, device: cpu}
data:
  train: $demonstrations
  eval: $held_out  # the true answers
steps: $sft_steps
max_tokens: 16
optimization:
  tokens_per_batch: 640  # 64 problems of 10 tokens
  learning_rate: 2e-3
  betas: [0.9, 0.99]
  warmup_steps: 20
  schedule: linear  # down to 0, so that later gains are not due to unfinished training
evaluation: {every_steps: 200, max_prompts: null}
checkpoint: {every_steps: null}
"""

_RL = """\
# Second half of the demo: learn from a reward that knows the right answer.  burnish rl FILE
output: $rl_run
seed: $seed
model: {path: $sft_model, device: cpu}
data:
  train: $train
  eval: $held_out  # 500 problems that neither training has seen
rewards: exact  # 1 for the right answer, 0 for any other
algorithm: {preset: grpo, kl_in: none}
steps: $rl_steps
rollout:
  prompts_per_step: 64
  group_size: 16
  max_prompt_tokens: 8
  max_response_tokens: 4  # three digits and the end of the text
  max_batch_rows: 1024
optimization:
  learning_rate: 2e-4
  betas: [0.9, 0.99]
  minibatches: 2
evaluation: {every_steps: 5, max_prompts: null}
checkpoint: {every_steps: 25}
"""
