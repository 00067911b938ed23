"""What is measured: models, workloads, and how long every response is. Standard library only, so that it runs in every
peer's interpreter.

Lengths are prescribed: the prompts' file and `response_lengths` say how many tokens every response of every step has,
for all peers. Geometric lengths are the quantiles of the distribution in an order that differs from step to step, so
every step has the same lengths, and only who has them changes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAD, EOS, UNKNOWN, FIRST_WORD = 0, 1, 2, 3
"""Token ids; every id from FIRST_WORD on is a word `w<id>`."""
OPENING = ("<user>", "<assistant>", "<tool>", "<tools>", "look_up")
"""What the chat template of conversations writes, one token each."""
CALL = ("<tool_call>", '{"name":', '"look_up",', '"arguments":', '{"words":', '"', '"}}', "</tool_call>")
"""What calls are written with: all but the last two stand before the words that are looked up."""
WORDS_IN_CALL = 3
FIRST_SPOKEN_WORD = FIRST_WORD + len(OPENING) + len(CALL)
"""In conversations these signs take the first words' ids."""
AROUND = 3
"""Tokens of the chat template around a tool's answer: `<tool> ... <eos> <assistant>`."""
AROUND_PROMPT = 6
"""`<tools> look_up <eos> <user> ... <eos> <assistant>`."""
MEAN_RESPONSE = 64
MAX_PROMPT_TOKENS = 1024
LEARNING_RATE = 1e-8
"""So small that no step changes how long the next step's responses are."""
KL_COEF = 0.04


