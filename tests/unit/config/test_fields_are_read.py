"""No documented key reaches nothing: every field of a run file is read somewhere outside of `burnish.config`."""

import re
from pathlib import Path

import pytest

import burnish
from burnish.config.fields import all_fields
from burnish.config.schema import RlConfig, RmConfig, RunConfig, SftConfig

READ_THROUGH = {
    "at_start": "begins",
    "backend": "uses_processes",
    "lanes": "num_lanes",
    "old_logprobs": "old_logprobs_of_sampler",
    "outside": "refills",
}
"""Fields whose rule is a property of their section: the property must be read."""


def code_outside_of_config() -> str:
    root = Path(burnish.__file__).parent
    files = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] != "config"]
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(files))


@pytest.mark.slow_cases("RlConfig")
@pytest.mark.parametrize("section", [RlConfig, SftConfig, RmConfig])
def test_every_field_of_a_run_file_is_read_by_name(section: type[RunConfig]) -> None:
    code = code_outside_of_config()
    names = {field.path.rpartition(".")[2] for field in all_fields(section)}
    unread = {name for name in names if not re.search(rf"\.{READ_THROUGH.get(name, name)}\b", code)}
    assert not unread
