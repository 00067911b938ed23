"""The vLLM side of `rollout.engine: vllm`: a separate script, run by its path with the interpreter that has vLLM.

    python worker.py SOCKET MEMORY PARENT

SOCKET is the descriptor of a stream socket to the engine, MEMORY that of an anonymous file that both sides map, PARENT
the engine's process id. Messages are JSON objects, preceded by their length (4 bytes, big endian). Only the standard
library, torch and vllm are imported, never burnish: the two environments share nothing but this protocol.

    ->  hello                                    <-  vllm (its version), cpu (whether it computes on a CPU),
                                                     head_sizes (that its attention supports there, else null),
                                                     sleeps (whether it has a sleep mode there)
    ->  build: arguments of vllm.LLM, vocabulary (ids from this number on are never sampled; null if all may be)
                                                 <-  done
    ->  push: version, then chunks: a list of name, dtype, shape and offset in the first `bytes` bytes of MEMORY. Each
        is answered with `done`. An empty one ends the weights
                                                 <-  version
    ->  generate: version, sampling, requests (prompt, seeds, max_tokens)
                                                 <-  samples (tokens, logprobs, finish), cached_tokens
    ->  sleep                                    <-  asleep (which of `weights` and `kv_cache`)
    ->  wake: tags                               <-  asleep

An answer with `error` means that the request failed, one with `refused` that it must not be carried out.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # A script's own folder comes first on the module path, and the files in this one belong to burnish.
    _FOLDER = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]

import json
import logging
import math
import mmap
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]
"""A JSON object."""

_LENGTH_BYTES = 4
_TEMPERATURE = "burnish_temperature"


class Channel:
    """Messages over a stream socket."""

    def __init__(self, descriptor: int) -> None:
        self._stream = socket.socket(fileno=descriptor).makefile("rwb")

    def send(self, message: Message) -> None:
        data = json.dumps(message).encode()
        self._stream.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        self._stream.flush()

    def receive(self) -> Message:
        """Raises EOFError if the engine is gone."""
        length = int.from_bytes(self._read(_LENGTH_BYTES), "big")
        message: Message = json.loads(self._read(length))
        return message

    def _read(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) < count:
            raise EOFError
        return data


class Server:
    """One vLLM engine, and the requests to it."""

    def __init__(self, channel: Channel, memory: int) -> None:
        self._channel = channel
        self._memory = memory
        self._llm: Any = None
        self._version: int | None = None
        self._asleep: list[str] = []

    def answer(self, message: Message) -> Message:
        kind = message["kind"]
        if kind == "hello":
            return self._hello()
        if kind == "build":
            return self._build(message["arguments"], message["vocabulary"])
        if kind == "push":
            return (
                {"refused": "the weights are asleep"} if "weights" in self._asleep else self._push(message["version"])
            )
        if kind == "generate":
            return self._generate(message)
        if kind == "sleep":
            return self._sleep()
        if kind == "wake":
            return self._wake(message["tags"])
        return {"refused": f"no message is called {kind!r}"}

    def _hello(self) -> Message:
        import vllm
        from vllm.platforms import current_platform

        has_sleep_mode = {"sleep", "wake_up"} <= set(dir(vllm.LLM)) and current_platform.is_sleep_mode_available()
        on_cpu, sizes = current_platform.is_cpu(), None
        if on_cpu:
            from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

            sizes = CPUAttentionBackend.get_supported_head_sizes()
        return {"vllm": vllm.__version__, "cpu": on_cpu, "head_sizes": sizes, "sleeps": has_sleep_mode}

    def _build(self, arguments: Message, vocabulary: int | None) -> Message:
        from vllm import LLM

        self._llm = LLM(**arguments, logits_processors=[sampled_distribution(vocabulary)])
        # It warns about every layer without its own weights (rotary tables, a tied head) at every push.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        return {"done": True}

    def _push(self, version: int) -> Message:
        self._version = None  # incomplete weights have no version
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._weights()})
        self._llm.apply_model(repack_embeddings)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache, which has keys and values of the old weights")
        self._version = version
        return {"version": version}

    def _weights(self) -> Iterator[tuple[str, Any]]:
        """Copies of the tensors, chunk by chunk. Copies, because vLLM collects a layer's tensors before it loads them,
        and the next chunk overwrites the memory."""
        import torch

        while True:
            chunk = self._channel.receive()
            if not chunk["tensors"]:
                return
            with mmap.mmap(self._memory, chunk["bytes"]) as memory:
                for entry in chunk["tensors"]:
                    dtype = vars(torch)[entry["dtype"]]
                    count = 1
                    for size in entry["shape"]:
                        count *= size
                    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=entry["offset"]).clone()
                    yield entry["name"], flat.view(entry["shape"])
            self._channel.send({"done": True})

    def _generate(self, message: Message) -> Message:
        from vllm import SamplingParams

        if message["version"] != self._version:
            return {"refused": f"asked for version {message['version']}, but the weights are version {self._version}"}
        if self._asleep:
            return {"refused": f"{' and '.join(self._asleep)} are asleep"}
        prompts, params = [], []
        for request in message["requests"]:
            for seed in request["seeds"]:
                prompts.append({"prompt_token_ids": request["prompt"]})
                params.append(SamplingParams(seed=seed, max_tokens=request["max_tokens"], **message["sampling"]))
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        samples = []
        for output in outputs:
            sample = output.outputs[0]
            logprobs = [step[token].logprob for token, step in zip(sample.token_ids, sample.logprobs)]  # noqa: B905
            samples.append({"tokens": list(sample.token_ids), "logprobs": logprobs, "finish": sample.finish_reason})
        return {"samples": samples, "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs)}

    def _sleep(self) -> Message:
        """Weights go to the host's memory, keys and values are forgotten. vLLM ignores `sleep` while any part sleeps,
        and `wake_up` of a part that does not."""
        self._wake(list(self._asleep))
        self._llm.sleep(level=1)
        self._asleep = ["weights", "kv_cache"]
        return {"asleep": self._asleep}

    def _wake(self, tags: list[str]) -> Message:
        if tags:
            self._llm.wake_up(tags=tags)
            self._asleep = [part for part in self._asleep if part not in tags]
        return {"asleep": self._asleep}


def repack_embeddings(model: Any) -> None:
    """Let vLLM's CPU build pack embeddings for its matrix product again.

    `reload_weights` does this for every layer that received weights. A head tied to the embedding receives none, and
    would continue to use the old ones.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        for module in model.modules():
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)


