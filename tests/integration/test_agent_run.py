"""A training run whose conversations are held by an agent: exact tokens, branches as rows, and a policy that learns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import rollouts_of, rows_of, write_lines

from burnish.cli import main
from burnish.models.characters import character_tokenizer

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

TEMPLATE = (
    "{%- for m in messages %}{{ '[' + m.role[0] + m.content + '$' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '[a' }}{%- endif %}"
)
AGENT = '''
import json, urllib.request


def say(base_url, api_key, model, messages):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
    body = json.dumps({"model": model, "messages": messages}).encode()
    request = urllib.request.Request(base_url + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


def run(base_url, api_key, model, messages, answer):
    """Two turns that follow each other, and one of its own."""
    first = say(base_url, api_key, model, messages)
    second = say(base_url, api_key, model, [*messages, first, {"role": "user", "content": "bb"}])
    third = say(base_url, api_key, model, [{"role": "user", "content": "cc"}])
    return sum(said["content"].count(answer) for said in (first, second, third)) / 12
'''


@pytest.mark.slow
def test_an_agent_teaches_a_policy(
    save_tiny_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny_llama("abcu[", context_length=64, hidden_size=32)
    character_tokenizer("abcu[", eos="$", pad="_", chat_template=TEMPLATE).save_pretrained(model)
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENT)
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": "c"} for text in ("ab", "ba")]
    write_lines(Path("rows.jsonl"), rows)
    Path("held_out.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "bb"}], "answer": "c"}) + "\n")
    config: dict[str, Any] = {
        "output": "run",
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": "rows.jsonl", "eval": "held_out.jsonl"},
        "conversation": {"agent": "agent.py:run", "max_turns": 3, "max_turn_tokens": 4, "in_rounds": True},
        "rewards": "environment",
        "algorithm": {"preset": "grpo", "kl_in": "none"},
        "optimization": {"learning_rate": 0.01},
        "rollout": {"max_prompt_tokens": 16, "max_response_tokens": 32, "prompts_per_step": 2, "group_size": 8},
        "evaluation": {"every_steps": 12, "success": "environment"},
        "steps": 12,
    }
    Path("run.yaml").write_text(json.dumps(config))
    assert main(["rl", "run.yaml"]) == 0
    steps = rows_of("run")
    steps = [step for step in steps if "reward/mean" in step]
    assert steps[0]["reward/mean"] < 0.4
    assert steps[-1]["reward/mean"] > steps[0]["reward/mean"] + 0.3
    for step in steps:
        assert step["agent/started"] == 16
        assert step["agent/turns"] == 48
        assert step["agent/branches_mean"] == 2
        assert step["agent/failed_fraction"] == 0
        assert step["rollout/logprob_diff_max"] < 1e-4  # what is trained on is what was sampled
    rows = rollouts_of("run")
    assert len(rows) == 32  # two branches of each of 16 samples
    assert {len(row["turns"]) for row in rows} == {1, 3}
