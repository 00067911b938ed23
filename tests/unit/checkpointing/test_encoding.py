"""Training state comes back as it went in."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.checkpointing.encoding import read_state, write_state
from burnish.errors import CheckpointError


def round_trip(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    write_state(folder, "training_state", state)
    return read_state(folder, "training_state")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in value and type, nan to nan, -0.0 not to 0.0, dictionaries in their order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return math.isnan(a) if math.isnan(b) else (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(), plain, max_size=4))
def test_plain_values_round_trip_exactly(tmp_path: Path, state: dict[str, Any]) -> None:
    assert same(round_trip(tmp_path, state), state)


def test_nan_bits_views_and_shared_memory(tmp_path: Path) -> None:
    base = torch.tensor([[1.0, float("nan")], [-0.0, float("inf")]])
    state = {"whole": base, "again": base, "view": base.t(), "row": base[1], "half": base.bfloat16(), "none": base[:0]}
    back = round_trip(tmp_path, state)
    for name, tensor in state.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(back[name].view(torch.int16), tensor.contiguous().view(torch.int16))


def test_generators_continue(tmp_path: Path) -> None:
    python, array = random.Random(3), numpy.random.RandomState(3)
    generator = torch.Generator().manual_seed(3)
    states = {"python": python.getstate(), "numpy": array.get_state(), "torch": generator.get_state()}
    state = round_trip(tmp_path, states)
    expected = (python.random(), array.rand(), torch.rand(1, generator=generator).item())
    python.setstate(state["python"])
    array.set_state(state["numpy"])
    generator.set_state(state["torch"])
    assert (python.random(), array.rand(), torch.rand(1, generator=generator).item()) == expected


def test_a_value_without_exact_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"training_state\['a'\]\[1\]: a checkpoint cannot hold a builtins\.set"):
        write_state(tmp_path, "training_state", {"a": [0, {1}]})


def test_no_pickle_is_written(tmp_path: Path) -> None:
    state = {"a": torch.ones(2), "b": (1, 2), "c": {0: {"step": 1.5}}}
    assert round_trip(tmp_path, state)["c"] == state["c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["training_state.json", "training_state.safetensors"]
    assert json.loads((tmp_path / "training_state.json").read_text())["b"] == {"$tuple": [1, 2]}


@pytest.mark.parametrize("damage", ["training_state.json", "training_state.safetensors"])
def test_damage_is_an_error_with_the_folder(tmp_path: Path, damage: str) -> None:
    write_state(tmp_path, "training_state", {"a": torch.ones(8)})
    path = tmp_path / damage
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=f"cannot read training_state in {tmp_path}"):
        read_state(tmp_path, "training_state")
