"""Trial, when a model is loaded, that packed rows give the same numbers as padded ones, also with kernels.

The model's attention function alone does not tell. A recurrent layer would continue from one row into the next, and a
model that drops the keyword argument of its attention function would see all rows as one text. Neither raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from burnish.errors import KernelError
from burnish.forward.attention import WAYS, PackedAttention, packs_rows, set_packed_attention, ways_on
from burnish.forward.batch import Batch, HostRows
from burnish.forward.compiled_layers import may_compile, set_compiled_layers, times_compiled
from burnish.forward.fast_paths import FastPaths, failure, shape_of, shape_on_device
from burnish.forward.few_layers import few_layers, num_weights, telling_layers
from burnish.forward.kernel_layers import has_known_layers, own_layers, set_layer_kernels, uses_layer_kernels
from burnish.forward.matmul_choice import fast_float32
from burnish.forward.packing import Packing
from burnish.forward.race import Contender, tokens_for
from burnish.forward.row_rules import is_near
from burnish.forward.scoring import ResponsePositions, TrunkRunner, hidden_width
from burnish.types import PreTrainedModel

Result = TypeVar("Result")
_WIDE = 4_000_000
"""If a layer has more weights than this, only one layer is timed."""
_TRIED_WEIGHTS = 8
OF_GRADIENTS = 4.0
"""Factor on the tolerance for gradients, in which the rounding of all layers adds up."""
TRAINING = "training passes"
ATTENTION = "packed attention"
KERNELS, COMPILED, OWN = "C kernels", "compiled layers", "the model's own layers"
"""The paths that `use_packed_rows` and `keep_faster_layers` choose for, and the ways of the latter."""
_PREPARE = {KERNELS: set_layer_kernels, COMPILED: set_compiled_layers, OWN: own_layers}
RECOMPILATIONS = 8
"""If a model's layers are compiled more often than this beyond the first time, they stay as they are."""
_LENGTHS = (((20, 3), (37, 18, 2, 33, 5)), ((9, 4), (3, 18, 5, 33, 2)), ((31, 14), (4, 28, 6, 13, 3)))
"""Prompts and responses of three micro-batches that differ in every size that code could have been made for."""
_GPU_TOKENS = 4096
"""Tokens of a timed pass: about one micro-batch; with fewer a GPU waits for the host."""


def use_packed_rows(model: PreTrainedModel, paths: FastPaths | None = None) -> bool:
    """Let the model take packed rows if it can; False if it cannot, and its attention stays as it was.

    Each way to attend on the model's device is tried: states and gradients must match those with padded rows. If
    several pass, `paths` times them and keeps the choice; without it the first is taken.
    """
    if packs_rows(model):
        return True
    before = model.config._attn_implementation
    ways = ways_on(model.device, model.dtype)
    batch = _rows(model)
    with telling_layers(model):
        agreeing = [way for way in ways if set_packed_attention(model, way) and _gives_the_same(model, batch)]
    if not agreeing:
        if packs_rows(model):
            model.set_attn_implementation(before)
        return False
    set_packed_attention(model, agreeing[0] if paths is None else _fastest_attention(model, agreeing, paths))
    return True