def sampled_distribution(vocabulary: int | None) -> Any:
    """A logits processor class that divides the logits of greedy requests by their own temperature, and rules out all
    ids from `vocabulary` on.

    vLLM's greedy requests have temperature 0, and their log-probabilities are those of the undivided logits.
    """
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class SampledDistribution(AdapterLogitsProcessor):
        def is_argmax_invariant(self) -> bool:
            return False  # else vLLM leaves it out for greedy requests

        def new_req_logits_processor(self, params: Any) -> Any:
            temperature = (params.extra_args or {}).get(_TEMPERATURE)
            return None if temperature is None else lambda output_ids, logits: logits / temperature

        def apply(self, logits: Any) -> Any:
            logits = super().apply(logits)
            if vocabulary is not None:
                logits[:, vocabulary:] = -math.inf
            return logits

    return SampledDistribution


def end_with(parent: int) -> None:
    """Wait until the parent has ended, then kill everything that was started here."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def outlive_stop_signals() -> None:
    """Ignore Ctrl-C, SIGTERM and SIGHUP. The parent handles them, and needs this process to finish its step. It has
    blocked them until now."""
    stop = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in stop:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop)


def serve(descriptor: int, memory: int, parent: int) -> None:
    outlive_stop_signals()
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    channel = Channel(descriptor)
    server = Server(channel, memory)
    while True:
        try:
            message = channel.receive()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        try:
            answer = server.answer(message)
        except EOFError:
            os._exit(0)
        except Exception as error:  # noqa: BLE001 - boundary: vLLM may raise anything, and the engine must learn of it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        channel.send(answer)


if __name__ == "__main__":
    serve(*(int(argument) for argument in sys.argv[1:]))
