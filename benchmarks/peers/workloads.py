"""What is measured: models, workloads, and the plain data that goes to a peer and comes back. Standard library only,
so that it runs in every peer's interpreter."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
LEARNING_RATE = 1e-8
"""So small that no step changes how long the next step's responses are."""
KL_COEF = 0.04


@dataclass(frozen=True)
class ModelShape:
    """A Llama without tied embeddings."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    intermediate: int
    vocabulary: int

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
        return self.trunk_macs + 2 * self.head_macs + norms


MODELS = {
    "tiny": ModelShape(hidden=128, layers=4, heads=4, key_heads=4, intermediate=512, vocabulary=128),
    "mid": ModelShape(hidden=512, layers=8, heads=8, key_heads=4, intermediate=1408, vocabulary=32_000),
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

    max_response: exactly this many tokens, or with `geometric` the cut of geometric lengths of mean MEAN_RESPONSE.
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
    geometric: bool
    kl: bool = False
    ppo: bool = False
    epochs: int = 1
    minibatches: int = 1
    turns: Turns | None = None

    @property
    def variant(self) -> str:
        """Of the model: how its responses end."""
        if self.turns is not None:
            return "turns"
        return "geometric" if self.geometric else "exact"

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def optimizer_steps(self) -> int:
        """Of the policy, in one step of the loop."""
        return self.epochs * self.minibatches


def conversations(name: str, title: str, model: str) -> Workload:
    """Three turns with two answers between them, after prompts of 64 tokens."""
    turns = Turns(count=3, said=32, answered=20)
    title = f"{title}, prompt 64, {turns.count} turns of {turns.said}, {turns.count - 1} answers of {turns.answered}"
    return Workload(name, title, model, 8, 8, 64, turns.tokens, False, turns=turns)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "full length: 8 x 8, prompt 32, response 64", "mid", 8, 8, 32, 64, False),
        Workload(
            "W2", "real shape: 8 x 8, prompt 256, response geometric, mean 64, <= 256", "mid", 8, 8, 256, 256, True
        ),
        Workload("W3", "overhead: W1 on the tiny model", "tiny", 8, 8, 32, 64, False),
        Workload("W4", "W2 with a reference KL", "mid", 8, 8, 256, 256, True, kl=True),
        Workload("W5", "long prompt: 4 x 16, prompt 1,024, response 64", "mid", 4, 16, 1024, 64, False),
        Workload("W6", "GSM8K prompt lengths: 8 x 8, response as W2", "mid", 8, 8, None, 256, True),
        Workload(
            "W7",
            "W2 as PPO with a critic, 2 epochs x 4 minibatches",
            "mid",
            8,
            8,
            256,
            256,
            True,
            ppo=True,
            epochs=2,
            minibatches=4,
        ),
        conversations("W8", "tool calls: 8 x 8 conversations, on the tiny model", "tiny"),
        conversations("W9", "W8 on the larger model", "mid"),
    )
}


def response_moments(workload: Workload) -> tuple[float, float]:
    """(mean, standard deviation) of a response's length in tokens, the end token counted."""
    if not workload.geometric:
        return float(workload.max_response), 0.0
    stay = 1 - 1 / MEAN_RESPONSE
    tails = [stay**k for k in range(workload.max_response)]  # P(length > k)
    mean = sum(tails)
    square = sum((2 * k + 1) * tail for k, tail in enumerate(tails))
    return mean, math.sqrt(square - mean * mean)


def check_same_work(name: str, workload: Workload, result: dict[str, Any], steps: int) -> None:
    """Refuse a peer that did other work. `result["lengths"]`: one list of [prompt tokens, response tokens] per step.

    Raises ValueError naming the peer and what differs. Geometric lengths may differ from their mean by four standard
    errors: about once in 16,000 runs by chance.
    """
    lengths = result["lengths"]
    rows = [len(step) for step in lengths]
    responses = [response for step in lengths for _, response in step]
    prompts = [prompt for step in lengths for prompt, _ in step]
    mean, deviation = response_moments(workload)
    error = deviation / math.sqrt(len(responses))
    found = sum(responses) / len(responses)
    checks: dict[str, Any] = {
        "steps": (len(lengths), steps),
        "responses of each step": (set(rows), {workload.rows}),
        "distinct prompts of each step": (set(result["distinct_prompts"]), {workload.prompts}),
    }
    if result["optimizer_steps"] is not None:
        checks["optimizer steps"] = (result["optimizer_steps"], steps * workload.optimizer_steps)
    if workload.prompt_tokens is not None:
        checks["prompt tokens"] = (set(prompts), {workload.prompt_tokens})
    if workload.turns is not None:
        checks["tokens sampled in each response"] = (
            {n for step in result["sampled"] for n in step},
            {workload.turns.sampled},
        )
    for what, (got, wanted) in checks.items():
        if got != wanted:
            raise ValueError(f"{name} did other work in {workload.name}: {what} {got}, wanted {wanted}")
    if abs(found - mean) > 4 * error:
        raise ValueError(
            f"{name} did other work in {workload.name}: {found:.2f} response tokens, wanted {mean:.2f} +- {error:.2f}"
        )
