"""TRL's side: GRPOTrainer with gradient checkpointing off and no saving; only conversations log. Runs in TRL's
interpreter.

bfloat16 is its `bf16=True`: float32 weights under autocast. The micro-batch is the task's. Conversations are held by
TRL's own loop (`tools=`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import child
from datasets import Dataset
from look_up import look_up
from reward import score
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workloads import KL_COEF, LEARNING_RATE, Workload

CALLS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<eos>\s*", "content": "text"},
    },
}
"""How calls are read from a turn; in the words of `transformers`, which TRL has for Qwen 3 as well."""


def main() -> None:
    task, workload = child.read_task()
    rows = [json.loads(line) for line in Path(task["prompts"]).read_text(encoding="utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(task["model"], padding_side="left")
    if workload.turns is not None:
        tokenizer.response_template = CALLS
        rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    trainer = TimedTrainer(
        model=task["model"],
        reward_funcs=rewards if workload.turns is None else rewards_of_last_turns,
        args=build_config(task, workload),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=None if workload.turns is None else [look_up],
    )
    trainer.add_callback(StepClock(trainer))
    trainer.train()
    warmup = task["warmup"]
    result = {
        "seconds": trainer.steps[warmup:],
        "lengths": trainer.lengths[warmup:],
        "sampled": trainer.sampled[warmup:],
        "distinct_prompts": trainer.distinct_prompts[warmup:],
        "optimizer_steps": trainer.state.global_step - warmup,
        "settings": {"per_device_train_batch_size": task["rows_per_microbatch"]},
    }
    child.report(result, ["trl", "torch", "transformers", "accelerate"])


def rewards(completions: list[str], **_: Any) -> list[float]:
    return [score(completion) for completion in completions]


def rewards_of_last_turns(completions: list[list[dict[str, Any]]], **_: Any) -> list[float]:
    return [score(messages[-1]["content"]) for messages in completions]


def build_config(task: dict[str, Any], workload: Workload) -> GRPOConfig:
    microbatches = workload.rows // task["rows_per_microbatch"]
    return GRPOConfig(
        output_dir=task["output"],
        model_init_kwargs={"dtype": "float32"},
        bf16=task["precision"] == "bfloat16",
        use_cpu=True,
        per_device_train_batch_size=task["rows_per_microbatch"],
        gradient_accumulation_steps=microbatches,
        steps_per_generation=microbatches,
        num_generations=workload.group,
        max_completion_length=workload.max_response,
        max_steps=task["warmup"] + task["steps"],
        beta=KL_COEF if workload.kl else 0.0,
        loss_type="grpo",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        shuffle_dataset=False,
        logging_strategy="no" if workload.turns is None else "steps",
        logging_steps=1,
        max_tool_calling_iterations=None if workload.turns is None else workload.turns.count - 1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


class TimedTrainer(GRPOTrainer):
    """Phases are those of Burnish's loop; all that is neither sampling, reward nor a pass without gradient is the
    update."""

    def __init__(self, **settings: Any) -> None:
        self.phases = child.Phases()
        self.steps: list[dict[str, float]] = []
        self.lengths: list[list[tuple[int, int]]] = []
        self.sampled: list[list[int]] = []
        self.distinct_prompts: list[int] = []
        super().__init__(**settings)

    def _generate(self, prompts: Any) -> Any:
        with self.phases.phase("generate"):
            outcome = super()._generate(prompts)
        prompt_ids, response_ids, sampled = outcome[:3]  # the last one is None without tools
        pairs = zip(prompt_ids, response_ids, strict=True)
        self.lengths.append([(len(prompt), len(response)) for prompt, response in pairs])
        self.sampled.append([sum(mask) for mask in sampled] if sampled else [len(ids) for ids in response_ids])
        self.distinct_prompts.append(len({tuple(prompt) for prompt in prompt_ids}))
        return outcome

    def _calculate_rewards(self, *given: Any, **named: Any) -> Any:
        with self.phases.phase("reward"):
            return super()._calculate_rewards(*given, **named)

    def _get_per_token_logps_and_entropies(self, *given: Any, **named: Any) -> Any:
        if child.torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(*given, **named)
        with self.phases.phase("logprobs"):
            return super()._get_per_token_logps_and_entropies(*given, **named)


class StepClock(TrainerCallback):
    """A step lasts from the end of the one before to its own end."""

    def __init__(self, trainer: TimedTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._trainer.phases.restart()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.steps.append(self._trainer.phases.take("update"))


if __name__ == "__main__":
    main()
