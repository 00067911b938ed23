"""Peak memory of log-probabilities, forward and backward: vocabulary chunks against full logits.

    python benchmarks/logprob_memory.py                    both ways, 4,096 tokens, hidden 896, vocabulary 151,936
    python benchmarks/logprob_memory.py --way chunked      one way, in this process
    python benchmarks/logprob_memory.py --microbatches 2   a second micro-batch on top of the first one's gradient

Each way runs in a process of its own. What is reported is the highest resident memory minus what was resident once
weights and hidden states were there: logits, every intermediate and all gradients, the head's own included.
`--limit-gb` makes the script fail when the chunked way needs more.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor

from burnish.forward.logprobs import chunked_token_scores, plain_token_scores

WAYS = ("chunked", "full")
GB = 1e9


def scores(way: str, hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, *, entropy: bool) -> Tensor:
    """Sum of log-probabilities (and entropies) to differentiate."""
    if way == "chunked":
        logprobs_N, entropy_N = chunked_token_scores(
            hidden_NH, weight_VH, None, targets_N, entropy=entropy, accumulate_in_place=True
        )
    elif entropy:
        logprobs_N, entropy_N = plain_token_scores(hidden_NH @ weight_VH.T, targets_N, entropy=True)
    else:
        return -torch.nn.functional.cross_entropy(hidden_NH @ weight_VH.T, targets_N, reduction="sum")
    return logprobs_N.sum() if entropy_N is None else logprobs_N.sum() + entropy_N.sum()


def resident_bytes() -> int:
    """Resident memory now (Linux)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(0)
    dtype = getattr(torch, arguments.dtype)
    weight_VH = torch.empty(arguments.vocabulary, arguments.hidden, dtype=dtype).normal_(std=0.02).requires_grad_()
    hidden_NH = torch.randn(arguments.tokens, arguments.hidden, dtype=dtype).requires_grad_()
    targets_N = torch.randint(0, arguments.vocabulary, (arguments.tokens,))
    warm = torch.randn(8, 8, requires_grad=True)
    scores(arguments.way, warm, warm, torch.zeros(8, dtype=torch.int64), entropy=arguments.entropy).backward()
    before = resident_bytes()
    start = time.perf_counter()
    for _ in range(arguments.microbatches):
        scores(arguments.way, hidden_NH, weight_VH, targets_N, entropy=arguments.entropy).backward()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "above_weights_gb": (peak - before) / GB,
        "weights_gb": weight_VH.numel() * weight_VH.element_size() / GB,
        "seconds": seconds,
        "grad_norm": float(weight_VH.grad.float().norm()),
    }


def in_own_process(way: str) -> dict[str, float]:
    command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise SystemExit(f"{way} failed with exit code {finished.returncode}:\n{finished.stderr[-2000:]}")
    return json.loads(finished.stdout)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--entropy", action="store_true")
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--limit-gb", type=float)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    if arguments.way:
        print(json.dumps(measure(arguments)))
        return
    found = {way: in_own_process(way) for way in WAYS}
    print(f"{arguments.tokens:,} tokens, hidden {arguments.hidden}, vocabulary {arguments.vocabulary:,}")
    for way, numbers in found.items():
        print(f"{way:8s} {numbers['above_weights_gb']:6.2f} GB above weights  {numbers['seconds']:6.1f} s")
    if arguments.limit_gb is not None and found["chunked"]["above_weights_gb"] > arguments.limit_gb:
        raise SystemExit(f"chunked needs more than {arguments.limit_gb} GB")


if __name__ == "__main__":
    main()
