"""Which fast paths a run of a model would take here: the model is loaded and its ways are tried as a run does it.

What is timed is kept for that run (`burnish.forward.verdicts`), and what is known from before is not timed again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from burnish.config.schema import RlConfig, RmConfig
from burnish.config.schema_data import ModelConfig
from burnish.doctor.facts import Chosen, Paths
from burnish.doctor.privacy import hidden
from burnish.errors import BurnishError
from burnish.forward.attention import packing_way
from burnish.forward.fast_paths import Choice, FastPaths, failure, in_words
from burnish.forward.float32 import fast_float32
from burnish.forward.kernel_layers import uses_layer_kernels
from burnish.models.characters import character_tokenizer, tiny_llama
from burnish.models.loading import Head, LoadedModel, load_model, resolve_device
from burnish.models.loading_bars import without_loading_bars
from burnish.planning.memory import Trained, bytes_in_words
from burnish.planning.model_facts import read_model_facts
from burnish.rollouts.local.engine import LocalEngine
from burnish.trainers.chaining import pinned
from burnish.trainers.path_record import recorded_ways
from burnish.trainers.placement import this_machine, threads_of

_MOST_BYTES = 4 << 30
"""Weights of a larger model are not loaded for a report."""
_SHARE = 0.4
"""Nor are those that take a larger part of the memory: loading and trying needs about twice their size."""
_PLACES = 32
_VOCABULARY = 2048
_FIRST_LETTER = 0x4E00
"""Of a long row of letters, one for each token of the small model."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about: a model as a run would have it. name: for the report. reach: longest text of the run, None
    for the model's. samples: whether the local engine samples from it. begun: ways that the run began with. threads: of
    the run, None for those of this process."""

    name: str
    model: ModelConfig
    seed: int = 0
    plain: bool = False
    head: Head = "language"
    reach: int | None = None
    samples: bool = True
    begun: tuple[tuple[str, str], ...] = ()
    threads: int | None = None

    @staticmethod
    def of_folder(folder: Path) -> Question:
        """About the model in a folder, with the defaults of a run file."""
        return Question(folder.absolute().name, ModelConfig(path=str(folder)))

    @staticmethod
    def of_run(config: Trained) -> Question:
        """About the policy (or reward model) of a run file. Raises CheckpointError if its model is a run without one,
        or for a broken record of the ways that it began with."""
        named = Path(config.model.path).name  # before it becomes a folder of weights inside of another run
        config, _ = pinned(config)
        rl = config if isinstance(config, RlConfig) else None
        return Question(
            name=named,
            model=config.model,
            seed=config.seed,
            plain=config.debug.plain,
            head="score" if isinstance(config, RmConfig) else "language",
            reach=None if rl is None else rl.rollout.max_prompt_tokens + rl.rollout.max_response_tokens,
            samples=rl is not None and rl.rollout.engine == "local",
            begun=tuple(recorded_ways(Path(config.output)).items()),
            threads=threads_of(config),
        )


def asked_about(about: Trained | Path | None) -> Question | None:
    """The question about a run or a model folder; None stays None. Raises as `Question.of_run` does."""
    if about is None:
        return None
    return Question.of_folder(about) if isinstance(about, Path) else Question.of_run(about)


def find_paths(question: Question | None) -> Paths:
    """The ways of the model, or of a small Llama with random weights. Whatever keeps the model from being loaded is the
    answer, `not_tried`."""
    with without_loading_bars():
        if question is not None:
            return _answer(question)
        with _small_model() as small:
            return _answer(small)


def too_large(model: ModelConfig) -> str | None:
    """Why this model is not loaded for a report; None if it may be."""
    folder = Path(model.path).expanduser()
    if not folder.is_dir():
        return "it is not a folder of this machine, and a report downloads nothing; the start of a run says it"
    facts = read_model_facts(folder)
    if facts is None:
        return None  # loading it says what is wrong
    size = facts.num_parameters * (2 if model.dtype == "bfloat16" else 4)
    most = min(_MOST_BYTES, _SHARE * this_machine().memory_bytes)
    if size <= most:
        return None
    return (
        f"its weights take {bytes_in_words(size)}, more than the {bytes_in_words(most)} that a report loads; the "
        "start of a run says it"
    )


def _answer(question: Question) -> Paths:
    reason = too_large(question.model)
    if reason is not None:
        return Paths(f"{question.name} ({question.model.dtype})", not_tried=reason)
    before = torch.get_num_threads()
    torch.set_num_threads(question.threads or before)
    try:
        return _tried(question)
    except BurnishError as error:
        return _failed(question, str(error))
    except Exception as error:  # noqa: BLE001 boundary: what a trial raises on this machine belongs into the report
        return _failed(question, failure(error))
    finally:
        torch.set_num_threads(before)


def _failed(question: Question, said: str) -> Paths:
    return Paths(f"{question.name} ({question.model.dtype})", not_tried=hidden(said), failed=True)


def _tried(question: Question) -> Paths:
    """In the order of a run, `burnish.trainers.rl.opening`."""
    paths = FastPaths(dict(question.begun))
    loaded = load_model(question.model, seed=question.seed, head=question.head, plain=question.plain, paths=paths)
    notes = list(loaded.notes)
    with fast_float32(loaded.model, plain=question.plain, paths=paths) as fast:
        if question.samples:
            notes += _engine(question, loaded, paths).notes
    if question.model.lora is not None:
        notes.append("adapters (model.lora) are not part of this trial")
    return Paths(
        model=f"{question.name} ({_sizes(loaded)}, {question.model.dtype}, {resolve_device(question.model.device)})",
        choices=tuple(_chosen(choice) for choice in paths.choices),
        float32="medium" if fast else "highest",
        attention=_attention(loaded),
        decoder=None if not question.samples else paths.way("decoding") or "the model's own pass",
        notes=tuple(hidden(note) for note in (*notes, *paths.notes)),
    )


def _engine(question: Question, loaded: LoadedModel, paths: FastPaths) -> LocalEngine:
    return LocalEngine(
        loaded.model,
        tokenizer=loaded.tokenizer,
        eos_token_ids=loaded.eos_token_ids,
        pad_token_id=loaded.pad_token_id,
        context_length=min(loaded.context_length, question.reach or loaded.context_length),
        max_batch_rows=_PLACES,
        plain=loaded.plain,
        kernels=loaded.kernels,
        paths=paths,
    )


def _attention(loaded: LoadedModel) -> str | None:
    """How attention is computed over packed rows; None where rows are padded."""
    if uses_layer_kernels(loaded.model):
        return "C kernels"
    return packing_way(loaded.model.config)


def _chosen(choice: Choice) -> Chosen:
    seconds = {} if choice.outcome is None else dict(choice.outcome.seconds)
    return Chosen(choice.path, choice.way, in_words(choice), choice.timed, seconds)


def _sizes(loaded: LoadedModel) -> str:
    settings = loaded.model.config.get_text_config().to_dict()
    parameters = sum(weight.numel() for weight in loaded.model.parameters())
    layers, width = settings.get("num_hidden_layers"), settings.get("hidden_size")
    return f"{loaded.model.config.model_type}, {layers} layers of width {width}, {parameters / 1e6:.3g} M parameters"


@contextmanager
def _small_model() -> Iterator[Question]:
    """A Llama large enough that its fast paths differ in time, in a temporary folder."""
    letters = [chr(_FIRST_LETTER + number) for number in range(_VOCABULARY - 2)]
    tokenizer = character_tokenizer(letters, eos="$", pad="_")
    model = tiny_llama(
        vocab_size=_VOCABULARY,
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
        yield Question("a small Llama", ModelConfig(path=folder))
