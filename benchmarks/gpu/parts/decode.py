"""Sampling with the local engine: tokens per second and share of the memory's bandwidth, by rows."""

from __future__ import annotations

import dataclasses

from rows import Figures, Place, Row, Settings, Target
from shapes import FIRST_WORD, SHAPES, facts, key_bytes, load_shape, trunk_weights, write_shape

from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.types import RolloutRequest

BANDWIDTH = (Target("bandwidth_share", at_least=0.3, published="open-instruct: 51.5 % with vLLM, A6000 (#957)"),)
BFLOAT16 = 2
GROUP = 8


def rows(toy: bool) -> list[Row]:
    if toy:
        return [decode_row("toy", 8, tokens=4, prompt=8), decode_row("toy", 4, tokens=4, prompt=8, plain=True)]
    found = [decode_row(shape, 64, BANDWIDTH) for shape in ("0.5b", "1.7b", "7b")]
    found += [decode_row("1.7b", count) for count in (1, 8, 256, 512)]
    found += [decode_row("1.7b", 64, plain=True)]
    return found + [decode_row(shape, count) for shape in ("7b", "0.5b") for count in (1, 8, 256, 512)]


def decode_row(
    shape: str,
    count: int,
    targets: tuple[Target, ...] = (),
    *,
    tokens: int = 128,
    prompt: int = 256,
    plain: bool = False,
) -> Row:
    settings = {"shape": shape, "rows": count, "tokens": tokens, "prompt": prompt, "plain": plain}
    name = f"{shape}, {count} rows{', plain' if plain else ''}"
    return Row("decode", name, settings, 90, targets)


def measure(settings: Settings, place: Place) -> Figures:
    """All rows decode to the end. The second call counts: the first may compile, capture and fetch memory."""
    shape, count, tokens, prompt = (settings[name] for name in ("shape", "rows", "tokens", "prompt"))
    loaded = load_shape(write_shape(SHAPES[shape], place.folder), place.device.name)
    loaded = dataclasses.replace(loaded, plain=settings["plain"])  # it then decodes with the model's own pass
    engine = LocalEngine.of(loaded, max_batch_rows=count, context_length=prompt + tokens)
    requests = requests_of(count, prompt, SHAPES[shape]["vocab_size"])
    for step in (1, 2):
        engine.take_metrics()
        place.device.reset_peak()
        seconds = place.device.seconds(
            lambda step=step: engine.generate(requests, Sampling(tokens, ignore_eos=True), seed=0, step=step)
        )
    spent = {name: metric.result() for name, metric in engine.take_metrics().items()}
    decode_seconds, peaks = spent["time/decode_seconds"], place.device.peaks()
    read = tokens * bytes_of_step(shape, count, prompt + tokens // 2)
    return {
        "bandwidth_share": None if peaks is None else read / decode_seconds / peaks[1],
        "tokens_per_second": count * tokens / decode_seconds,
        "with_prompts_per_second": count * tokens / seconds,
        "step_milliseconds": 1000 * decode_seconds / tokens,
        "prefill_seconds": spent["time/prefill_seconds"],
        "allocated_bytes": place.device.allocated_peak(),
        "decoder": loaded.paths.way("decoding") or "the only one",
    }


def requests_of(count: int, prompt: int, vocabulary: int) -> list[RolloutRequest]:
    """Groups of eight on a prompt, as in training; a single row is a group of one."""
    group = min(GROUP, count)
    words = range(FIRST_WORD, vocabulary)
    return [
        RolloutRequest.of(
            f"p/{n}", n, tuple(words[(31 * n + 7 * i) % len(words)] for i in range(prompt)), tuple(range(group))
        )
        for n in range(count // group)
    ]


def bytes_of_step(shape: str, count: int, context: int) -> int:
    """What a step has to read at least: each weight once, and the keys and values of every row."""
    sizes = facts(SHAPES[shape])
    weights = trunk_weights(sizes) + sizes.vocabulary_size * sizes.hidden_size
    return BFLOAT16 * weights + count * context * key_bytes(sizes, BFLOAT16)
