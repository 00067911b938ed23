"""`burnish serve` in a process of its own, asked over HTTP."""

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from burnish.api.policy import Policy
from burnish.outside.listening import listening

from .conftest import Run

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

KEY = "a-key-of-sixteen-letters"


def ask(url: str, path: str, body: Any) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection.request("POST", path, json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


@pytest.mark.slow
def test_a_model_is_served_and_what_was_said_is_recorded(talker: str, tmp_path: Path) -> None:
    record = tmp_path / "rows.jsonl"
    words = ["serve", talker, "--port", "0", "--key-variable", "KEY", "--max-tokens", "4", "--record", str(record)]
    process = subprocess.Popen(
        [sys.executable, "-m", "burnish", *words], env={**os.environ, "KEY": KEY}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0].removesuffix("/v1")
        messages = [{"role": "user", "content": "1+1"}]
        asked = {"model": "policy", "messages": messages, "temperature": 0, "return_token_ids": True}
        answer = ask(url, "/t/first/v1/chat/completions", asked)
        expected = Policy(talker).generate("1+1=", max_response_tokens=4, greedy=True)
        assert answer["choices"][0]["message"]["content"] == expected.text
        assert answer["choices"][0]["token_ids"] == list(expected.token_ids)
        ask(url, "/t/first/reward", {"reward": 1})
        ask(url, "/t/second/v1/completions", {"model": "policy", "prompt": "2+2="})
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
    first, second = map(json.loads, record.read_text().splitlines())
    assert (first["trajectory"], first["environment_reward"]) == ("first", 1.0)
    assert first["response_tokens"] == list(expected.token_ids)
    assert second["trajectory"] == "second"  # what is open when the server ends is recorded, too


def test_a_port_that_is_taken_is_refused_before_the_model_is_loaded(run: Run) -> None:
    with listening("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])
        assert f"cannot listen on 127.0.0.1, port {port}" in run("serve", "no/such/model", "--port", port, code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "would answer everyone who can reach this machine"),
        (["--key-variable", "SHORT"], "SHORT holds no token"),
        (["--context", "9999"], "lower --context"),
        (["--parser", "hermez"], "hermes"),
        (["--record", "/nowhere/at/all.jsonl"], "cannot write to /nowhere/at/all.jsonl"),
    ],
)
def test_what_cannot_be_served_is_refused(
    talker: str, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("SHORT", "secret")
    assert said in run("serve", talker, "--port", "0", *words, code=2)
