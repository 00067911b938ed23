"""What the compiler makes of the kernels for each instruction set; their numbers are in the other tests."""

import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from burnish.errors import KernelError
from burnish.kernels import build

pytestmark = pytest.mark.compiler

LANES = {"avx512f": 16, "16 lanes": 16, "avx2": 8, "avx": 8, "sse2": 4}
"""float32 numbers in a vector, which fills a register of all but `16 lanes`."""


def test_vectors_are_as_wide_as_registers(instruction_set: str) -> None:
    library = build.load_library("train.c", torch.float32)
    library.vector_lanes.restype = ctypes.c_int64
    assert library.vector_lanes() == LANES.get(instruction_set, library.vector_lanes())


def check_registers(objdump: str, compiled: Path, vector: str, stack: str, fewest: int) -> None:
    """Few of the vector instructions use the stack."""
    command = [objdump, "-d", "--no-show-raw-insn", compiled]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    vectors = [line for line in lines if re.search(vector, line)]
    assert len(vectors) > fewest
    assert len([line for line in vectors if re.search(stack, line)]) < 0.2 * len(vectors)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("objdump"), reason="reads x86-64's assembly")
@pytest.mark.parametrize("source", ["attend.c", "decode.c", "products.c", "quantized.c", "train.c"])
def test_sums_stay_in_registers(instruction_set: str, source: str, tmp_path: Path) -> None:
    """When tiles were larger than AVX2's registers, more than half of the vector instructions used the stack."""
    target = shlex.split(os.environ["CC"])
    if instruction_set == "16 lanes":  # what is not run may be built for the registers that such vectors fill
        target = [*(word for word in target if word != "-DLANES=16"), "-mavx512f"]
    command = [*target, "-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-DBFLOAT16=0", "-c", str(build._HERE / source)]
    if instruction_set == "native":
        command.append("-march=native")
    subprocess.run([*command, "-o", str(tmp_path / "object.o")], check=True)
    check_registers("objdump", tmp_path / "object.o", r"%[xyz]mm", r"\(%r[sb]p", 300)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86-64 extension")
def test_a_library_for_another_processor_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FMA4 is in no processor since 2017; its instructions would end the process."""
    if "fma4" in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor has FMA4")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", f"{shlex.join(build.find_compilers()[0])} -march=x86-64 -mfma4")
    with pytest.raises(KernelError, match="built for a processor") as caught:
        build.load_library("train.c", torch.float32)
    assert "-m" in (caught.value.remedy or "")
    assert not list((tmp_path / "burnish" / "kernels").iterdir())


@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
    reason="needs a cross compiler for ARM and an emulator",
)
@pytest.mark.parametrize("bfloat16", [0, 1])
def test_arm(bfloat16: int, tmp_path: Path) -> None:
    """All sources compile for NEON, sums stay in registers, and products of tiles and panels and numbers of codes are
    those of plain loops."""
    compiler = ["aarch64-linux-gnu-gcc", "-O3", "-std=gnu11", "-Wall", "-Werror", "-fopenmp", f"-DBFLOAT16={bfloat16}"]
    for source in ("attend.c", "decode.c", "products.c", "quantized.c", "train.c"):
        compiled = tmp_path / f"{source}.o"
        subprocess.run([*compiler, "-fPIC", "-c", build._HERE / source, "-o", compiled], check=True)
        check_registers("aarch64-linux-gnu-objdump", compiled, r"\b[vq]\d+(\.|,)", r"\[(sp|x29)", 100)
    for harness in ("tiles.c", "panels.c"):
        program, source = str(tmp_path / harness.removesuffix(".c")), str(Path(__file__).with_name(harness))
        subprocess.run([*compiler, "-static", f"-I{build._HERE}", source, "-o", program, "-lm"], check=True)
        said = subprocess.run(["qemu-aarch64", program], check=True, capture_output=True, text=True, timeout=60).stdout
        assert said == "4 lanes, alike\n"
