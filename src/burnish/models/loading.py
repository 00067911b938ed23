"""Load any `transformers` causal language model from a folder or the hub: safetensors, no foreign code, no dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn

from burnish.config.schema_data import ModelConfig
from burnish.errors import KernelError, ModelError
from burnish.forward.attention import packs_rows
from burnish.forward.fast_paths import FastPaths
from burnish.forward.kernel_layers import has_known_layers, uses_layer_kernels
from burnish.forward.matmul_choice import bfloat16_note
from burnish.forward.probe import (
    compile_faster_layers,
    keep_faster_layers,
    keep_own_layers,
    use_layer_kernels,
    use_packed_rows,
)
from burnish.forward.quantized_layers import quantize, restore
from burnish.forward.recomputing import allow_recomputing
from burnish.forward.router_loss import RouterLoss
from burnish.kernels.decoding import decode_kernels
from burnish.kernels.products import product_kernels
from burnish.machine.memory import use_large_pages
from burnish.machine.resources import resolve_device
from burnish.models.folders import (
    check_model_folder,
    check_number_types,
    nearest_folder_hint,
    resolve_source,
    weight_bytes,
)
from burnish.models.tokenizers import check_vocabulary, choose_pad_token_id, eos_token_ids, load_tokenizer
from burnish.models.weight_checks import (
    check_declared_sizes,
    check_finite,
    check_quantization,
    check_token_ids,
    read_generation_config,
    refuse_mismatched,
)
from burnish.outside.reading import reading
from burnish.types import PreTrainedModel, Tokenizer, UseKernels

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
UNLIMITED_CONTEXT = 1 << 30
Head = Literal["language", "score"]
Built = TypeVar("Built")
NEW_HEAD = "the score head is new"
_CACHE_LINE = 64
"""Bytes. Memory that PyTorch allocates starts at multiples of it."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for training or sampling, and what loading found out about it.

    eos_token_ids: ids that end a response. pad_token_id: fills rows and never ends a response.
    context_length: tokens of prompt and response together. notes: sentences for the user about choices made here.
    gradient_checkpointing: whether the backward pass recomputes activations.
    plain: scores and gradients use only PyTorch's own operations, on padded rows and full logits.
    kernels: whether C kernels may be used. paths: the implementations chosen among equivalent ones.
    router_aux_coef: weight of the router's load-balancing loss in an update of the policy.
    vocabulary: ids from this number on are rows of the head without a token (padding, for which no tokenizer has a
    text): they are never sampled and have no part in probabilities. None if every row has a token.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    context_length: int
    notes: tuple[str, ...] = ()
    gradient_checkpointing: bool = False
    plain: bool = False
    kernels: UseKernels = "auto"
    paths: FastPaths = field(default_factory=FastPaths)
    router_aux_coef: float = 0.0
    vocabulary: int | None = None


def load_model(
    config: ModelConfig,
    *,
    seed: int = 0,
    head: Head = "language",
    plain: bool = False,
    paths: FastPaths | None = None,
    takes_weights: bool = False,
) -> LoadedModel:
    """Load model and tokenizer as the run file asks. `seed` determines the weights of `from_scratch`.

    head: `score` loads the same folder as a sequence classifier with one label. If the files have no score head, it is
    left as transformers initialises it, and `notes` contains NEW_HEAD. `plain` leaves attention unchanged, so rows are
    never packed. `paths` chooses among equivalent implementations and remembers the choices. `takes_weights`: other
    weights will be copied into the model, so `config.quantization` rounds them, but does not keep them in few bits.

    Raises ModelError for a missing folder, no config.json, pickle weights, a tokenizer that does not fit, weights
    missing from the files, or a device that does not exist.
    """
    with reading(f"model {config.path!r}: loading it", ModelError, remedy="check the files in its folder"):
        return _load_model(config, seed, head, plain, paths or FastPaths(), takes_weights)


def choose_pages(config: ModelConfig) -> None:
    """Let this process use large pages if the model is large (`burnish.machine.memory`). A process that loads
    several models does this for the largest before the first, because the choice is made once."""
    source = resolve_source(config.path, field="model.path")
    use_large_pages(resolve_device(config.device).type, weight_bytes(source))


