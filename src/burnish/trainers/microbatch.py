"""Find how many tokens per micro-batch fit into a GPU's memory when a run starts (`tokens_per_microbatch: auto`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from burnish.config.schema_run import ConfigT, RunConfig
from burnish.errors import CheckpointError
from burnish.forward.batch import Batch
from burnish.forward.fast_paths import FastPaths
from burnish.forward.recomputing import recomputing
from burnish.forward.scoring import ResponseScorer
from burnish.models.loading import LoadedModel
from burnish.planning.microbatch import FEWEST, bytes_beside_passes, microbatch_of, usable_share
from burnish.trainers.placement import model_facts, reward_facts, this_machine

PATH, PLACE = "passes", "tokens_per_microbatch auto"
"""Names under which the run's folder keeps the number, as if it were a fast path."""
_TOKENS = " tokens at a time"


def settle_microbatch(config: ConfigT, paths: FastPaths, loaded: LoadedModel | None = None) -> ConfigT:
    """The run file with a number of tokens for `auto`: the one that the run began with, else the one planned for this
    machine and tried with the `loaded` model. Unchanged without a model, if this process will load one."""
    if config.optimization.tokens_per_microbatch != "auto" or (loaded is None and config.cluster.trains_here):
        return config
    found = paths.settled(PATH, PLACE, lambda: f"{_tokens(config, loaded):,}{_TOKENS}")
    digits = found.removesuffix(_TOKENS).replace(",", "")
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise CheckpointError(
            f"paths.json in the run's folder says {PATH!r} are of {found!r}, which is not a number of tokens",
            remedy="set optimization.tokens_per_microbatch to a number",
        )
    return config.changed("optimization", tokens_per_microbatch=int(digits))


def _tokens(config: RunConfig, loaded: LoadedModel | None) -> int:
    machine, facts, rewards = this_machine(), model_facts(config), reward_facts(config)
    planned = microbatch_of(config, facts, machine, rewards).tokens
    smaller = config.head == "score"  # passes without an output head
    if loaded is None or facts is None or loaded.model.device.type != "cuda" or smaller:
        return planned
    beside = bytes_beside_passes(config, facts, machine, rewards)
    free, total = torch.cuda.mem_get_info(loaded.model.device)
    room = round(min(free, usable_share(config) * total)) - beside
    return most_that_fit(planned, room, partial(bytes_of_pass, loaded, config.longest_text))


def most_that_fit(tokens: int, room: int, needed: Callable[[int], int]) -> int:
    """Halve the tokens until a trial does not run out of memory and needs at most `room` bytes; never below FEWEST."""
    while tokens > FEWEST:
        with suppress(torch.OutOfMemoryError):
            if needed(tokens) <= room:
                break
        tokens //= 2
    return tokens


def bytes_of_pass(loaded: LoadedModel, longest: int, tokens: int) -> int:
    """Measure the GPU's bytes for a forward and backward pass over this many tokens, without the resulting gradients,
    which are dropped."""
    model, device = loaded.model, loaded.model.device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        run_pass(loaded, longest, tokens)
        gradients = sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)
        return torch.cuda.max_memory_allocated(device) - before - gradients
    finally:
        model.zero_grad(set_to_none=True)


def run_pass(loaded: LoadedModel, longest: int, tokens: int) -> None:
    """Run a forward and backward pass over rows of the longest texts, which share no prompt, so that all tokens
    count."""
    scorer = ResponseScorer(loaded.model, plain=loaded.plain, vocabulary=loaded.vocabulary)
    width = min(longest, tokens)
    rows = max(1, tokens // width)
    first = [[row % 7 + 1] for row in range(rows)]
    batch = Batch.of_texts([(token, token * max(1, width - 1)) for token in first], pad_token_id=0)
    with recomputing(loaded.model, on=loaded.gradient_checkpointing):
        scores = scorer.score(batch.to(loaded.model.device), only_trained=True, entropy=True)
        scores.logprobs_BT.sum().backward()
