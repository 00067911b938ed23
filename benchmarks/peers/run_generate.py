"""`transformers.generate`: each prompt once per response, left-padded, all rows of the step side by side.

`matmul` in the task is PyTorch's precision of float32 products.
"""

from __future__ import annotations

import json
from pathlib import Path

import child
import torch
from forced import ending
from transformers import AutoModelForCausalLM, AutoTokenizer
from workloads import EOS, PAD, response_lengths


def main() -> None:
    task, workload = child.read_task()
    torch.set_float32_matmul_precision(task["matmul"])
    model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=task["precision"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(task["model"])
    texts = [json.loads(line)["prompt"] for line in Path(task["prompts"]).read_text(encoding="utf-8").splitlines()]
    seconds, lengths, distinct = [], [], []
    for step in range(task["warmup"] + task["steps"]):
        torch.manual_seed(step)
        drawn = texts[step * workload.prompts : (step + 1) * workload.prompts]
        phases = child.Phases()
        rows = [tokens for tokens in tokenizer(drawn)["input_ids"] for _ in range(workload.group)]
        width = max(map(len, rows))
        inputs = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
        with torch.no_grad():
            given = {"input_ids": inputs, "attention_mask": (inputs != PAD).long()}
            output = model.generate(
                **ending(given, response_lengths(workload, step)),
                do_sample=True,
                top_k=0,
                max_new_tokens=workload.max_response,
            )
        responses = output[:, width:].tolist()
        seconds.append(phases.take("generate"))
        lengths.append([(len(row), response_length(new)) for row, new in zip(rows, responses, strict=True)])
        distinct.append(len({tuple(row) for row in rows}))
    warmup = task["warmup"]
    result = {
        "seconds": seconds[warmup:],
        "lengths": lengths[warmup:],
        "distinct_prompts": distinct[warmup:],
        "optimizer_steps": None,
        "settings": {"rows": workload.rows},
    }
    child.report(result, ["torch", "transformers"])


def response_length(tokens: list[int]) -> int:
    """Tokens up to and with the end."""
    return tokens.index(EOS) + 1 if EOS in tokens else len(tokens)


if __name__ == "__main__":
    main()
