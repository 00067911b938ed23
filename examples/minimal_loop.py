"""GRPO as a plain loop in one file, without a trainer. Read it to see what `burnish rl` does in a step.

    python examples/minimal_loop.py MODEL_FOLDER TRAIN.jsonl [STEPS]

TRAIN.jsonl has rows {"prompt": ..., "answer": ...}; a response scores the share of the answer's characters that it
has in the right place. The numbers equal those of `burnish rl` with the same settings (a test compares the two): same
prompts in the same order, same sampling noise, same loss. Not here, but in the trainer: micro-batches, key-value cache,
killable rewards, checkpoints, evaluation, several updates per step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from burnish.data.samplers import PromptSampler  # a fresh permutation of the rows per pass, from the seed
from burnish.rollouts.noise import sample_key, uniforms  # one uniform number per (sample, position), from the seed

SEED = 0
PROMPTS_PER_STEP, GROUP_SIZE, MAX_RESPONSE_TOKENS = 4, 4, 4
LEARNING_RATE, MAX_GRAD_NORM = 1e-3, 1.0
CLIP, KL_COEF = 0.2, 0.04


def main(model_folder: str, train_file: str, steps: int) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in Path(train_file).read_text(encoding="utf-8").split("\n") if line.strip()]
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    policy = AutoModelForCausalLM.from_pretrained(model_folder).eval()  # eval: no dropout, the ratio starts at 1
    reference = AutoModelForCausalLM.from_pretrained(model_folder).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    sampler = PromptSampler([len(rows)], seed=SEED)
    history = []
    for step in range(1, steps + 1):
        # 1. prompts: each is answered GROUP_SIZE times
        drawn = sampler.take(PROMPTS_PER_STEP, (step - 1) * PROMPTS_PER_STEP)
        group_ids = torch.arange(PROMPTS_PER_STEP).repeat_interleave(GROUP_SIZE)
        # 2. rollouts, one at a time: slow and plain
        rollouts, scores = [], []
        for row in drawn:
            prompt = tokenizer(rows[row]["prompt"])["input_ids"]
            for index in range(GROUP_SIZE):
                key = sample_key(SEED, step, f"{Path(train_file).stem}:{row}", index)
                response = generate(policy, prompt, key, tokenizer.eos_token_id)
                rollouts.append((prompt, response))
                # 3. rewards
                said = response[:-1] if response[-1] == tokenizer.eos_token_id else response
                text = tokenizer.decode(said)  # with all special tokens except the one that ended it
                scores.append(reward(text, rows[row]["answer"]))
        # 4. advantages: each score against its own group
        advantages = grpo_advantages(torch.tensor(scores), group_ids)
        # 5. one update
        tokens, positions, mask = pad(rollouts, tokenizer.pad_token_id)
        with torch.no_grad():
            ref_logprobs = response_logprobs(reference, tokens, positions)
        logprobs = response_logprobs(policy, tokens, positions)
        loss = grpo_loss(logprobs, ref_logprobs, advantages, mask)
        optimizer.zero_grad()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        # 6. what happened
        row_of_numbers = {
            "step": step,
            "reward/mean": sum(scores) / len(scores),
            "policy/loss": loss.item(),
            "policy/grad_norm": grad_norm.item(),
            "kl/reference": ((logprobs.detach() - ref_logprobs) * mask).sum().item() / len(scores),
            "rollout/response_tokens_mean": mask.sum().item() / len(scores),
        }
        history.append(row_of_numbers)
        print(json.dumps(row_of_numbers))
    return history


def reward(response: str, answer: str) -> float:
    return sum(a == b for a, b in zip(response, answer)) / len(answer)  # noqa: B905 (they may differ in length)


@torch.no_grad()
def generate(policy: PreTrainedModel, prompt: list[int], key: int, eos_token_id: int) -> list[int]:
    """Sample a response: the token whose slice of [0, 1) holds the uniform number of this sample and position."""
    response: list[int] = []
    while len(response) < MAX_RESPONSE_TOKENS and (not response or response[-1] != eos_token_id):
        logits = policy(torch.tensor([prompt + response])).logits[0, -1]
        number = uniforms(torch.tensor(key), torch.tensor(len(response)))
        cumulative = logits.double().softmax(-1).cumsum(-1)
        response.append(int(torch.searchsorted(cumulative, number, right=True)))
    return response


def grpo_advantages(scores: Tensor, group_ids: Tensor) -> Tensor:
    """(score - mean of the group) / (standard deviation of the group + 1e-6); 0 in a group of equal scores."""
    advantages = torch.zeros_like(scores)
    for group in group_ids.unique():
        members = group_ids == group
        own = scores[members]
        if own.min() < own.max():
            advantages[members] = (own - own.mean()) / (own.std() + 1e-6)
    return advantages


def pad(rollouts: list[tuple[list[int], list[int]]], pad_token_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows `prompt|response|padding`; for each response slot the column that predicts it, and if it holds a token."""
    width = max(len(prompt) + len(response) for prompt, response in rollouts)
    longest = max(len(response) for _, response in rollouts)
    tokens = torch.full((len(rollouts), width), pad_token_id)
    positions = torch.zeros(len(rollouts), longest, dtype=torch.int64)
    mask = torch.zeros(len(rollouts), longest, dtype=torch.bool)
    for i, (prompt, response) in enumerate(rollouts):
        tokens[i, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        positions[i] = (torch.arange(longest) + len(prompt) - 1).clamp(max=width - 2)
        mask[i, : len(response)] = True
    return tokens, positions, mask


def response_logprobs(model: PreTrainedModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Log-probability of each response token. Padding is at the end, where causal attention never looks."""
    logits = model(tokens).logits
    predicted = tokens.gather(1, positions + 1)
    at_response = logits.gather(1, positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    return at_response.log_softmax(-1).gather(-1, predicted.unsqueeze(-1)).squeeze(-1)


def grpo_loss(logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Clipped surrogate + KL (k3) to the reference: mean over the tokens of a response, then over the responses."""
    ratio = (logprobs - logprobs.detach()).exp()  # 1 in value: the rollouts come from the current weights
    gain = advantages.unsqueeze(1)
    surrogate = torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP))
    difference = logprobs - ref_logprobs
    kl = (-difference).exp() + difference - 1
    per_token = torch.where(mask, surrogate + KL_COEF * kl, 0.0)
    return (per_token.sum(1) / mask.sum(1)).mean()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10)
