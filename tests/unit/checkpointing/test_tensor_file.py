"""Files written from where the tensors are have the bytes of the library's, and take no memory."""

import errno
import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from torch import Tensor

from burnish.checkpointing import tensor_file
from burnish.checkpointing.tensor_file import NAMES, write_tensors
from burnish.errors import CheckpointError


def filled(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
    """Any bits, but of the two that a bool may have."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (numbers,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).view(shape)


@st.composite
def any_tensor(draw: st.DrawFn) -> Tensor:
    """Of any type and shape, 0-d and empty ones too, as it lies or as a view."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    tensor = filled(draw(st.sampled_from(list(NAMES))), shape, draw(st.integers(0, 9)))
    match draw(st.sampled_from(["whole", "turned", "every other", "grown", "part"])):
        case "turned":
            return tensor.permute(list(reversed(range(tensor.dim()))))
        case "every other" if tensor.dim():
            return tensor[..., ::2]
        case "grown":
            return tensor.unsqueeze(0).expand(3, *tensor.shape)
        case "part" if tensor.dim():
            return tensor[1:]
    return tensor


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=st.dictionaries(st.text(max_size=4), any_tensor(), max_size=6), block=st.sampled_from([16, 64, 1 << 20]))
def test_the_file_is_that_of_the_library(tmp_path: Path, tensors: dict[str, Tensor], block: int) -> None:
    tensors.pop("__metadata__", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "BLOCK_BYTES", block)
        sha256 = write_tensors(tmp_path / "ours", tensors)
    written = (tmp_path / "ours").read_bytes()
    assert written == save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})
    assert sha256 == hashlib.sha256(written).hexdigest()


def test_shared_memory_parameters_and_conjugates(tmp_path: Path) -> None:
    base = torch.arange(6.0).view(2, 3)
    turned = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj()
    write_tensors(tmp_path / "file", {"a": base, "b": base, "c": torch.nn.Parameter(base[1]), "d": turned})
    back = load_file(tmp_path / "file")
    assert torch.equal(back["a"], base)
    assert torch.equal(back["b"], base)
    assert back["c"].tolist() == [3.0, 4.0, 5.0]
    assert back["d"].tolist() == [1 - 2j, 3 + 4j]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"a": torch.ones(1)})
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_type_without_a_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot save tensor 'b' in .*file: .* no type torch\.complex128"):
        write_tensors(tmp_path / "file", {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.complex128)})
    assert not (tmp_path / "file").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_the_error_of_the_system() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        write_tensors(Path("/dev/full"), {"a": torch.ones(1 << 22)})
    assert caught.value.errno == errno.ENOSPC


STATE_OF_96_MIB = """
    import sys
    from pathlib import Path
    import torch
    from torch import nn
    from burnish.checkpointing.encoding import write_state
    from burnish.models.optimizers import OptimizerSettings, WeightOptimizer

    weights = [(f"w{i}", nn.Parameter(torch.ones(1024, 1024))) for i in range(12)]
    optimizer = WeightOptimizer(weights, OptimizerSettings(learning_rate=0.1, total_steps=2))
    write_state(Path(sys.argv[1]), "first", {"t": torch.ones(1 << 20).view(1024, 1024).t()})
    optimizer.zero()
    optimizer.step(0, optimizer.grad_norm())

    def kilobytes(name):  # of this program alone, where `ru_maxrss` begins with those of who started it
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith(name))

    now = kilobytes("VmRSS")
    write_state(Path(sys.argv[1]), "state", optimizer.state())
    print(kilobytes("VmHWM") - now)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_saving_takes_no_memory_worth_the_name(tmp_path: Path) -> None:
    """Moments of 96 MiB, none of which is copied."""
    command = [sys.executable, "-c", textwrap.dedent(STATE_OF_96_MIB), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert (tmp_path / "state.safetensors").stat().st_size > 96 << 20
    # KiB. A copy would take 56 MiB, as the memory of 40 MiB of gradients is used again; a block takes 16.
    assert int(done.stdout) < 24 << 10