def load_outline(config: ModelConfig, *, head: Head = "language", plain: bool = False) -> LoadedModel:
    """Load model and tokenizer as `load_model` does, but with weights that have a shape and no data (PyTorch's `meta`
    device): for a process that asks others for everything that needs weights. Raises as `load_model` does, except for
    errors that only the weights can show.
    """
    with reading(f"model {config.path!r}: reading its config", ModelError, remedy="check the files in its folder"):
        source = resolve_source(config.path, field="model.path")
        check_model_folder(source, needs_weights=not config.from_scratch)
        raw_config, generation_config = _raw_configs(source, config)
        check_declared_sizes(raw_config, config.path)
        with torch.device("meta"):
            model = _random_model(_model_config(source, config), config, 0, head)
        tokenizer = load_tokenizer(config)
        return _with_tokenizer(model, tokenizer, config, raw_config, generation_config, (), plain=plain)


def _load_model(
    config: ModelConfig, seed: int, head: Head, plain: bool, paths: FastPaths, takes_weights: bool
) -> LoadedModel:
    source = resolve_source(config.path, field="model.path")
    check_model_folder(source, needs_weights=not config.from_scratch)
    device = resolve_device(config.device)
    choose_pages(config)
    raw_config, generation_config = _raw_configs(source, config)
    check_declared_sizes(raw_config, config.path)
    check_quantization(raw_config, config.path)
    model_config = _model_config(source, config)
    tokenizer = load_tokenizer(config)  # before the weights, which take longer: errors of the tokenizer come at once
    weights_note: str | None
    if config.from_scratch:
        model, weights_note = _random_model(model_config, config, seed, head), "weights are random (model.from_scratch)"
    else:
        model, weights_note = _saved_model(source, config, head)
        check_finite(model, config.path)
    loaded = _with_tokenizer(model, tokenizer, config, raw_config, generation_config, (weights_note,), plain=plain)
    if config.router_aux_coef > 0:
        _check_router_loss(model, head)
    prepare_for_training(model, gradient_checkpointing=config.gradient_checkpointing)
    model = model.to(device)
    if config.quantization is not None:
        quantize(model, config.quantization, DTYPES[config.dtype], "off" if plain else config.kernels)
        if takes_weights:
            restore(model)
    align_weights(model)
    if head == "language" and not plain:
        use_packed_rows(model, paths)
    kernels_note = _use_kernels(model, config, paths, has_passes=head == "language" and not plain)
    compiled_note = None if plain or head != "language" else compile_faster_layers(model, paths)
    found = (bfloat16_note(model, paths), kernels_note, compiled_note)
    return replace(
        loaded,
        model=model,
        notes=(*loaded.notes, *(note for note in found if note is not None)),
        kernels="off" if plain or kernels_note is not None else config.kernels,
        paths=paths,
    )


def _with_tokenizer(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    config: ModelConfig,
    raw_config: dict[str, Any],
    generation_config: dict[str, Any],
    notes: tuple[str | None, ...],
    *,
    plain: bool,
) -> LoadedModel:
    """The model with its tokenizer, and the settings that follow from the two."""
    largest_id = check_vocabulary(tokenizer, num_embeddings(model), path=config.path)
    eos_ids = eos_token_ids(tokenizer, raw_config, generation_config)
    check_token_ids(eos_ids, num_embeddings(model), f"model {config.path!r} names the end-of-sequence id")
    pad_id, pad_note = choose_pad_token_id(tokenizer, eos_ids, pad_token=config.pad_token)
    context_length, context_note = _context_length(model.config, tokenizer)
    eos_note = None if eos_ids else "neither model nor tokenizer has an end token; responses end by length or stop"
    vocabulary = 1 + max(largest_id, *eos_ids)
    found = (*notes, eos_note, pad_note, context_note)
    return LoadedModel(
        model,
        tokenizer,
        eos_ids,
        pad_id,
        context_length,
        tuple(note for note in found if note is not None),
        config.gradient_checkpointing,
        plain,
        config.kernels,
        router_aux_coef=config.router_aux_coef,
        vocabulary=vocabulary if vocabulary < num_embeddings(model) else None,
    )


