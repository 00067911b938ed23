"""Response tokens per second of the local engine against `model.generate`, in one process, medians over repeats.

    python benchmarks/rollouts.py                     # a 1 M-parameter Llama, end of sequence drawn at random
    python benchmarks/rollouts.py --size larger       # 25 M parameters
    python benchmarks/rollouts.py --equal-lengths     # no row ever stops early, nothing to gain from leaving rows

Both sides sample the same prompts with the same temperature; `generate` gets each prompt once per sample, left-padded,
in batches of the same number of rows, which is how it is used for this purpose.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.types import RolloutRequest

PAD, VOCABULARY = 0, 512
SIZES = {"tiny": (128, 4, 4), "larger": (512, 8, 8)}  # hidden size, layers, heads


class NoText:
    """Decoding text is not what is measured."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return ""


def build_model(size: str) -> Any:
    hidden, layers, heads = SIZES[size]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config).eval()


def build_requests(prompts: int, group_size: int) -> list[RolloutRequest]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(16, 97, (prompts,), generator=generator).tolist()
    tokens = [tuple(torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()) for length in lengths]
    return [RolloutRequest.of(f"p{i}", i, prompt, tuple(range(group_size))) for i, prompt in enumerate(tokens)]


def engine_tokens(model: Any, requests: list[RolloutRequest], args: argparse.Namespace, step: int) -> int:
    engine = LocalEngine(
        model,
        tokenizer=NoText(),
        eos_token_ids=args.stop_ids,
        pad_token_id=PAD,
        context_length=2048,
        max_batch_rows=args.max_batch_rows,
    )
    rollouts = engine.generate(requests, Sampling(args.max_response_tokens), seed=0, step=step)
    return sum(len(rollout.response_tokens) for rollout in rollouts)


def generate_tokens(model: Any, requests: list[RolloutRequest], args: argparse.Namespace, step: int) -> int:
    torch.manual_seed(step)
    rows = [request.prompt_tokens for request in requests for _ in request.sample_indices]
    device = next(model.parameters()).device
    count = 0
    for first in range(0, len(rows), args.max_batch_rows):
        part = rows[first : first + args.max_batch_rows]
        width = max(len(row) for row in part)
        tokens = torch.tensor([[PAD] * (width - len(row)) + list(row) for row in part], device=device)
        output = model.generate(
            tokens,
            attention_mask=(tokens != PAD).long(),
            do_sample=True,
            top_k=0,
            max_new_tokens=args.max_response_tokens,
            eos_token_id=args.stop_ids or None,
            pad_token_id=PAD,
        )
        responses = output[:, width:]
        count += responses.numel() if args.equal_lengths else int((responses != PAD).sum())
    return count


def tokens_per_second(run: Callable[[int], int], step: int) -> float:
    started = time.perf_counter()
    tokens = run(step)
    return tokens / (time.perf_counter() - started)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-response-tokens", type=int, default=128)
    parser.add_argument("--max-batch-rows", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--equal-lengths", action="store_true")
    args = parser.parse_args()
    # Of 512 nearly equally likely ids, 8 end a response: geometric lengths with a mean of about 55 of at most 128.
    args.stop_ids = [] if args.equal_lengths else list(range(1, 9))
    return args


def main() -> None:
    args = parse()
    model = build_model(args.size).to(args.device)
    requests = build_requests(args.prompts, args.group_size)
    engine, generate = [], []
    with torch.no_grad():
        engine_tokens(model, requests[:1], args, 0)
        generate_tokens(model, requests[:1], args, 0)
        for step in range(args.repeats):  # taken in turns, so that a slow spell of the machine hits both
            engine.append(tokens_per_second(lambda s: engine_tokens(model, requests, args, s), step))
            generate.append(tokens_per_second(lambda s: generate_tokens(model, requests, args, s), step))
    medians = statistics.median(engine), statistics.median(generate)
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "engine_tokens_per_second": round(medians[0]),
        "generate_tokens_per_second": round(medians[1]),
        "ratio_of_medians": round(medians[0] / medians[1], 2),
        "settings": {key: value for key, value in vars(args).items() if key != "stop_ids"},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
