"""Layers compiled for packed rows, on a CPU: which are tried, refused, counted and kept."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from burnish.forward import compiled_layers, probe
from burnish.forward.compiled_layers import (
    CompiledLayer,
    may_compile,
    set_compiled_layers,
    times_compiled,
    uses_compiled_layers,
)
from burnish.forward.fast_paths import FastPaths
from burnish.forward.kernel_layers import own_layers
from burnish.forward.probe import COMPILED, OWN, TRAINING, compile_faster_layers, use_compiled_layers
from burnish.forward.race import RaceResult
from burnish.forward.recomputing import recomputing
from burnish.forward.verdicts import VerdictCache


@pytest.fixture
def on_this_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Layers of any size are compiled here, by the given compiler."""

    def allow(compiler: Callable[..., Any] = lambda graph, inputs: graph.forward) -> None:
        monkeypatch.delenv("BURNISH_WITHOUT", raising=False)
        monkeypatch.setattr(compiled_layers, "DEVICES", ("cpu",))
        monkeypatch.setattr(compiled_layers, "LEAST_WEIGHTS", 0)
        monkeypatch.setattr(compiled_layers, "inductor", compiler)

    return allow


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.compile` calls its backend once and changes nothing: to load the real one takes seconds."""

    def pretend(function: Callable[..., Any], *, dynamic: bool, backend: Callable[..., Any]) -> Callable[..., Any]:
        assert dynamic
        graph = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
        backend(graph, [])
        return function

    monkeypatch.setattr(torch, "compile", pretend)
    monkeypatch.setattr(torch.compiler, "disable", lambda function: function)
    compiled_layers._compiled.cache_clear()
    compiled_layers._attend_outside.cache_clear()
    yield
    compiled_layers._compiled.cache_clear()
    compiled_layers._attend_outside.cache_clear()


def races_won_by(name: str, seen: list[list[str]]) -> Callable[..., RaceResult]:
    def run_race(ways: Any) -> RaceResult:
        seen.append([way.name for way in ways])
        return RaceResult(name, {way.name: 1.0 + (way.name != name) for way in ways})

    return run_race


def test_by_default_only_large_layers_on_a_gpu_are_compiled(load, monkeypatch) -> None:
    model = load("llama", kernels="off").model
    assert not may_compile(model)
    monkeypatch.setattr(compiled_layers, "DEVICES", ("cpu",))
    assert not may_compile(model)
    monkeypatch.setattr(compiled_layers, "LEAST_WEIGHTS", 1000)
    assert may_compile(model)
    monkeypatch.setenv("BURNISH_WITHOUT", "compiled_layers")
    assert not may_compile(model)


def test_copies_compute_with_their_own_weights(load, on_this_cpu, pretended) -> None:
    """No trace of the compiler in a layer itself: a reference is a deep copy of the policy."""
    model = load("llama", kernels="off").model
    on_this_cpu()
    before = times_compiled()
    set_compiled_layers(model)
    assert times_compiled() == before + 1  # one function for all layers
    twin = copy.deepcopy(model)
    assert uses_compiled_layers(twin)
    layer, other = model.base_model.layers[0], twin.base_model.layers[0]
    assert isinstance(layer, CompiledLayer)
    assert "forward" not in vars(layer)
    batch = probe._rows(model)
    (states, gradient), again = (probe._states_and_gradient(one, batch) for one in (model, twin))
    torch.testing.assert_close(again, (states, gradient), rtol=0, atol=0)
    other.mlp.down_proj.weight.data *= 2
    assert not probe.is_near(probe._states_and_gradient(twin, batch)[0], states)
    own_layers(model)
    assert not uses_compiled_layers(model)
    assert uses_compiled_layers(twin)


def test_layers_that_are_compiled_too_often_are_refused(load, on_this_cpu, monkeypatch) -> None:
    """A new code for each pass after the first; and a new one for each of many layers."""
    model = load("llama", kernels="off").model
    on_this_cpu()
    for again, refused in ((1, False), (5, True)):
        counts = iter([0, 10, 10, 10 + again, 10 + again, 14 + again])
        monkeypatch.setattr(probe, "times_compiled", lambda counts=counts: next(counts))
        monkeypatch.setattr(probe, "set_compiled_layers", lambda model: None)
        notes: list[str] = []
        assert use_compiled_layers(model, notes) is not refused
        assert refused is any(f"compiled again {again + 4} times, more than 8" in note for note in notes)


@pytest.mark.parametrize(
    ("breaks", "note"),
    [
        (RuntimeError("no C compiler"), "the trial ended with RuntimeError: no C compiler"),
        (None, "their numbers differ from those of the model's own layers"),
    ],
)
def test_a_compiler_that_is_missing_or_wrong_is_a_note(load, on_this_cpu, breaks, note, monkeypatch) -> None:
    model = load("llama", kernels="off").model
    on_this_cpu()

    def spoil(model: Any) -> None:
        if breaks is not None:
            raise breaks
        model.base_model.layers[0].mlp.down_proj.weight.data *= 2

    monkeypatch.setattr(probe, "set_compiled_layers", spoil)
    paths = FastPaths(timed=False)
    assert note in (compile_faster_layers(model, paths) or "")
    assert not uses_compiled_layers(model)
    assert paths.way(TRAINING) == OWN


@pytest.mark.parametrize("winner", [COMPILED, OWN])
def test_the_faster_layers_are_kept_and_the_slower_never_compiled_again(
    load, on_this_cpu, pretended, winner, monkeypatch
) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(probe, "use_compiled_layers", lambda model, notes: tried.append(model) or True)
    monkeypatch.setattr(FastPaths, "_runs", lambda paths, path, way: True)
    races: list[list[str]] = []
    models, began = [load("llama", kernels="off").model for _ in range(2)], FastPaths()
    on_this_cpu()
    for model in models:
        paths = FastPaths(began.record(), cache=VerdictCache(None), timed=True, run_race=races_won_by(winner, races))
        assert compile_faster_layers(model, paths) is None
        assert uses_compiled_layers(model) is (winner == COMPILED)
        assert paths.way(TRAINING) == winner
        began = paths
    assert [COMPILED, OWN] in races
    monkeypatch.setenv("BURNISH_WITHOUT", "compiled_layers")
    later = FastPaths(began.record(), timed=False)
    assert compile_faster_layers(load("llama", kernels="off").model, later) is None
    assert any("began with training passes by compiled layers" in note for note in later.notes) is (winner == COMPILED)
    assert len(tried) == (2 if winner == COMPILED else 1)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler about PyTorch
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_one_real_code_has_the_numbers_of_all_layers_and_lengths(load, on_this_cpu, family) -> None:
    """By PyTorch's own compiler, with checkpointed layers as well."""
    model = load(family, kernels="off", gradient_checkpointing=True).model
    batch, before = probe._rows(model, (40, 2), (9, 3, 50, 7, 2)), times_compiled()
    own_states, own_gradient = probe._states_and_gradient(model, batch)
    on_this_cpu(compiled_layers.inductor)
    paths = FastPaths(timed=False)
    assert compile_faster_layers(model, paths) is None
    assert uses_compiled_layers(model)
    assert paths.way(TRAINING) == COMPILED
    once = times_compiled() - before
    assert once >= 2  # the parts before and after attention; how many more, is up to the compiler and the processor
    probe._states_and_gradient(model, batch)
    again = times_compiled() - before - once  # for lengths that the trial has not seen
    assert again <= probe.RECOMPILATIONS
    probe._states_and_gradient(model, batch)
    assert times_compiled() - before == once + again
    for checkpointing in (False, True):
        with recomputing(model, on=checkpointing):
            states, gradient = probe._states_and_gradient(model, batch)
        torch.testing.assert_close(states, own_states, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(gradient, own_gradient, atol=1e-4, rtol=1e-4)
    made = times_compiled()
    model(torch.ones(1, 5, dtype=torch.int64))  # sampling and padded rows are none of its business
    assert times_compiled() == made
