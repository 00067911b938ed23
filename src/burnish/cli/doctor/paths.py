"""The fast paths that a run of a model takes here: the model is loaded and its paths are tried as in a run.

Timings are kept for that run (`burnish.forward.verdicts`), and known ones are not repeated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import cast

from rich.console import Console

from burnish.cli.doctor.examination import Finding, MachineProblem, hidden
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig, RunConfig
from burnish.errors import BurnishError
from burnish.forward.attention import packing_way
from burnish.forward.fast_paths import FastPaths, failure, in_words
from burnish.forward.kernel_layers import uses_layer_kernels
from burnish.forward.matmul_choice import fast_float32
from burnish.machine.matmul_precision import num_threads
from burnish.models.characters import character_tokenizer, tiny_llama
from burnish.models.loading import Head, load_model
from burnish.models.loading_bars import without_loading_bars
from burnish.planning.memory import bytes_in_words
from burnish.planning.model_facts import read_model_facts
from burnish.rollouts.engine import notes_of
from burnish.trainers.chaining import pinned
from burnish.trainers.placement import host_memory, threads_of
from burnish.trainers.rl.setup.opened_models import open_rl_engine
from burnish.trainers.run_folder import recorded_paths
from burnish.types import Json

_MOST_BYTES, _SHARE = 4 << 30, 0.4
"""Weights of larger models, or of a larger part of the memory, are not loaded for a report: trying needs about twice
their size."""


def of_paths(about: RunConfig | Path | None) -> Iterator[Finding]:
    """Try the fast paths of `about`: a run or a model's folder, None for a small model. Raises CheckpointError for a
    run file whose model is a run without a checkpoint, or whose record of paths is broken."""
    with without_loading_bars(), _small_llama() if about is None else nullcontext(about) as asked:
        config = _run_of(asked) if isinstance(asked, Path) else asked
        name = f"{Path(config.model.path).absolute().name} ({config.model.dtype})"
        yield "model", "a small Llama with random weights" if about is None else name
        config, _ = pinned(config)
        reason = too_large(config)
        if reason is not None:
            yield "not tried", reason
            return
        paths = recorded_paths(Path(config.output))
        with num_threads(threads_of(config)):
            try:
                yield from list(_tried(config, paths))
            except Exception as error:  # noqa: BLE001 boundary: what a trial raises here belongs into the report
                said = hidden(str(error) if isinstance(error, BurnishError) else failure(error))
                remedy = "fix what it names; burnish plan FILE checks the rest of a run file"
                yield MachineProblem("model", "problem", f"{name} cannot be tried: {said}", remedy)


def too_large(config: RunConfig) -> str | None:
    """Why the model is not loaded for a report; None if it may be."""
    folder = Path(config.model.path).expanduser()
    if not folder.is_dir():
        return "it is not a folder of this machine, and a report downloads nothing; the start of a run says it"
    facts = read_model_facts(folder)
    size = 0 if facts is None else facts.num_parameters * (2 if config.model.dtype == "bfloat16" else 4)
    most = min(_MOST_BYTES, _SHARE * host_memory())
    if size <= most:
        return None
    weights, limit = bytes_in_words(size), bytes_in_words(most)
    return f"its weights take {weights}, more than the {limit} that a report loads; the start of a run says it"


def _tried(config: RunConfig, paths: FastPaths) -> Iterator[Finding]:
    """Try the paths in the order of a run, as `burnish.trainers.rl.setup.opened_models` does."""
    plain = config.debug.plain
    head: Head = config.head
    loaded = load_model(config.model, seed=config.seed, head=head, plain=plain, paths=paths)
    notes = list(loaded.notes)
    with fast_float32(loaded.model, plain=plain, paths=paths) as fast:
        yield "float32 products", "medium" if fast else "highest"
        if config.engine.traits.tries_paths:
            yield "decoding", "the model's own pass"
            with open_rl_engine(cast("RlConfig", config), loaded, Console(quiet=True)) as engine:
                notes += notes_of(engine)
    for choice in paths.choices:
        timed = f", timed {choice.timed}" if choice.timed else ""
        yield choice.path, in_words(choice).removeprefix(f"{choice.path} by ") + timed
    way = "C kernels" if uses_layer_kernels(loaded.model) else packing_way(loaded.model.config)
    padded = "padded: packed ones were off (debug.plain, a reward model), or changed this model's numbers"
    yield "training rows", f"packed, attention by {way}" if way else padded
    if config.model.lora is not None:
        notes.append("adapters (model.lora) are not part of this trial")
    yield from ((f"note {number}", hidden(note)) for number, note in enumerate((*notes, *paths.notes), 1))


def _run_of(folder: Path) -> RlConfig:
    """A run of the model in a folder, with the defaults of a run file."""
    data: dict[str, Json] = {"data": {"train": "none.jsonl"}, "rewards": "exact", "steps": 1}
    return cast("RlConfig", load_run_data({**data, "model": {"path": str(folder)}, "output": str(folder)}).config)


@contextmanager
def _small_llama() -> Iterator[Path]:
    """A folder with a model large enough that its fast paths differ in time."""
    letters = [chr(0x4E00 + number) for number in range(2046)]
    tokenizer = character_tokenizer(letters, eos="$", pad="_")
    model = tiny_llama(
        vocab_size=len(letters) + 2,
        hidden_size=512,
        num_heads=8,
        intermediate_size=1408,
        context_length=512,
        eos_token_id=tokenizer.convert_tokens_to_ids("$"),
        pad_token_id=tokenizer.convert_tokens_to_ids("_"),
    )
    with tempfile.TemporaryDirectory(prefix="burnish-doctor-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield Path(folder)
