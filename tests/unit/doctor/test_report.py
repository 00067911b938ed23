"""The report's text, whose lines can be read anywhere, and its JSON, whose keys others build on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from burnish.container import Limits
from burnish.doctor.facts import Chosen, Facts, Gpu, Gpus, Kernels, Paths, Problem, Sandbox
from burnish.doctor.report import NARROW_WIDTH_OF_FLOAT32, WIDTH, WIDTH_OF_FLOAT32, as_plain, text_lines
from burnish.forward.float32 import NARROW_WIDTH as NARROW_WIDTH_OF_TRIAL
from burnish.forward.float32 import WIDTH as WIDTH_OF_TRIAL

GIB = 1 << 30
KEYS = {
    "versions": {"burnish", "revision", "python", "packages", "extras", "broken"},
    "system": {"name", "distribution", "libc", "memory_bytes", "available_bytes", "limits"},
    "processor": {
        "name",
        "machine",
        "cores",
        "allowed_cores",
        "capabilities",
        "settings",
        "fault",
        "vectors",
        "threads",
        "threads_because",
    },
    "sandbox": {"auto", "tiers", "attacked"},
    "kernels": {
        "compiler",
        "version",
        "built",
        "problem",
        "remedy",
        "cache",
        "cache_problem",
        "libraries",
        "timings",
        "forgotten",
    },
    "rates": {"threads", "products", "medium_is_accurate", "memory_read", "process_start"},
    "paths": {"model", "choices", "float32", "attention", "decoder", "notes", "not_tried", "failed"},
    "gpus": {"build", "driver", "found", "failure", "hidden"},
}


def text(facts: Facts, problems: tuple[Problem, ...] = ()) -> str:
    return "\n".join(line for line, _ in text_lines(facts, problems))


def rows(facts: Facts) -> dict[str, str]:
    """Text of each row by `section: name`, unwrapped."""
    found: dict[str, str] = {}
    section = name = ""
    for line, is_title in text_lines(facts, ()):
        if is_title:
            section = line
        elif line.startswith("   "):
            found[f"{section}: {name}"] += f" {line.strip()}"
        elif line:
            name, _, value = line.strip().partition("  ")
            found[f"{section}: {name}"] = value.strip()
    return found


def test_the_keys_of_the_json_stay(machine: Callable[..., Facts]) -> None:
    plain = as_plain(machine(), (Problem("no-cache", "note", "what", "remedy"),))
    assert set(plain) == {"format", "storage", "problems", *KEYS}
    assert plain["format"] == 1
    for part, keys in KEYS.items():
        assert set(plain[part]) == keys, part
    assert set(plain["storage"][0]) == {"place", "kind", "total_bytes", "free_bytes"}
    assert set(plain["versions"]["extras"][0]) == {"name", "packages", "enables"}
    assert set(plain["paths"]["choices"][0]) == {"path", "way", "words", "timed", "seconds"}
    assert plain["problems"] == [{"name": "no-cache", "weight": "note", "what": "what", "remedy": "remedy"}]
    assert json.loads(json.dumps(plain))["rates"]["products"]["float32"] == 4e11


def test_the_text_says_what_there_is_and_why(machine: Callable[..., Facts]) -> None:
    found = rows(machine())
    assert found["versions: burnish"] == "1.2.3 (commit 0123456789ab, with changes)"
    assert found["versions: not installed"] == "mcp (for tools)"
    assert found["system: memory"] == "64.00 GiB, 60.00 GiB available"
    assert found["processor: lacks"] == "amx_bf16"
    assert found["processor: threads"].startswith("8 (PyTorch's own choice)")
    assert found["processor: environment"] == "nothing set"
    assert found["kernels in C: kept in"] == "~/.cache/burnish: 3 libraries, 1 timing of ways"
    assert found["rates (with 8 threads, medians): float32 products"] == "400 G multiply-adds per second"
    assert found["rates (with 8 threads, medians): memory, read"] == "40 GB per second"
    assert found["paths of a run: float32 products"] == "medium (1.13x highest), timed before"
    assert found["paths of a run: decoding"] == "C kernels (2.00x the model's own pass), timed now"
    assert found["paths of a run: training rows"] == "packed, attention by C kernels"
    assert found["sandbox: tier: auto"] == "namespaces, which held against all attacks"


def test_another_machine_reads_otherwise(machine: Callable[..., Facts]) -> None:
    gpu = Gpu("NVIDIA H100", "9.0", 80 * GIB, 79 * GIB, True)
    found = rows(
        machine(
            system={"limits": Limits(2.0, 8 * GIB)},
            processor={"allowed_cores": 2, "settings": {"BURNISH_WITHOUT": "onednn"}, "capabilities": {}},
            kernels=Kernels(None, None, None, "there is no C compiler", None, None, None, 0, 0, 4),
            paths=Paths("mine", float32="highest", decoder="the model's own pass", notes=("a note",)),
            sandbox=Sandbox(None, {"namespaces": "refused"}, False),
            gpus=Gpus("CUDA 12.8", "550.54", (gpu,)),
        )
    )
    assert found["system: memory"].endswith("limited to 8.00 GiB (control group)")
    assert found["processor: cores"] == "8, of which 2 may be used"
    assert found["processor: environment"] == "BURNISH_WITHOUT=onednn"
    assert "processor: has" not in found
    assert found["kernels in C: compiler"] == "none: there is no C compiler"
    assert found["kernels in C: usable"] == "no"
    assert found["kernels in C: forgotten"] == "4 timings (--fresh)"
    assert found["paths of a run: training rows"].startswith("padded: packed ones were off (debug.plain")
    assert found["paths of a run: decoding"].startswith("the model's own pass; others are tried for Llama's")
    assert found["paths of a run: float32 products"].startswith("highest; others are tried for float32 models of")
    assert found["paths of a run: note"] == "a note"
    assert found["sandbox: namespaces"] == "refused"
    assert found["GPUs: GPU 0"] == "NVIDIA H100, 79.00 GiB of 80.00 GiB free, capability 9.0"


def test_the_text_is_plain_and_no_wider_than_an_issue_shows(machine: Callable[..., Facts]) -> None:
    long = Problem("long", "problem", "word " * 60, "remedy " * 40)
    shown = text(machine(paths={"notes": ("much to say " * 30,)}), (long,))
    assert all(len(line) <= WIDTH for line in shown.splitlines())
    assert shown.isascii()
    assert "\x1b" not in shown


def test_why_nothing_was_tried(machine: Callable[..., Facts]) -> None:
    only_way = Chosen("float32 products", "highest", "float32 products by highest", None, {})
    found = rows(machine(paths={"choices": (only_way,), "not_tried": None}))
    assert found["paths of a run: float32 products"].endswith("the faster ones are turned off, or less accurate here")
    found = rows(machine(paths={"not_tried": "it is too large"}))
    assert found["paths of a run: not tried"] == "it is too large"
    assert "paths of a run: training rows" not in found
    found = rows(replace(machine(processor={"fault": "BURNISH_TIMING is 'maybe'"}), rates=None, paths=None))
    assert found["paths of a run: model"].endswith("every run is refused: see the problems")


def test_widths_are_those_of_the_trial() -> None:
    assert (WIDTH_OF_FLOAT32, NARROW_WIDTH_OF_FLOAT32) == (WIDTH_OF_TRIAL, NARROW_WIDTH_OF_TRIAL)


def test_what_was_left_out_is_said_and_what_cannot_be_known_is_not_shown(machine: Callable[..., Facts]) -> None:
    quick = rows(replace(machine(kernels={"built": None}), rates=None, paths=None))
    assert quick["rates: all"] == quick["paths of a run: model"] == quick["kernels in C: usable"]
    assert quick["rates: all"] == "not tried (--quick)"
    broken = machine(versions={"broken": {"torch": "OSError: x"}}, kernels=None, rates=None, paths=None, gpus=None)
    shown = text(broken)
    assert "OSError: x" in shown
    assert "rates" not in shown
    assert "GPUs" not in shown
