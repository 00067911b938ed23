"""A run whose prompts are known to be too easy, right, or impossible: what the difficulty filter saves."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from runs import Run, lines_of, rows_of, trained

from burnish.config.loading import load_run_data
from burnish.demo import DemoFolder, split_problems, write_data, write_model

SFT_STEPS, RL_STEPS = 1300, 40
KINDS = ("easy", "middle", "hard")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model after its demonstrations, which mostly forget to carry, and three kinds of additions: without a
    carry (always solved), with one (solved one time in five), and with an answer that no addition has."""
    folder = tmp_path_factory.mktemp("difficulty")
    demo = DemoFolder(folder / "demo")
    write_data(demo, 1)
    write_model(demo.model, 1)
    sft = {
        "output": str(folder / "sft"), "seed": 1, "model": {"path": str(demo.model), "device": "cpu"},
        "data": {"train": str(demo.demonstrations)}, "steps": SFT_STEPS, "max_tokens": 16,
        "optimization": {"tokens_per_batch": 640, "learning_rate": 2e-3, "betas": [0.9, 0.99], "warmup_steps": 20,
                         "schedule": "linear"},
        "checkpoint": {"every_steps": None}, "logging": {"sinks": []},
    }  # fmt: skip
    trained(load_run_data(sft, kind="sft").config)
    train, held_out = split_problems(1)
    carries = [problem for problem in train if problem.answer != problem.without_carry]
    others = [problem for problem in train if problem.answer == problem.without_carry]
    kinds = {
        "easy": [(p.prompt, p.answer) for p in others[:400]],
        "middle": [(p.prompt, p.answer) for p in carries[:400]],
        "hard": [(p.prompt, "999") for p in others[400:800]],
    }
    lines = [
        json.dumps({"prompt": prompt, "answer": answer, "kind": kind})
        for kind in KINDS
        for prompt, answer in kinds[kind]
    ]
    (folder / "train.jsonl").write_text("\n".join(lines))
    asked = [p for p in held_out if p.answer != p.without_carry]
    (folder / "eval.jsonl").write_text("\n".join(json.dumps({"prompt": p.prompt, "answer": p.answer}) for p in asked))
    return folder


@pytest.fixture(scope="module")
def run(task: Path) -> Run:
    def train(name: str, **domain: Any) -> Path:
        weights = task / "sft" / "checkpoints" / f"step-{SFT_STEPS:06d}" / "policy"
        config = {
            "output": str(task / name), "seed": 1, "model": {"path": str(weights), "device": "cpu"},
            "domains": {"sums": {"train": str(task / "train.jsonl"), "eval": str(task / "eval.jsonl"),
                                 "rewards": "exact", **domain}},
            "algorithm": {"preset": "grpo", "kl_in": "none", "max_refills": 8}, "steps": RL_STEPS,
            "rollout": {"prompts_per_step": 24, "group_size": 16, "max_prompt_tokens": 8, "max_response_tokens": 4},
            "optimization": {"learning_rate": 2e-4, "betas": [0.9, 0.99]},
            "evaluation": {"every_steps": RL_STEPS, "max_prompts": 200},
            "checkpoint": {"every_steps": None}, "logging": {"sinks": []},
        }  # fmt: skip
        return trained(load_run_data(config).config)

    return train


def kinds_of(folder: Path, step: int, task: Path) -> tuple[Counter[str], Counter[str]]:
    """Prompts of each kind that a step sampled, and that it trained on."""
    kind_of = {row["prompt"]: row["kind"] for row in map(json.loads, (task / "train.jsonl").read_text().splitlines())}
    lines = lines_of(folder / "rollouts" / f"step-{step:06d}.jsonl")
    sampled = {(line["group_id"], kind_of[line["prompt"]]) for line in lines}
    kept = {(line["group_id"], kind_of[line["prompt"]]) for line in lines if line["kept"]}
    return Counter(kind for _, kind in sampled), Counter(kind for _, kind in kept)


@pytest.mark.matrix
def test_the_filter_trains_on_what_can_be_learned_and_soon_samples_nothing_else(task: Path, run: Run) -> None:
    """Both runs replace groups that say nothing. One of them also remembers whose they were."""
    forgets = run("forgets", dynamic_sampling=True)
    remembers = run("remembers", difficulty={"keep": [0.02, 0.98], "again_after": None})
    for folder in (forgets, remembers):
        for step in range(1, RL_STEPS + 1):
            assert set(kinds_of(folder, step, task)[1]) <= {"easy", "middle"}, "an impossible prompt was trained on"
    wasted, accuracy, tokens = {}, {}, {}
    for name, folder in (("forgets", forgets), ("remembers", remembers)):
        late = rows_of(folder)[RL_STEPS // 2 + 1 :]
        wasted[name] = sum(row["domain/sums/left_out_fraction"] for row in late) / len(late)
        accuracy[name] = rows_of(folder)[-1]["eval/accuracy"]
        tokens[name] = sum(row["rollout/response_tokens_sum"] for row in rows_of(folder)[1:])
    assert wasted["forgets"] > 0.4
    assert wasted["remembers"] < 0.5 * wasted["forgets"]
    assert tokens["remembers"] < 0.85 * tokens["forgets"]
    assert rows_of(remembers)[0]["eval/accuracy"] < 0.4
    assert accuracy["remembers"] > 0.85
    assert accuracy["remembers"] > accuracy["forgets"] - 0.03
