"""The vLLM side of `rollout.engine: vllm`: a separate script, run by its path with the interpreter that has vLLM.

    python worker.py SOCKET MEMORY PARENT

SOCKET is the descriptor of a stream socket to the engine, MEMORY of an anonymous file that both sides map, PARENT
the engine's process id. Messages are JSON objects, preceded by their length (8 bytes, big endian). Only the standard
library, torch and vllm are imported, never burnish: the two environments share nothing but this protocol.

    ->  hello                                    <-  vllm (its version), cpu (whether it computes on a CPU),
                                                     head_sizes (that its attention supports there, else null),
                                                     sleeps (whether it has a sleep mode there)
    ->  build: arguments of vllm.LLM, vocabulary (ids from this number on are never sampled; null if all may be)
                                                 <-  done
    ->  push: version, base (the version that it changes; null if it has all weights), then chunks: a list of name,
        dtype, shape and offset in the first `bytes` bytes of MEMORY. Each is answered with `done`. An empty one ends
        the weights
                                                 <-  version
    ->  adapter: version, base (the version of the weights that it changes), path (a folder in peft's layout)
                                                 <-  version
    ->  score: version, texts (lists of tokens), tokens
                                                 <-  logprobs (of each token as the next one of each text)
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

_LENGTH_BYTES = 8
_TEMPERATURE = "burnish_temperature"
_VOCABULARY = "BURNISH_VLLM_VOCABULARY"
"""An environment variable, which vLLM's own processes have too."""


class Channel:
    """Messages over a stream socket."""

    def __init__(self, descriptor: int) -> None:
        self._stream = socket.socket(fileno=descriptor).makefile("rwb")

    def send(self, message: Message) -> None:
        data = json.dumps(message).encode()
        self._stream.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        self._stream.flush()

    def receive(self) -> Message:
        """Read one message. Raises EOFError if the engine is gone."""
        length = int.from_bytes(self._read(_LENGTH_BYTES), "big")
        return json.loads(self._read(length))

    def _read(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) < count:
            raise EOFError
        return data


class EngineServer:
    """One vLLM engine, and the requests to it."""

    def __init__(self, channel: Channel, memory: int) -> None:
        self._channel = channel
        self._memory = f"/proc/{os.getpid()}/fd/{memory}"  # vLLM's processes for the other GPUs can open it, too
        self._llm: Any = None
        self._version: int | None = None
        self._asleep: list[str] = []
        self._adapter: Any = None  # vLLM's LoRARequest
        self._adapters = 0

    def answer(self, message: Message) -> Message:
        kind = message["kind"]
        if kind == "hello":
            return self._hello()
        if kind == "build":
            return self._build(message["arguments"], message["vocabulary"])
        if kind == "push":
            return self._push(message["version"], message["base"])
        if kind == "adapter":
            return self._take_adapter(message)
        if kind == "score":
            return self._refusal(message["version"]) or self._score(message["texts"], message["tokens"])
        if kind == "generate":
            return self._refusal(message["version"]) or self._generate(message)
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

        if vocabulary is not None:
            os.environ[_VOCABULARY] = str(vocabulary)
        self._llm = LLM(**arguments, logits_processors=[sys.modules[__name__].SampledDistribution])
        return {"done": True}

    def _push(self, version: int, base: int | None) -> Message:
        if base is not None and base != self._version:
            return {"refused": f"changes of version {base} are pushed, but the weights are version {self._version}"}
        if "weights" in self._asleep:
            return {"refused": "the weights are asleep"}
        self._version = None  # incomplete weights have no version
        self._drop_adapter()
        self._llm.collective_rpc(begin_reload)
        while (chunk := self._channel.receive())["tensors"]:
            self._llm.collective_rpc(load_chunk, args=(self._memory, chunk))
            self._channel.send({"done": True})
        self._llm.collective_rpc(finish_reload)
        return self._now_at(version)

    def _take_adapter(self, message: Message) -> Message:
        from vllm.lora.request import LoRARequest

        if message["base"] != self._version or "weights" in self._asleep:
            return {"refused": f"an adapter for version {message['base']} is pushed, but the weights are version "
                    f"{self._version}{', asleep' if 'weights' in self._asleep else ''}"}  # fmt: skip
        self._version = None
        self._drop_adapter()
        self._adapters += 1  # vLLM knows adapters by these numbers
        adapter = LoRARequest(f"adapter-{self._adapters}", self._adapters, message["path"])
        if not self._llm.llm_engine.add_lora(adapter):
            raise RuntimeError("vLLM did not take the adapter")
        self._adapter = adapter
        return self._now_at(message["version"])

    def _drop_adapter(self) -> None:
        if self._adapter is not None:
            self._llm.llm_engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = None

    def _now_at(self, version: int) -> Message:
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache, which has keys and values of the old weights")
        self._version = version
        return {"version": version}

    def _refusal(self, version: int) -> Message | None:
        """The answer to a request for a version that the worker does not have, or cannot use now; None if it can."""
        if version != self._version:
            return {"refused": f"asked for version {version}, but the weights are version {self._version}"}
        return {"refused": f"{' and '.join(self._asleep)} are asleep"} if self._asleep else None

    def _score(self, texts: list[list[int]], tokens: list[int]) -> Message:
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": text} for text in texts]
        params = SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=tokens, detokenize=False)
        outputs = self._llm.generate(prompts, params, use_tqdm=False, lora_request=self._adapter)
        found = [output.outputs[0].logprobs[0] for output in outputs]
        return {"logprobs": [[logprobs[token].logprob for token in tokens] for logprobs in found]}

    def _generate(self, message: Message) -> Message:
        from vllm import SamplingParams

        prompts, params = [], []
        for request in message["requests"]:
            for seed in request["seeds"]:
                prompts.append({"prompt_token_ids": request["prompt"]})
                params.append(SamplingParams(seed=seed, max_tokens=request["max_tokens"], **message["sampling"]))
        outputs = self._llm.generate(prompts, params, use_tqdm=False, lora_request=self._adapter)
        samples = []
        for output in outputs:
            sample = output.outputs[0]
            logprobs = [step[token].logprob for token, step in zip(sample.token_ids, sample.logprobs)]  # noqa: B905
            samples.append({"tokens": list(sample.token_ids), "logprobs": logprobs, "finish": sample.finish_reason})
        return {"samples": samples, "cached_tokens": sum(output.num_cached_tokens or 0 for output in outputs)}

    def _sleep(self) -> Message:
        """Move weights to the host's memory, and drop keys and values. vLLM ignores `sleep` while any part sleeps, and
        `wake_up` of a part that does not."""
        self._wake(list(self._asleep))
        self._llm.sleep(level=1)
        self._asleep = ["weights", "kv_cache"]
        return {"asleep": self._asleep}

    def _wake(self, tags: list[str]) -> Message:
        if tags:
            self._llm.wake_up(tags=tags)
            self._asleep = [part for part in self._asleep if part not in tags]
        return {"asleep": self._asleep}


