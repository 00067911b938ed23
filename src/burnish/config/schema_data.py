"""The model and data sections of a run file; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from burnish.config import names
from burnish.config.section import NamedPlace, PathText, PositiveInt, Section, as_list
from burnish.types import Quantization, UseKernels


class LoraConfig(Section):
    """Train low-rank adapters instead of all weights. The reference is then the base model with the adapter off."""

    rank: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Rank of each adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of each adapter: its output is multiplied by alpha / rank."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the layers to adapt, or `all-linear` for every linear layer except the head."""


class ModelConfig(Section):
    """The model to train, and how its weights are stored."""

    path: PathText
    """Local folder in the Hugging Face layout (safetensors), a hub name, or a run: `runs/sft` is its newest checkpoint,
    `runs/sft@500` the one from step 500, `runs/sft@best` and `runs/sft@best:eval/loss` the best one kept."""
    tokenizer: PathText | None = None
    """Folder, hub name or run that has the tokenizer, if it is not stored with the weights."""
    revision: str | None = None
    """Hub revision (branch, tag or commit)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights during training."""
    device: str = "auto"
    """`auto` (a CUDA GPU if there is one), `cpu`, `cuda`, `cuda:1` ..., `mps` (docs/gpu.md)."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more computation."""
    kernels: UseKernels = "auto"
    """C kernels for CPUs (docs/speed.md), built once with the machine's compiler. `auto` uses them if they can be built
    and are faster, `required` refuses to run without them, `off` never uses them."""
    router_aux_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the router's load-balancing loss in a mixture-of-experts model, added to the loss of `rl` and `sft`. 0
    leaves it out, even if the model's config sets a weight."""
    lora: LoraConfig | None = None
    """Low-rank adapters; `null` trains all weights."""
    quantization: Quantization | None = None
    """With `lora`: keep the frozen weights of linear layers in 8 bits (`int8`) or 4 (`nf4`), as QLoRA does. This saves
    memory, and the adapters learn on top of the rounded weights (docs/speed.md)."""
    chat_template: str | None = None
    """Jinja chat template (inline text or path to a file) that replaces the tokenizer's; or `keep_thinking`, the
    tokenizer's template changed to keep the thinking of earlier turns."""
    pad_token: str | None = None
    """Padding token for a tokenizer without one. It must not be a token that ends a response."""
    from_scratch: bool = False
    """Ignore the weights in the folder and initialise a model from its `config.json` at random."""


class DataSource(Section):
    """One data set."""

    path: PathText
    """File (.jsonl, .json, .csv, .parquet, .txt, also with .gz), folder of a saved data set, or hub name. Omit it with
    `reasoning_gym`."""
    reasoning_gym: dict[str, dict[str, Any]] | None = None
    """Tasks of the package reasoning-gym that generate rows in place of a file (docs/data.md), each with its parameters
    and a `weight`: `{chain_sum: {max_terms: 3}, gcd: {weight: 2}}`."""
    size: PositiveInt = 1_000
    """Rows to generate with `reasoning_gym`, over all its tasks."""
    seed: Annotated[int, Field(ge=0, lt=names.PUZZLE_SEEDS)] = 0
    """Seed of the rows that `reasoning_gym` generates. Different seeds never share random numbers, and training and
    evaluation need different seeds."""
    split: str = "train"
    """Split of a hub or saved data set."""
    subset: str | None = None
    """Configuration name of a hub data set, or the folder in a local one that holds it."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column for each role. Roles: prompt, messages, input, system, history, completion, text, answer, domain, id,
    tools; for supervised examples and comparisons also weight; for comparisons also chosen, rejected, responses, best,
    margin, tie, label. Roles not given are recognised from the column names. Dots reach into nested values
    (`reward_model.ground_truth`)."""
    schema_name: Literal[
        "auto",
        "prompt",
        "prompt_completion",
        "chat",
        "text",
        "verl",
        "roll",
        "preference",
        "candidates",
        "rated",
        "token_labels",
    ] = "auto"
    """Layout of the rows. `auto` recognises it and prints the result."""
    prompt_template: str | None = None
    """Template for the prompt, with column names in braces: `"Question: {question}\\nAnswer:"`."""
    system_prompt: str | None = None
    """System message added to every conversation without one (turns text prompts into conversations)."""
    domain: str | None = None
    """Domain of all rows, for logging by domain. Default: the domain column, else the file name."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of this source among several. After any number of draws, each source is within one draw of its share."""
    limit: PositiveInt | None = None
    """Use only this many rows, from the start."""
    max_bytes: PositiveInt = 1_000_000_000
    """Refuse a file with more bytes than this, counted after decompression. Files are read into memory completely, and
    a few compressed kilobytes can expand to more than fits."""
    document_separator: str | None = None
    """Text files: regular expression that separates documents (`"\\n\\n(?=Once upon a time)"`). Default:
    `<|endoftext|>` if the file contains it, else two blank lines, else one blank line, else the end of each line."""


def source_shorthand(value: object) -> object:
    """A path in full, and the name that stands where generated rows have no path."""
    if isinstance(value, str):
        return {"path": value}
    if isinstance(value, dict) and value.get("reasoning_gym") is not None:
        return {"path": names.PUZZLES, **value}
    return value


Source = Annotated[DataSource, BeforeValidator(source_shorthand)]
Sources = Annotated[tuple[Source, ...], BeforeValidator(as_list)]


class QueryConfig(Section):
    """The part of a document that becomes a prompt."""

    start_text: str | None = None
    """The query begins after the first occurrence of this text (white space is skipped). `null`: at the start of the
    document."""
    end_text: Annotated[str, Field(min_length=1)]
    """The query ends with the last occurrence of this text that fits in `rollout.max_prompt_tokens`."""


class DataConfig(Section):
    """Training and evaluation data."""

    train: Sources = ()
    """Training data: a path, a source, or a list of them."""
    eval: Sources = ()
    """Held-out data: a path, a source, or a list of them."""
    over_long: Literal["drop", "truncate", "error"] = "drop"
    """Handling of prompts longer than `max_prompt_tokens` (truncation keeps the end). Their number is always
    printed."""
    query: QueryConfig | None = None
    """Cut a prompt from each document (layout `text`): it begins after `start_text` and ends at `end_text` (2019 style:
    both `.`, https://arxiv.org/abs/1909.08593). Documents without such a part are left out and counted. Rows of other
    layouts are already prompts and stay unchanged. `null`: use entire documents."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Apply the chat template to messages only (`auto`), to plain prompts as well (`always`), or not at all
    (`never`)."""
    template_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as `{enable_thinking: false}`. Arguments that the template does not read are
    refused."""
    shuffle: bool = True
    """Shuffle the data anew in each pass. The order depends only on the seed and the pass."""


def places_of_sources(sources: Mapping[str, DataSource]) -> Iterator[NamedPlace]:
    """The files and folders of data sources; none for rows that are made (their settings are in the run file)."""
    named = ((field, source.path) for field, source in sources.items() if source.reasoning_gym is None)
    return (NamedPlace(field, path, "data") for field, path in named)