@dataclass(frozen=True)
class ModelShape:
    """A Llama. `tied`: the head's weight is the embedding's."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    intermediate: int
    vocabulary: int
    tied: bool = False

    @property
    def trunk_macs(self) -> int:
        """Multiply-adds of one token in all layers' matrices, attention scores apart (embeddings are looked up)."""
        key_width = self.hidden // self.heads * self.key_heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * key_width
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_macs(self) -> int:
        """Multiply-adds of one token's logits."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        norms = (2 * self.layers + 1) * self.hidden
        return self.trunk_macs + (1 if self.tied else 2) * self.head_macs + norms


MODELS = {
    "tiny": ModelShape(hidden=128, layers=4, heads=4, key_heads=4, intermediate=512, vocabulary=128),
    "mid": ModelShape(hidden=512, layers=8, heads=8, key_heads=4, intermediate=1408, vocabulary=32_000),
    "half": ModelShape(  # Qwen2.5-0.5B's, without its biases
        hidden=896, layers=24, heads=14, key_heads=2, intermediate=4864, vocabulary=151_936, tied=True
    ),
    "large": ModelShape(  # Qwen3-1.7B's, without its norms of queries and keys; for a GPU
        hidden=2048, layers=28, heads=16, key_heads=8, intermediate=6144, vocabulary=151_936, tied=True
    ),
}


@dataclass(frozen=True)
class Turns:
    """Responses that are conversations: `count` turns of the policy of exactly `said` tokens, each of which calls a
    tool. After all but the last one the tool answers with `answered` words, to which the chat template adds AROUND
    tokens."""

    count: int
    said: int
    answered: int

    @property
    def sampled(self) -> int:
        """Tokens of a response that the policy writes, and that are trained on."""
        return self.count * self.said

    @property
    def tokens(self) -> int:
        """Of a response, answers included."""
        return self.sampled + (self.count - 1) * (self.answered + AROUND)


@dataclass(frozen=True)
class Workload:
    """One step: `prompts` x `group` responses. prompt_tokens None: the lengths of the GSM8K questions.

    max_response: exactly this many tokens, or with `mean_response` where geometric lengths of that mean are cut.
    kl: a reference is scored. ppo: a critic, and `epochs` x `minibatches` optimizer steps. turns: responses are
    conversations, and both sides log every step.
    """

    name: str
    title: str
    model: str
    prompts: int
    group: int
    prompt_tokens: int | None
    max_response: int
    mean_response: int | None = None
    kl: bool = False
    ppo: bool = False
    epochs: int = 1
    minibatches: int = 1
    turns: Turns | None = None

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def row_tokens(self) -> int:
        """Most tokens of a prompt with its response."""
        return (self.prompt_tokens or MAX_PROMPT_TOKENS) + self.max_response

    @property
    def optimizer_steps(self) -> int:
        """Of the policy, in one step of the loop."""
        return self.epochs * self.minibatches


def conversations(name: str, title: str, model: str) -> Workload:
    """Three turns with two answers between them, after prompts of 64 tokens."""
    turns = Turns(count=3, said=32, answered=20)
    title = f"{title}, prompt 64, {turns.count} turns of {turns.said}, {turns.count - 1} answers of {turns.answered}"
    return Workload(name, title, model, 8, 8, 64, turns.tokens, turns=turns)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "full length: 8 x 8, prompt 32, response 64", "mid", 8, 8, 32, 64),
        Workload(
            "W2",
            "real shape: 8 x 8, prompt 256, response geometric, mean 64, <= 256",
            "mid",
            8,
            8,
            256,
            256,
            MEAN_RESPONSE,
        ),
        Workload("W3", "overhead: W1 on the tiny model", "tiny", 8, 8, 32, 64),
        Workload("W4", "W2 with a reference KL", "mid", 8, 8, 256, 256, MEAN_RESPONSE, kl=True),
        Workload("W5", "long prompt: 4 x 16, prompt 1,024, response 64", "mid", 4, 16, 1024, 64),
        Workload("W6", "GSM8K prompt lengths: 8 x 8, response as W2", "mid", 8, 8, None, 256, MEAN_RESPONSE),
        Workload(
            "W7",
            "W2 as PPO with a critic, 2 epochs x 4 minibatches",
            "mid",
            8,
            8,
            256,
            256,
            MEAN_RESPONSE,
            ppo=True,
            epochs=2,
            minibatches=4,
        ),
        conversations("W8", "tool calls: 8 x 8 conversations, on the tiny model", "tiny"),
        conversations("W9", "W8 on the larger model", "mid"),
        Workload("W10", "half a billion parameters: 4 x 4, prompt 64, response 64", "half", 4, 4, 64, 64),
    )
}


def quick(workload: Workload) -> Workload:
    """The same kind of work on the tiny model, in a second or less: what it takes says nothing."""
    turns = workload.turns and dataclasses.replace(workload.turns, count=2, said=16)
    return dataclasses.replace(
        workload,
        title=f"{workload.title}, shrunk",
        model="tiny",
        prompts=2,
        group=4,
        prompt_tokens=workload.prompt_tokens and min(workload.prompt_tokens, 24),
        max_response=turns.tokens if turns else min(workload.max_response, 24),
        mean_response=workload.mean_response and 8,
        minibatches=min(workload.minibatches, 2),
        turns=turns,
    )


def encode(workload: Workload) -> dict[str, Any]:
    """As plain data for a task."""
    return dataclasses.asdict(workload)


def decode(data: Mapping[str, Any]) -> Workload:
    turns = None if data["turns"] is None else Turns(**data["turns"])
    return Workload(**{**data, "turns": turns})


def response_lengths(workload: Workload, step: int) -> list[int]:
    """Tokens of each response of a step (counted from 0), the responses to one prompt side by side."""
    if workload.mean_response is None:
        return [workload.max_response] * workload.rows
    stay = 1 - 1 / workload.mean_response
    levels = [(row + 0.5) / workload.rows for row in range(workload.rows)]
    lengths = [min(math.ceil(math.log(1 - level) / math.log(stay)), workload.max_response) for level in levels]
    random.Random(step).shuffle(lengths)
    return lengths


def planned_lengths(workload: Workload, prompts: Path, steps: range) -> list[list[tuple[int, int]]]:
    """(prompt tokens, response tokens) of every response of these steps, with prompts as `models.write_prompts` wrote
    them: one token a word."""
    around = 0 if workload.turns is None else AROUND_PROMPT
    tokens = [
        len(json.loads(line)["prompt"].split()) + around for line in prompts.read_text(encoding="utf-8").splitlines()
    ]
    plan = []
    for step in steps:
        first = step * workload.prompts
        asked = [n for n in tokens[first : first + workload.prompts] for _ in range(workload.group)]
        plan.append(list(zip(asked, response_lengths(workload, step), strict=True)))
    return plan


def check_same_work(
    name: str, workload: Workload, result: Mapping[str, Any], plan: Sequence[Sequence[tuple[int, int]]]
) -> None:
    """Refuse a peer that did other work than `plan`, the lengths of its measured steps (`planned_lengths`).

    Raises ValueError naming the peer and what differs. The order of a step's responses may be any.
    """
    checks: dict[str, tuple[Any, Any]] = {
        "steps": (len(result["lengths"]), len(plan)),
        "distinct prompts of each step": (list(result["distinct_prompts"]), [workload.prompts] * len(plan)),
    }
    for number, (found, planned) in enumerate(zip(result["lengths"], plan, strict=False)):
        wanted = sorted(tuple(pair) for pair in planned)
        checks[f"(prompt, response) tokens of measured step {number}"] = (sorted(map(tuple, found)), wanted)
    if result["optimizer_steps"] is not None:
        checks["optimizer steps"] = (result["optimizer_steps"], len(plan) * workload.optimizer_steps)
    if workload.turns is not None:
        sampled = {n for step in result["sampled"] for n in step}
        checks["tokens sampled in each response"] = (sampled, {workload.turns.sampled} if plan else set())
    for what, (got, wanted) in checks.items():
        if got != wanted:
            raise ValueError(f"{name} did other work in {workload.name}: {what} {got}, wanted {wanted}")
