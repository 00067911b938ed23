"""Model and data of a run file as types; see `burnish.config.schema`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from burnish.config.section import PathText, PositiveInt, Section, as_list, path_shorthand
from burnish.types import UseKernels


class LoraConfig(Section):
    """Train low-rank adapters instead of all weights; the reference is then the base with the adapter off."""

    rank: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Rank of each adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of the adapter; its output is multiplied by alpha / rank."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the layers to adapt, or `all-linear` for every linear layer but the head."""


class ModelConfig(Section):
    """Which model is trained, and how its weights are held."""

    path: PathText
    """Local folder in the Hugging Face layout (safetensors), a hub name, or a run: `runs/sft` is its newest checkpoint,
    `runs/sft@500` that of step 500, `runs/sft@best` and `runs/sft@best:eval/loss` the best one that it has kept."""
    tokenizer: PathText | None = None
    """Folder, hub name or run of the tokenizer, when it is not in the same place as the weights."""
    revision: str | None = None
    """Hub revision (branch, tag or commit)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the weights while training."""
    device: str = "auto"
    """`auto` (a GPU when there is one), `cpu`, `cuda`, `cuda:1` ..."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you ask."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more arithmetic."""
    kernels: UseKernels = "auto"
    """Kernels in C for CPUs (docs/speed.md), built once with the machine's compiler. `auto` uses them where they can be
    built and are faster, `required` refuses to run without them, `off` never uses them."""
    router_aux_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the load-balancing loss of a mixture model's router, added to the loss of `rl` and `sft`; 0 leaves it
    out, whatever the model's own config says."""
    lora: LoraConfig | None = None
    """Low-rank adapters; none trains all weights."""
    chat_template: str | None = None
    """Jinja chat template (inline text or a path to a file) that replaces the tokenizer's."""
    pad_token: str | None = None
    """Token to pad with, for a tokenizer that has none (it must not end a response)."""
    from_scratch: bool = False
    """Ignore the weights in the folder and start from a random initialisation of its `config.json`."""


class DataSource(Section):
    """One data set."""

    path: PathText
    """File (.jsonl, .json, .csv, .parquet, .txt; .gz too), folder of a saved data set, or hub name."""
    split: str = "train"
    """Split of a hub or saved data set."""
    subset: str | None = None
    """Configuration name of a hub data set."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Role to column name, roles: prompt, messages, completion, text, answer, domain, id, tools; of comparisons chosen,
    rejected, responses, best, margin, tie.
    What is not named is recognised from the columns; dots reach into nested values (`reward_model.ground_truth`)."""
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
        "token_labels",
    ] = "auto"
    """Layout of the rows; `auto` recognises it and prints what it understood."""
    prompt_template: str | None = None
    """Text around the prompt, with column names in braces: `"Question: {question}\\nAnswer:"`."""
    system_prompt: str | None = None
    """System message put before every conversation that has none (turns text prompts into conversations)."""
    domain: str | None = None
    """Domain of all rows, for logging by domain; default: the domain column, else the name of the file."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of this source among several; after any number of draws each source is within one of its share."""
    limit: PositiveInt | None = None
    """Use only the first so many rows."""
    max_bytes: PositiveInt = 1_000_000_000
    """Refuse a file that holds more bytes than this, counted after a .gz is unpacked: files are read whole, and a few
    packed kilobytes can stand for more than the memory has."""
    document_separator: str | None = None
    """Text files: regular expression between two documents (`"\\n\\n(?=Once upon a time)"`); default: `<|endoftext|>`
    where the file has it, else two blank lines, else one blank line, else the end of each line."""


Source = Annotated[DataSource, BeforeValidator(path_shorthand)]
Sources = Annotated[tuple[Source, ...], BeforeValidator(as_list)]


class QueryConfig(Section):
    """The part of a document that becomes a prompt."""

    start_text: str | None = None
    """The query begins after the first such text (white space left out); none begins with the document."""
    end_text: Annotated[str, Field(min_length=1)]
    """The query ends with the last such text that still fits into `rollout.max_prompt_tokens`."""


class DataConfig(Section):
    """What is trained and evaluated on."""

    train: Sources = ()
    """Training data: a path, a source, or a list of them."""
    eval: Sources = ()
    """Held-out data: a path, a source, or a list of them."""
    over_long: Literal["drop", "truncate", "error"] = "drop"
    """What to do with prompts above `max_prompt_tokens` (truncation keeps the end); always counted and printed."""
    query: QueryConfig | None = None
    """Documents (layout `text`) as prompts: cut a query from each, one that begins after `start_text` and ends at
    `end_text` (2019 style: both `.`, https://arxiv.org/abs/1909.08593). Documents without one are left out and counted;
    rows of other layouts are prompts already and stay as they are. None takes whole documents."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Apply the chat template: to messages only (`auto`), to plain prompts as well (`always`), or never."""
    template_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as `{enable_thinking: false}`; one that it does not read is refused."""
    shuffle: bool = True
    """A fresh order each pass over the data, a pure function of the seed."""
