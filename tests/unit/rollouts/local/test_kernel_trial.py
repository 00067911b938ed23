"""Which decoder an engine takes, by made-up times; that the kernels agree stands in test_kernel_decoder.py."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from burnish.errors import RolloutError
from burnish.forward.fast_paths import FastPaths
from burnish.forward.quantized_layers import quantize
from burnish.forward.verdicts import VerdictCache
from burnish.machine import processor
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local import kernel_trial, packed_weights
from burnish.rollouts.local.decoders import ModelDecoder
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.local.kernel_decoder import KernelDecoder
from burnish.types import RolloutRequest, UseKernels

from ..conftest import local_engine, paths_with

KERNELS, OWN = kernel_trial.KERNELS, kernel_trial.OWN
PACKED, ORDINARY = kernel_trial.PACKED, kernel_trial.ORDINARY
compiler = pytest.mark.compiler


@pytest.fixture
def make(tokenizer: Any) -> Callable[..., LocalEngine]:
    def made(model: Any, paths: FastPaths, kernels: UseKernels = "auto") -> LocalEngine:
        return local_engine(model, tokenizer, max_batch_rows=4, kernels=kernels, paths=paths)

    return made


def decoder_of(engine: LocalEngine) -> Any:
    return type(engine._loop.make_decoder(engine._model, 4))


@compiler
@pytest.mark.parametrize(("fastest", "expected"), [(KERNELS, KernelDecoder), (OWN, ModelDecoder)])
def test_the_fastest_decoder_is_taken(make, llama: Any, fastest: str, expected: type) -> None:
    paths = paths_with([fastest])
    assert decoder_of(make(llama, paths)) is expected
    assert f"decoding by {fastest}" in paths.lines()[0]
    assert len(llama.model.layers) == 2  # all are back


def test_without_kernels_the_model_decodes_and_nothing_is_timed(make, llama: Any) -> None:
    paths = paths_with([KERNELS])
    assert decoder_of(make(llama, paths, kernels="off")) is ModelDecoder
    assert paths.lines() == ["fast paths: decoding by the model's own pass"]


@compiler
def test_a_faster_decoder_that_computes_otherwise_is_passed_over(
    make, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not taken however fast it is."""
    monkeypatch.setattr(kernel_trial, "decodes_alike", lambda model, maker: False)
    paths = paths_with([KERNELS])
    assert decoder_of(make(llama, paths)) is ModelDecoder
    assert paths.way(kernel_trial.DECODING) == OWN
    with pytest.raises(RolloutError, match="kernels is `required`"):
        make(llama, paths_with([KERNELS]), kernels="required")


@compiler
def test_required_kernels_are_taken_although_they_are_slower(make, llama: Any) -> None:
    paths = paths_with([OWN])
    assert decoder_of(make(llama, paths, kernels="required")) is KernelDecoder
    assert "(0.50x the model's own pass, required)" in paths.lines()[0]


@compiler
def test_a_run_that_began_with_another_decoder_keeps_it(make, llama: Any) -> None:
    began = paths_with([OWN])
    make(llama, began)
    resumed = paths_with([KERNELS], began.record())
    assert decoder_of(make(llama, resumed)) is ModelDecoder
    assert "as the run began" in resumed.lines()[0]


@compiler
@pytest.mark.parametrize("error", [RuntimeError, ZeroDivisionError, MemoryError])
def test_whatever_a_trial_raises_is_a_no_with_a_note(
    make, llama: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelDecoder, "logits", Mock(side_effect=error("no such instruction")))
    note = f"decoding without C kernels: the trial ended with {error.__name__}: no such instruction"
    for paths in (paths_with([KERNELS]), FastPaths(timed=False)):
        assert decoder_of(make(llama, paths)) is ModelDecoder
        assert note in paths.notes
        assert paths.way(kernel_trial.DECODING) == OWN


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("without", ["onednn", "an exception"])
def test_a_processor_without_packed_weights_decodes_with_other_layouts(
    make, llama: Any, dtype: torch.dtype, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN is not there, or says so only when it is asked to pack."""
    if without == "onednn":
        monkeypatch.setenv(processor.WITHOUT, "onednn")
    else:
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", cannot_pack)
        monkeypatch.setattr(kernel_trial, "has_blocks", lambda *_: True)
    paths = paths_with([PACKED, ORDINARY, KERNELS])
    engine = make(llama.to(dtype), paths)
    assert engine._loop.make_decoder.keywords == {"layout": "ordinary"}
    assert [note for note in paths.notes if "could not create a memory object" in note] == paths.notes
    assert len(paths.notes) == (without != "onednn")
    rollouts = engine.generate([RolloutRequest.of("p", 0, (3, 4, 5), (0, 1))], Sampling(8), seed=0, step=0)
    assert all(rollout.response_tokens for rollout in rollouts)


def cannot_pack(*_: object) -> None:
    raise RuntimeError("could not create a memory object")


@compiler
def test_weights_that_cannot_be_packed_later_are_an_error_with_a_way_out(
    make, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are packed anew in each call; a run does not change its way in silence."""
    if not packed_weights.has_blocks(torch.device("cpu"), torch.float32):
        pytest.skip("this PyTorch has no oneDNN")
    engine = make(llama, paths_with([PACKED, KERNELS]))
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", cannot_pack)
    with pytest.raises(RolloutError, match=r"cannot be packed .*memory object\n  -> set BURNISH_WITHOUT=onednn"):
        engine.generate([RolloutRequest.of("p", 0, (3, 4, 5), (0,))], Sampling(2), seed=0, step=0)


@compiler
@pytest.mark.parametrize("fastest", [KERNELS, PACKED, ORDINARY])
def test_the_layout_with_the_fastest_products_is_taken(make, llama: Any, fastest: str) -> None:
    if not packed_weights.has_blocks(torch.device("cpu"), torch.float32):
        pytest.skip("this PyTorch has no oneDNN")
    engine = make(llama, paths_with([fastest, KERNELS]))
    assert engine._loop.make_decoder.keywords == {"layout": kernel_trial.LAYOUTS[fastest]}


@pytest.mark.parametrize("bits", ["nf4", None])
def test_layouts_are_timed_by_the_head_where_layers_have_none(
    make_model: Callable[..., Any], bits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, multiplied = make_model("llama"), []
    if bits is not None:
        quantize(model, bits, torch.float32, "off")

    def noting(*linears: Any, layout: Any) -> packed_weights.Product:
        multiplied.append(linears)
        return packed_weights.joined_product(*linears, layout=layout)

    monkeypatch.setattr(kernel_trial, "joined_product", noting)
    kernel_trial._products_of(model, "ordinary")()
    layers = [(layer.mlp.gate_proj, layer.mlp.up_proj) for layer in model.model.layers]
    assert multiplied == (layers if bits is None else [(model.lm_head,)])


@compiler
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_step_that_is_timed_runs_with_every_decoder(
    make, make_model: Callable[..., Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real race, whose times decide here; nothing is asserted of them."""
    monkeypatch.setattr("burnish.forward.race.BUDGET_SECONDS", 0.0)
    paths = FastPaths(cache=VerdictCache(None), timed=True)
    make(make_model(kind, positions=256), paths)
    assert paths.notes == []
    assert paths.way(kernel_trial.DECODING) in (KERNELS, OWN)