def end_ids_of(config: ModelConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids that end responses of a model that is not loaded, from its files."""
    return eos_token_ids(tokenizer, *_raw_configs(resolve_source(config.path, field="model.path"), config))


def sampled_ids(loaded: LoadedModel) -> int:
    """Number of token ids that may be sampled, counted from 0."""
    return loaded.vocabulary or num_embeddings(loaded.model)


def num_embeddings(model: PreTrainedModel) -> int:
    """Number of token ids that the model knows, counted from 0."""
    return int(model.get_input_embeddings().weight.shape[0])


def _use_kernels(model: PreTrainedModel, config: ModelConfig, paths: FastPaths, *, has_passes: bool) -> str | None:
    """Switch the model's layers to C kernels if that is asked for, possible and faster; return a note for the user if
    it is not possible.

    has_passes: whether this model's forward and backward passes could use kernels at all.
    """
    known = has_passes and has_known_layers(model)
    if config.kernels == "off" or not (has_passes or config.kernels == "required"):
        if known:
            keep_own_layers(model, paths)
        return None
    reason, remedy = None, None
    try:
        if known:
            decode_kernels(model.dtype)  # the local engine's, built here so that a problem is reported once
            product_kernels(model.dtype)
            tried: list[str] = []
            if use_layer_kernels(model, tried):
                keep_faster_layers(model, paths, required=config.kernels == "required")
            elif packs_rows(model):
                reason = tried[0]
    except KernelError as error:
        reason, remedy = error.message, error.remedy
    if config.kernels == "required" and not uses_layer_kernels(model):
        what = f"this run ({model.config.model_type}, {config.dtype}, {model.device.type})"
        raise ModelError(
            f"model.kernels is `required`, but no C kernel supports {what}{'' if reason is None else f': {reason}'}",
            remedy=remedy or "set model.kernels: auto",
        )
    if reason is None:
        return None
    keep_own_layers(model, paths)
    hint = "" if remedy is None else f" ({remedy})"
    return f"training and sampling do not use C kernels, which is slower: {reason}{hint}"


def _check_router_loss(model: PreTrainedModel, head: Head) -> None:
    if head == "score":
        raise ModelError(
            "model.router_aux_coef applies to rl and sft only, not to the loss of a reward model",
            remedy="set model.router_aux_coef: 0",
        )
    RouterLoss(model)


def prepare_for_training(model: PreTrainedModel, *, gradient_checkpointing: bool = False) -> None:
    """Turn off every dropout for good and set `eval` mode, in which updates run too (`burnish.forward.recomputing`).
    With every stochastic part off, the ratio on the first on-policy minibatch is 1."""
    disable_dropout(model)
    model.eval()
    if gradient_checkpointing:
        allow_recomputing(model)


@torch.no_grad()
def align_weights(model: nn.Module) -> None:
    """Copy CPU weights and buffers that do not start at a cache line. Files are mapped into memory as they are, and
    matrix products round differently for a matrix at another alignment. Without this, the same weights from another
    file would give other numbers."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % _CACHE_LINE:
            tensor.data = tensor.detach().clone()


def disable_dropout(model: nn.Module) -> None:
    """Set the probability of every dropout to 0, in layers and in attributes of attention modules."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _saved_model(source: str, config: ModelConfig, head: Head) -> tuple[PreTrainedModel, str | None]:
    model, info = _with_attention(config, lambda attention: _from_pretrained(source, config, attention, head))
    refuse_mismatched(list(info["mismatched_keys"]), config.path)
    if Path(source).is_dir() and "quantization_config" not in model.config.to_dict():
        check_number_types(Path(source), dict(model.named_parameters()))
    missing = sorted(info["missing_keys"])
    if head == "score" and missing and not any(name.startswith(f"{model.base_model_prefix}.") for name in missing):
        return model, NEW_HEAD
    if missing:
        raise ModelError(
            f"model {config.path!r} lacks weights for {len(missing)} parameters, for example {missing[0]!r}",
            remedy="the weights do not belong to the architecture that config.json describes; use matching files",
        )
    unused = sorted(info["unexpected_keys"])
    return model, f"{len(unused)} weights in the files are not used, for example {unused[0]}" if unused else None


def _from_pretrained(
    source: str, config: ModelConfig, attention: str, head: Head
) -> tuple[PreTrainedModel, dict[str, Any]]:
    from transformers.utils import logging as transformers_logging

    said = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # `_saved_model` reports what is missing or unused
    try:
        return _auto_class(head).from_pretrained(
            source,
            revision=config.revision,
            # Weights that are about to be quantized need not take more memory before than in the file.
            dtype=DTYPES[config.dtype] if config.quantization is None else "auto",
            trust_remote_code=config.trust_remote_code,
            use_safetensors=True,
            attn_implementation=attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `_saved_model` refuses them by name
            **({"num_labels": 1} if head == "score" else {}),
        )
    finally:
        transformers_logging.set_verbosity(said)


def _auto_class(head: Head) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    return AutoModelForCausalLM if head == "language" else AutoModelForSequenceClassification


def _random_model(model_config: PretrainedConfig, config: ModelConfig, seed: int, head: Head) -> PreTrainedModel:
    if head == "score":
        model_config.num_labels = 1

    def build(attention: str) -> PreTrainedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _auto_class(head).from_config(
                model_config,
                dtype=DTYPES[config.dtype],
                trust_remote_code=config.trust_remote_code,
                attn_implementation=attention,
            )

    return _with_attention(config, build)


def _with_attention(config: ModelConfig, build: Callable[[str], Built]) -> Built:
    """Build with PyTorch's fused attention or, if the architecture does not support it, with its own."""
    try:
        return build("sdpa")
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise _unloadable(config, error) from error
        return build("eager")
    except Exception as error:  # boundary to transformers and the hub, which may raise anything
        raise _unloadable(config, error) from error


def _model_config(source: str, config: ModelConfig) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, revision=config.revision, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # boundary to transformers and the hub, which may raise anything
        raise _unloadable(config, error) from error


def _raw_configs(source: str, config: ModelConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of config.json and generation_config.json, without the defaults of the config classes."""
    from transformers import GenerationConfig, PretrainedConfig

    try:
        raw, _ = PretrainedConfig.get_config_dict(source, revision=config.revision)
    except Exception as error:  # boundary to transformers and the hub, which may raise anything
        raise _unloadable(config, error) from error
    if not isinstance(raw, dict):
        raise ModelError(f"config.json of model {config.path!r} is not a JSON object", remedy="use the model's own")
    if Path(source).is_dir():
        return raw, read_generation_config(source)
    try:
        return raw, GenerationConfig.from_pretrained(source, revision=config.revision).to_dict()
    except OSError:  # the file is optional
        return raw, {}


def _unloadable(config: ModelConfig, error: Exception) -> ModelError:
    text = " ".join(str(error).split())
    asks_for_code = "trust_remote_code" in text
    return ModelError(
        f"model {config.path!r} cannot be loaded ({type(error).__name__}: {text[:300]})",
        remedy="the model brings its own Python code: set model.trust_remote_code: true if you trust it"
        if asks_for_code
        else "name a folder with config.json and *.safetensors, or a hub name that can be reached"
        + nearest_folder_hint(config.path),
    )


def _context_length(model_config: PretrainedConfig, tokenizer: Tokenizer) -> tuple[int, str | None]:
    # Config classes have no common field for this. These are the names in use.
    text_config = model_config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(text_config, name, None)
        if isinstance(value, int) and value > 0:
            return value, None
    if tokenizer.model_max_length < UNLIMITED_CONTEXT:
        return tokenizer.model_max_length, "the context length is the tokenizer's; the model does not give one"
    return UNLIMITED_CONTEXT, "neither model nor tokenizer gives a context length; none is enforced"
