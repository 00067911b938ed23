"""Lengths of recorded conversations: what was sampled is decoded, the rest is read."""

import json
from pathlib import Path

from burnish.simulation.recorded import read_recording

POLICY, TOOL = "policy", "tool"


def test_tokens_of_tools_count_as_prompt(tmp_path: Path) -> None:
    turns = [
        {"author": POLICY, "start": 0, "stop": 4, "messages": []},
        {"author": TOOL, "start": 4, "stop": 9, "messages": []},
        {"author": POLICY, "start": 9, "stop": 10, "messages": []},
    ]
    lines = [
        {"prompt_tokens": [0] * 3, "response_tokens": [0] * 10, "turns": turns},
        {"prompt_tokens": [0] * 3, "response_tokens": [0] * 7},
    ]
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step-000001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = {"step": 1, "time/generate_seconds": 1.0, "time/step_seconds": 2.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (step,) = read_recording(tmp_path).steps
    assert step.responses == ((8, 5), (3, 7))
    assert step.decoded.tokens == 12
