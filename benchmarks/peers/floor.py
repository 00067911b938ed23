"""Multiply-adds that a step cannot avoid, each prompt read once by all the responses to it.

Sampling: every prompt token and every response token but the last of each response goes through the layers, every
sampled token needs logits once (the first ones are shared by the group). A training pass does the same arithmetic
again, its backward pass twice as much; a pass without gradient (reference, old log-probabilities, values) once.
Left out: norms, softmax, sampling, the optimizer, everything that is no matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

from workloads import MODELS, ModelShape, Workload

Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, response tokens) of each response, the group's responses one after the other."""


def step_macs(workload: Workload, lengths: Lengths) -> dict[str, float]:
    """Multiply-adds of one step by phase.

    Minibatches: at best a minibatch holds whole groups, so that its prompts are read once; a random one reads more.
    """
    shape = MODELS[workload.model]
    trunk = trunk_macs(shape, group_lengths(lengths, workload.group))
    sampled = sum(response for _, response in lengths)
    if workload.turns is not None:
        sampled = len(lengths) * workload.turns.sampled
    head = shape.head_macs * (sampled - len(lengths) + workload.prompts)
    macs = {"generate": float(trunk + head), "update": 3.0 * workload.epochs * (trunk + head)}
    if workload.kl or workload.optimizer_steps > 1:
        macs["logprobs"] = float(trunk + head)
    if workload.ppo:
        macs["values"] = float(trunk)
        macs["update"] += 3.0 * workload.epochs * trunk
    return macs


def group_lengths(lengths: Lengths, group: int) -> list[tuple[int, list[int]]]:
    """(prompt tokens, response tokens of its responses) of each prompt."""
    first = range(0, len(lengths), group)
    return [(lengths[i][0], [response for _, response in lengths[i : i + group]]) for i in first]


def trunk_macs(shape: ModelShape, groups: Sequence[tuple[int, Sequence[int]]]) -> float:
    """Layers' matrices, and causal attention: two products of `hidden` multiply-adds for every pair of tokens."""
    tokens, pairs = 0, 0
    for prompt, responses in groups:
        tokens += prompt
        pairs += prompt * (prompt + 1) // 2
        for response in responses:
            fed = response - 1  # the last token predicts nothing
            tokens += fed
            pairs += fed * prompt + fed * (fed + 1) // 2
    return shape.trunk_macs * tokens + 2 * shape.layers * shape.hidden * pairs
