"""Speaks the protocol of the vLLM worker without vLLM, and misbehaves on demand (`fake` among the build arguments).

Each pushed tensor is reported in the log with its checksum; a sample's log-probability is minus the first number of the
first tensor, and its tokens follow from its seed. It sleeps like vLLM on a GPU (`sleeps` in the environment variable
FAKE_VLLM), reports each request in the log as `did KIND`, and refuses those that its sleep does not allow.
"""

import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
import zlib
from math import prod
from pathlib import Path
from typing import Any

SIZES = {"float32": 4, "bfloat16": 2}
stream = socket.socket(fileno=int(sys.argv[1])).makefile("rwb")
memory_file = int(sys.argv[2])


def receive() -> Any:
    head = stream.read(8)
    if len(head) < 8:
        sys.exit(0)
    return json.loads(stream.read(int.from_bytes(head, "big")))


def send(message: Any) -> None:
    data = json.dumps(message).encode()
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


def receive_weights(first: float | None) -> float:
    while True:
        chunk = receive()
        if not chunk["tensors"]:
            assert first is not None
            return first
        with mmap.mmap(memory_file, chunk["bytes"]) as memory:
            for entry in chunk["tensors"]:
                size = prod(entry["shape"]) * SIZES[entry["dtype"]]
                data = memory[entry["offset"] : entry["offset"] + size]
                first = struct.unpack("<f", data[:4])[0] if "embed" in entry["name"] else first
                print(json.dumps([entry["name"], entry["dtype"], entry["shape"], zlib.crc32(data)]), flush=True)
        print("chunk", flush=True)
        send({"done": True})


def misbehave(fake: dict[str, Any]) -> None:
    """Once, or always where no marker is named."""
    marker = Path(fake["marker"]) if "marker" in fake else None
    if not fake or (marker is not None and marker.exists()):
        return
    if marker is not None:
        marker.touch()
    match fake["does"]:
        case "die":
            print("out of luck", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(60)
        case "garbage":
            stream.write((5).to_bytes(8, "big") + b"{nope")
            stream.flush()
        case "fail":
            send({"error": "ValueError: no memory left"})
        case "refuse":
            send({"refused": "another version"})
        case "nan":
            send({"samples": [{"tokens": [5], "logprobs": [float("nan")], "finish": "length"}], "cached_tokens": 0})
        case "short":
            send({"samples": [{"tokens": [5], "logprobs": [-1.0], "finish": "length"}], "cached_tokens": 0})
    receive()
    sys.exit(0)


def sample(seed: int, max_tokens: int, logprob: float) -> dict[str, Any]:
    tokens = [2 + (seed >> shift) % 60 for shift in range(max_tokens)]
    return {"tokens": tokens, "logprobs": [logprob] * max_tokens, "finish": "length"}


version, first, fake = None, None, {}
sleeps, asleep = os.environ.get("FAKE_VLLM") == "sleeps", []
while True:
    message = receive()
    print("did", message["kind"], *message.get("tags", []), flush=True)
    match message["kind"]:
        case "hello":
            send({"vllm": "0", "cpu": not sleeps, "head_sizes": None, "sleeps": sleeps})
        case "build":
            fake = message["arguments"].get("fake", {})
            print(json.dumps(sorted(os.listdir(message["arguments"]["model"]))), flush=True)
            assert ("enable_sleep_mode" in message["arguments"]) <= sleeps
            if fake.get("does") == "no build":
                send({"error": "TypeError: unexpected keyword argument"})
            else:
                send({"done": True})
        case "push":
            assert "weights" not in asleep, "vLLM would write into memory that is not there"
            assert message["base"] in (None, version)
            first, version = receive_weights(None if message["base"] is None else first), message["version"]
            send({"version": version})
        case "sleep":
            if fake.get("during") == "sleep":
                misbehave(fake)
            asleep = ["weights", "kv_cache"]
            send({"asleep": asleep})
        case "wake":
            assert message["tags"], "vLLM would wake everything"
            assert set(message["tags"]) <= set(asleep), "vLLM ignores this"
            if fake.get("during") == "wake":
                misbehave(fake)
            asleep = [part for part in asleep if part not in message["tags"]]
            send({"asleep": asleep})
        case "generate":
            assert not asleep, "vLLM would compute with memory that is not there"
            if "during" not in fake:
                misbehave(fake)
            assert message["version"] == version
            samples = [sample(s, r["max_tokens"], -(first or 0.0)) for r in message["requests"] for s in r["seeds"]]
            send({"samples": samples, "cached_tokens": 1})