def begin_reload(worker: Any) -> None:
    """Let the model of one of vLLM's workers (one per GPU) take weights. Layers that get none keep theirs."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    # It warns about every layer without weights (rotary tables, a tied head, unchanged layers) at every push.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    with set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(worker.get_model())


def load_chunk(worker: Any, memory: str, chunk: Message) -> None:
    """Let the model take the tensors of one chunk, of which each worker keeps its part."""
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(worker.vllm_config):
        worker.get_model().load_weights(tensors_in(memory, chunk))


def finish_reload(worker: Any) -> None:
    """Let the model compute with the weights that it has taken."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    with set_current_vllm_config(worker.vllm_config):
        finalize_layerwise_reload(worker.get_model(), worker.model_config)
    repack_embeddings(worker.get_model())


def tensors_in(memory: str, chunk: Message) -> Iterator[tuple[str, Any]]:
    """Yield copies of the tensors of a chunk: vLLM collects a layer's tensors before it loads them, and the next chunk
    overwrites the memory."""
    import torch

    with open(memory, "r+b") as file, mmap.mmap(file.fileno(), chunk["bytes"]) as shared:
        for entry in chunk["tensors"]:
            dtype, count = vars(torch)[entry["dtype"]], math.prod(entry["shape"])
            flat = torch.frombuffer(shared, dtype=dtype, count=count, offset=entry["offset"]).clone()
            yield entry["name"], flat.view(entry["shape"])


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


def __getattr__(name: str) -> Any:
    """The class `SampledDistribution`, made on first access: here, and by its name in vLLM's own processes."""
    if name != "SampledDistribution":
        raise AttributeError(name)
    made = globals()[name] = sampled_distribution(os.environ.get(_VOCABULARY))
    return made


def sampled_distribution(vocabulary: str | None) -> Any:
    """A logits processor class that divides the logits of greedy requests by their own temperature, and rules out all
    ids from `vocabulary` on.

    vLLM's greedy requests have temperature 0, and their log-probabilities are computed from the undivided logits.
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
                logits[:, int(vocabulary) :] = -math.inf
            return logits

    SampledDistribution.__qualname__ = SampledDistribution.__name__  # by which it is found again
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
    # vLLM's processes for several GPUs must not keep the connection open when this one is gone.
    os.register_at_fork(after_in_child=lambda: os.close(descriptor))
    server = EngineServer(channel, memory)
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