def _fastest_attention(model: PreTrainedModel, ways: Sequence[str], paths: FastPaths) -> str:
    """Attention alone, forwards and backwards, over a micro-batch of two prompts with eight responses each."""
    if len(ways) == 1:
        return ways[0]
    device, settings = model.device, model.config.get_text_config().to_dict()
    rows = np.arange(16)
    lengths = (np.full(16, 512), np.full(16, 257))
    packing = Packing.of(HostRows(*lengths, rows // 8, np.ones((16, 257), dtype=np.bool_), np.ones(16, dtype=np.int64)))
    heads = int(model.config.get_text_config().num_attention_heads)
    key_heads = int(settings.get("num_key_value_heads") or heads)
    width = int(settings.get("head_dim") or hidden_width(model) // heads)
    shapes = ((packing.size, count, width) for count in (heads, key_heads, key_heads))
    inputs = [torch.ones(shape, device=device, dtype=model.dtype, requires_grad=True) for shape in shapes]

    def one_pass(attention: PackedAttention) -> object:
        with torch.enable_grad():
            output_SHD = attention.attend(inputs[0], inputs[1], inputs[2], None)
        return _finished(torch.autograd.grad(output_SHD, inputs, torch.ones_like(output_SHD)), device)

    made = {way: WAYS[way](packing, device, model.dtype) for way in ways}
    contenders = [Contender(way, partial(one_pass, made[way])) for way in ways]
    return paths.choose(ATTENTION, shape_on_device(model), contenders)


def _finished(results: Result, device: torch.device) -> Result:
    """Return the results once the device has computed them."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return results


def use_layer_kernels(model: PreTrainedModel, notes: list[str] | None = None) -> bool:
    """Let layers of a model that takes packed rows use kernels in C if states and gradients stay the same; False if
    not, with a note in `notes`. Rows are longer here than the blocks of the kernels.

    Raises KernelError if the kernels cannot be built.
    """
    if uses_layer_kernels(model):
        return True
    if not (packs_rows(model) and has_known_layers(model)):
        return False
    batch = _rows(model, prompt_lengths=(20, 3), response_lengths=(37, 18, 1, 33, 2))
    return _stay_the_same(model, set_layer_kernels, [batch], [] if notes is None else notes)


def _stay_the_same(
    model: PreTrainedModel, change: Callable[[PreTrainedModel], None], batches: Sequence[Batch], notes: list[str]
) -> bool:
    """Return whether states and gradients stay the same once `change` has been made to the layers, and nothing needs
    them compiled again and again. If not, their own passes are restored, and `notes` says why."""
    accepted = False
    try:
        with telling_layers(model):
            own = [_states_and_gradient(model, batch) for batch in batches]
        change(model)
        times = _times_again(model, batches) if change is set_compiled_layers else 0
        with telling_layers(model):
            found = [_states_and_gradient(model, batch) for batch in batches]
        agree = all(
            is_near(states, own_states) and is_near(gradient, own_gradient, times=OF_GRADIENTS)
            for (states, gradient), (own_states, own_gradient) in zip(found, own, strict=True)
        )
        accepted = agree and times <= RECOMPILATIONS
        if not agree:
            notes.append("their numbers differ from those of the model's own layers")
        elif not accepted:
            notes.append(f"they would be compiled again {times} times, more than {RECOMPILATIONS}")
    except KernelError:
        raise
    except Exception as error:  # noqa: BLE001 boundary: other structures and compilers with bugs may raise anything
        notes.append(failure(error))
    finally:
        if not accepted:
            own_layers(model)
    return accepted


def compile_faster_layers(model: PreTrainedModel, paths: FastPaths) -> str | None:
    """Let the layers of a model that takes packed rows be compiled if they can, stay the same and become faster. What
    is known beforehand costs no compilation. Returns a note for the user if they cannot."""
    known = paths.known(TRAINING, _training_shape(model), (COMPILED, OWN))
    able = packs_rows(model) and may_compile(model)
    if not able and known != COMPILED:
        return None
    if not able or known == OWN:  # a run that began with compiled layers is told
        keep_own_layers(model, paths)
        return None
    notes: list[str] = []
    if use_compiled_layers(model, notes):
        keep_faster_layers(model, paths, COMPILED)
        return None
    keep_own_layers(model, paths)
    return f"training does not use compiled layers, which is slower: {notes[0]}"


def use_compiled_layers(model: PreTrainedModel, notes: list[str]) -> bool:
    """Let the layers of a `may_compile` model be compiled if states and gradients stay the same and nothing needs them
    compiled again and again; False if not, with a note."""
    return _stay_the_same(model, set_compiled_layers, [_rows(model, *lengths) for lengths in _LENGTHS], notes)


def _times_again(model: PreTrainedModel, batches: Sequence[Batch]) -> int:
    """Predict how often the compiler will be called after the first layer's first passes, with and without gradients:
    for the other layers, and for other lengths."""
    counts = []
    for layers, given in ((1, batches[:1]), (2, batches[:1]), (2, batches[1:])):
        before = times_compiled()
        with few_layers(model, layers):
            for batch in given:
                _states_and_gradient(model, batch)
                with torch.no_grad():
                    TrunkRunner(model.base_model).packed(batch, ResponsePositions.of(batch), Packing.of(batch.host))
        counts.append(times_compiled() - before)
    _, by_layer, by_length = counts
    return by_layer * (len(model.base_model.layers) - 1) + by_length


def _training_shape(model: PreTrainedModel) -> str:
    """Describe the model and its GPU: the facts besides the processor on which the speed of training passes depends."""
    gpu = f", {torch.cuda.get_device_name(model.device)}" if model.device.type == "cuda" else ""
    return shape_of(model) + gpu


def keep_faster_layers(
    model: PreTrainedModel, paths: FastPaths, faster: str = KERNELS, *, required: bool = False
) -> None:
    """After `use_layer_kernels` or `use_compiled_layers` has accepted them: keep the `faster` layers if a forward and
    backward pass through the first ones is faster with them, or if they are `required`."""
    wide = num_weights(model.base_model.layers[0])
    count = 1 if wide > _WIDE else 2
    size = (_GPU_TOKENS if model.device.type == "cuda" else tokens_for(count * wide, wanted=512, fewest=64)) // 32
    longest = max(4, model.config.max_position_embeddings // 2)
    prompts, responses = (tuple(min(longest, part * size) for part in parts) for parts in ((16, 1), (4, 3, 4, 1, 2)))
    batch = _rows(model, prompts, responses)

    def one_pass(way: str) -> object:
        with few_layers(model, count):
            _PREPARE[way](model)
            return _finished(_states_and_gradient(model, batch), model.device)

    ways = [Contender(way, partial(one_pass, way)) for way in (faster, OWN)]
    with fast_float32(model, paths=paths):  # as it will be in training
        way = paths.choose(TRAINING, _training_shape(model), ways, required=faster if required else None)
    _PREPARE[way](model)


def keep_own_layers(model: PreTrainedModel, paths: FastPaths) -> None:
    """Record that training uses the model's own layers, even without a choice: a run that began like this continues
    like this, and one that began with kernels is warned."""
    paths.choose(TRAINING, _training_shape(model), [Contender(OWN, lambda: None)])


def _states_and_gradient(model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states of packed rows and, given a random gradient of them, the gradient of all the first layer's weights
    together (frozen ones left out)."""
    weights = [weight for weight in model.base_model.layers[0].parameters() if weight.requires_grad]
    with torch.enable_grad():
        states = TrunkRunner(model.base_model).packed(batch, ResponsePositions.of(batch), Packing.of(batch.host))
    return states.detach(), _gradient(states, weights)


def _gradient(states: Tensor, weights: Sequence[Tensor]) -> Tensor:
    if not weights:
        return states.new_zeros(0)
    outer = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).to(states)
    gradients = torch.autograd.grad(states, weights, outer, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten().to(states.dtype) for part in gradients])


def _gives_the_same(model: PreTrainedModel, batch: Batch) -> bool:
    runner, positions = TrunkRunner(model.base_model), ResponsePositions.of(batch)
    tries_gradients = model.device.type != "cpu"  # there the ways differ in their backward passes as well
    weights = _first_weights(model) if tries_gradients else []
    with torch.set_grad_enabled(tries_gradients):
        try:
            packed = runner.packed(batch, positions, Packing.of(batch.host))
            gradient = _gradient(packed, weights)
        except Exception:  # noqa: BLE001 boundary: models may raise anything; padded rows are always correct
            return False
        padded = runner.padded(batch, positions)
        wanted = _gradient(padded, weights)
    return is_near(packed, padded) and is_near(gradient, wanted, times=OF_GRADIENTS)


def _first_weights(model: PreTrainedModel) -> list[Tensor]:
    """A few trainable weights of the first layer: their gradients have gone through attention in all later layers."""
    embedding = model.get_input_embeddings().weight
    return [weight for weight in model.parameters() if weight.requires_grad and weight is not embedding][
        :_TRIED_WEIGHTS
    ]


def _rows(
    model: PreTrainedModel,
    prompt_lengths: tuple[int, ...] = (5, 3),
    response_lengths: tuple[int, ...] = (6, 4, 7, 1, 5),
) -> Batch:
    """Three rows with one prompt and two with another; tokens from the whole vocabulary, the same on every machine."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    lengths, width = torch.tensor(response_lengths), max(response_lengths)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, vocabulary, (2, max(prompt_lengths)), generator=generator)
    tokens = torch.randint(0, vocabulary, (5, width), generator=generator)
    of_prompt = torch.tensor([0, 0, 0, 1, 1])
    return Batch(
        prompt_tokens=prompts[of_prompt],
        prompt_lengths=torch.tensor(prompt_lengths)[of_prompt],
        response_tokens=tokens,
        response_lengths=lengths,
        loss_mask=torch.arange(width) < lengths[:, None],
        group_ids=of_prompt,
    ).to(model.device)
