"""Folders of runs written by hand, for the tests of the board."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    """Write `metrics.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def line(group: int, sample: int, reward: float | None, **more: Any) -> dict[str, Any]:
    """A recorded response of three tokens, whose status follows from its reward."""
    tokens = more.pop("token_texts", ["a", "b", "c"])
    return {
        "step": 1,
        "prompt_id": f"p{group}",
        "prompt": f"question {group}",
        "answer": "a",
        "domain": "default",
        "group_id": group,
        "sample_index": sample,
        "response_tokens": [1] * len(tokens),
        "rollout_logprobs": [-1.0] * len(tokens),
        "finish_reason": "stop",
        "policy_version": 3,
        "response": "".join(tokens),
        "reward": reward,
        "reward_parts": {},
        "status": "error" if reward is None else "ok",
        "status_detail": "",
        "branch": 0,
        "greedy": False,
        "token_texts": tokens,
        "kept": reward is not None,
        "dropped_because": "reward error" if reward is None else "",
        "advantage": reward,
    } | more


def write_step(folder: Path, step: int, lines: Sequence[dict[str, Any]], kind: str = "step") -> Path:
    """Write a file of recorded responses."""
    path = folder / "rollouts" / f"{kind}-{step:06d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({**one, "step": step}, ensure_ascii=False) + "\n" for one in lines))
    return path
