from pathlib import Path

import pytest
import torch

from burnish.errors import ConfigError
from burnish.machine import processor

X86 = "model name\t: One\ncpu MHz\t: {clock}\nflags\t\t: fpu avx2 {more}\n\nprocessor\t: 1\nflags\t: none\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50\nFeatures\t: fp asimd {more}\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


@pytest.fixture
def describe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another processor; called with what /proc/cpuinfo says, None for no such file."""
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv(processor.WITHOUT, raising=False)

    def described(text: str | None) -> None:
        processor.description.cache_clear()
        file = tmp_path / "cpuinfo"
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(processor, "_CPU_INFO", file)

    yield described
    monkeypatch.undo()
    processor.description.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86.format(clock=1, more=""), False),
        (X86.format(clock=1, more="avx512_bf16"), True),
        (X86.format(clock=1, more="avx_ne_convert"), True),
        (X86.format(clock=1, more="amx_bf16"), True),
        (ARM.format(more=""), False),
        (ARM.format(more="sve bf16"), True),
        (None, None),
    ],
)
def test_bfloat16_by_the_processors_own_flags(describe, text: str | None, expected: bool | None) -> None:
    describe(text)
    assert processor.multiplies_bfloat16() is expected
    assert (processor.emulation_note() is not None) == (expected is False)


def test_bfloat16_can_be_turned_off(describe, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(X86.format(clock=1, more="avx512_bf16"))
    monkeypatch.setenv(processor.WITHOUT, "bfloat16")
    assert processor.multiplies_bfloat16() is False
    monkeypatch.delenv(processor.WITHOUT)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert processor.multiplies_bfloat16() is False
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert processor.multiplies_bfloat16() is True


def test_identity_is_that_of_the_model_and_not_of_the_moment(describe) -> None:
    found = []
    for clock, more in ((1, ""), (2, ""), (1, "avx512f")):
        describe(X86.format(clock=clock, more=more))
        found.append(processor.identity())
    assert found[0] == found[1] != found[2]


def test_onednn_is_asked_and_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processor.WITHOUT, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    has = processor.has_onednn()
    monkeypatch.setenv(processor.WITHOUT, " onednn_bfloat16 ,medium_float32")
    assert processor.has_onednn() is has
    assert not processor.has_onednn_bfloat16()
    assert not processor.allows("medium_float32")
    monkeypatch.setenv(processor.WITHOUT, "onednn")
    assert not processor.has_onednn()
    assert not processor.has_onednn_bfloat16()
    monkeypatch.delenv(processor.WITHOUT)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not processor.has_onednn()


def test_a_pytorch_without_these_operations_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ARM builds: asking for one raises AttributeError."""
    monkeypatch.delenv(processor.WITHOUT, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not processor.has_onednn()
    assert not processor.has_onednn_bfloat16()


def test_a_switch_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor.WITHOUT, "onednn,avx3")
    with pytest.raises(ConfigError, match=r"BURNISH_WITHOUT names 'avx3'"):
        processor.allows("onednn")
    monkeypatch.setenv(processor.TIMING, "maybe")
    with pytest.raises(ConfigError, match="BURNISH_TIMING is 'maybe'"):
        processor.times_paths()
