"""The checklist of the first day: does it compute the right numbers, twice the same, without waiting?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from demo_runs import demo_folder, demonstrated, rl_rows
from random_batches import grpo_objective, open_policy, random_batch
from records import ROOT
from rows import Figures, Place, Row, Settings, Target
from shapes import SHAPES, write_shape
from torch import Tensor

from burnish.forward.attention import WAYS, ways_on
from burnish.forward.batch import HostRows
from burnish.forward.packing import Packing
from burnish.models.roles import count_denominators

FILES = ("tests/unit/forward/test_attention_ways.py", "tests/unit/forward/test_gpu_passes.py")
"""Those with cases that are skipped without a GPU, or whose kernels are then themselves."""
ROUNDING = {"float32": 1e-5, "bfloat16": 0.02}
"""Relative to float64."""
OF_RUNS = {"float32": 1e-4, "bfloat16": 0.1}
"""Nats between sampler and trainer."""
NOT_NUMBERS = ("time/", "throughput/", "memory/")
"""Metrics that differ from run to run."""


EXACT = Target("differing_numbers", at_most=0)


def rows(toy: bool) -> list[Row]:
    ways = [("merged", "float32")] if toy else [("varlen", "bfloat16"), ("flex", "bfloat16"), ("flex", "float32")]
    ways += [("copied", "float32"), ("copied", "bfloat16")]
    found = [attention_row(way, dtype, 1 if toy else 32) for way, dtype in ways]
    for dtype in ("bfloat16", "float32"):
        settings = {"kind": "waits", "dtype": dtype, "shape": "toy" if toy else "0.5b", "tokens": 64 if toy else 4096}
        found.append(Row("tests", f"a micro-batch waits for nothing, {dtype}", settings, targets=(EXACT,)))
    sizes = {"steps": 3, "sft_steps": 300, "prompts": 64, "rows": None}
    if toy:
        sizes = {"steps": 1, "sft_steps": 1, "prompts": 2, "rows": 80}
    for dtype in ("bfloat16",) if toy else ("float32", "bfloat16"):
        targets = (EXACT, Target("logprob_diff_max", at_most=OF_RUNS[dtype]))
        settings = {"kind": "demo", "dtype": dtype, **sizes}
        found.append(Row("tests", f"demo twice, and on a CPU, {dtype}", settings, 150, targets))
    found.append(program_row("doctor", ["burnish", "--version" if toy else "doctor"], 60))
    files = ["--version"] if toy else ["-rsf", "--tb=line", *FILES]
    return [*found, program_row("pytest", ["pytest", *files], 240)]


def attention_row(way: str, dtype: str, scale: int) -> Row:
    settings = {"kind": "attention", "way": way, "dtype": dtype, "scale": scale}
    targets = (Target("relative_error", at_most=ROUNDING[dtype]), EXACT)
    return Row("tests", f"attention {way}, {dtype}", settings, targets=targets)


def program_row(name: str, words: list[str], seconds: float) -> Row:
    return Row("tests", name, {"kind": "program", "words": ["-m", *words]}, seconds)


def measure(settings: Settings, place: Place) -> Figures:
    return {"attention": attention, "waits": waits, "demo": demo, "program": program}[settings["kind"]](settings, place)


def attention(settings: Settings, place: Place) -> Figures:
    """One way to attend in packed rows: outputs and gradients against dense attention in float64, and twice the same
    bits."""
    device, dtype, scale = torch.device(place.device.name), getattr(torch, settings["dtype"]), settings["scale"]
    prompts = np.array([0, 0, 0, 1, 1, 2])
    rows = HostRows(
        np.array([9, 9, 9, 5, 5, 1]) * scale,
        np.array([7, 2, 5, 9, 1, 3]) * scale,
        prompts,
        np.ones((6, 9 * scale), dtype=np.bool_),
        np.ones(6, dtype=np.int64),
    )
    packing = Packing.of(rows)
    drawn = torch.Generator().manual_seed(0)
    shapes = [(packing.size, heads, 64) for heads in (8, 2, 2, 8)]
    inputs = [torch.randn(shape, generator=drawn).to(dtype) for shape in shapes]
    on_device = [tensor.to(device) for tensor in inputs]
    attend = WAYS[settings["way"]](packing, device, dtype).attend
    first = outputs_and_gradients(lambda q, k, v: attend(q, k, v, None), on_device)
    again = outputs_and_gradients(lambda q, k, v: attend(q, k, v, None), on_device)
    sees = visible(packing)
    exact = outputs_and_gradients(lambda q, k, v: dense(q, k, v, sees), [tensor.double() for tensor in inputs])
    errors = [float((a.cpu().double() - b).norm() / b.norm()) for a, b in zip(first, exact, strict=True)]
    differing = sum(int((a != b).sum()) for a, b in zip(first, again, strict=True))
    return {"relative_error": max(errors), "differing_numbers": differing, "slots": packing.size}


def visible(packing: Packing) -> Tensor:
    """(S, S): a token sees its own sequence up to itself, and all of its prompt."""
    sees = torch.zeros(packing.size, packing.size, dtype=torch.bool)
    responses = packing.response_spans()
    for members, prompt in zip(packing.groups, packing.prompt_spans(), strict=True):
        for span in (prompt, *(responses[row] for row in members)):
            length = span.stop - span.start
            sees[span, span] = torch.ones(length, length, dtype=torch.bool).tril()
        for row in members:
            sees[responses[row], prompt] = True
    return sees


def dense(query: Tensor, key: Tensor, value: Tensor, sees: Tensor) -> Tensor:
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[2] ** 0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~sees, -torch.inf).softmax(-1), value)


def outputs_and_gradients(run: Any, inputs: list[Tensor]) -> list[Tensor]:
    *given, outer = inputs
    leaves = [leaf.clone().requires_grad_() for leaf in given]
    output = run(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, outer)]


def waits(settings: Settings, place: Place) -> Figures:
    """Micro-batches of a minibatch while waiting is an error; the gradient twice."""
    shape = SHAPES[settings["shape"]]
    policy = open_policy(
        write_shape(shape, place.folder), place.device, settings["tokens"], dtype=settings["dtype"], kernels="off"
    )
    size = settings["tokens"] // 16
    batch = random_batch(shape["vocab_size"], prompts=4, group=4, prompt=size, response=size, shared=True)
    denominators, objective, gradients = count_denominators(batch), grpo_objective(), []
    weights = [weight for _, weight in policy.trainable_parameters()]
    policy.accumulate(batch, objective, denominators)  # compiles, and fetches memory
    for _ in range(2):
        policy._drop()
        place.device.synchronize()
        with place.device.refusing_waits():
            policy.accumulate(batch, objective, denominators)
        gradients.append([weight.grad.clone() for weight in weights if weight.grad is not None])
    differing = sum(int((a != b).sum()) for a, b in zip(*gradients, strict=True))
    norm = float(torch.stack([gradient.float().norm() for gradient in gradients[0]]).norm())
    ways = ", ".join(f"{choice.path}: {choice.way}" for choice in policy.loaded.paths.choices)
    possible = ", ".join(ways_on(policy.model.device, policy.model.dtype))
    return {"differing_numbers": differing, "gradient_norm": norm, "chosen": ways, "possible_ways": possible}


def demo(settings: Settings, place: Place) -> Figures:
    """The same run file twice on the device, and once on the CPU."""
    demo = demo_folder(place.folder, settings["rows"])
    start = demonstrated(demo, settings["sft_steps"])
    first, again, on_cpu = (
        rl_rows(demo, start, place.folder / name, device, settings)
        for name, device in (("first", place.device.name), ("again", place.device.name), ("cpu", "cpu"))
    )
    differing = sum(numbers(a) != numbers(b) for a, b in zip(first, again, strict=True))
    return {
        "differing_numbers": differing,
        "logprob_diff_max": max(row["rollout/logprob_diff_max"] for row in first),
        "first_ratio_deviation": first[0].get("policy/first_ratio_deviation", 0.0),
        "reward_mean": first[0]["reward/mean"],
        "reward_mean_cpu": on_cpu[0]["reward/mean"],
        "loss": first[0]["policy/loss"],
        "loss_cpu": on_cpu[0]["policy/loss"],
    }


def numbers(row: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith(NOT_NUMBERS)}


def program(settings: Settings, place: Place) -> Figures:
    """A program of the repository, and the end of what it prints."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    command, environment = [sys.executable, *settings["words"]], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = re.sub(r"\s+", " ", (done.stdout + done.stderr)[-4000:])
    if done.returncode:
        raise RuntimeError(f"{' '.join(settings['words'])} failed: ...{said[-500:]}")
    return {"said": said[-400:]}
