"""Push only the adapters of a policy that trains with LoRA, if vLLM computes the same with them as with merged weights.

vLLM takes an adapter as a folder in peft's layout. Its weights are in memory that the folder only links to, so that
they never touch the disk. Whether vLLM applies it correctly (to all of its layers, at the right scale) is tried once,
with a random adapter, because one that has not been trained yet changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from burnish.models.lora import ADAPTER, adapted_layers, delta_of, saved_adapter
from burnish.models.weights import checkpoint_layout, named_tensors
from burnish.rollouts.vllm.process import EngineProcess, Message, WorkerFault, WorkerLost
from burnish.types import PreTrainedModel

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be set up for."""
TRIAL_SIZE = 0.2
"""Norm of the random adapter's addition to each layer, relative to the layer's weights."""
_TRIAL_TEXTS, _TRIAL_TOKENS = 8, 32
_TOLERANCE, _TOLERANCE_OF_FEW_BITS = 0.02, 0.15
"""Mean distance of log-probabilities that should be equal, relative to the change by the adapter: in float32, and in
types of 16 bits."""


class AdapterPushes:
    """Pushes of this model's adapters to a worker. dtype: vLLM's. seconds: time limit for each request."""

    def __init__(self, model: PreTrainedModel, dtype: str, *, seconds: float) -> None:
        self._model = model
        self._tolerance = _TOLERANCE if dtype == "float32" else _TOLERANCE_OF_FEW_BITS
        self._seconds = seconds
        self._layers = adapted_layers(model)
        self._is_tried = False

    @staticmethod
    def of(model: PreTrainedModel, dtype: str, *, seconds: float) -> AdapterPushes | None:
        """Make the pushes of a model; None if it has no adapters, or larger ones than vLLM takes."""
        pushes = AdapterPushes(model, dtype, seconds=seconds)
        return pushes if 0 < pushes._rank <= RANKS[-1] else None

    @property
    def arguments(self) -> dict[str, object]:
        """Arguments of vllm.LLM."""
        rank = next(rank for rank in RANKS if rank >= self._rank)
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}

    @property
    def _rank(self) -> int:
        return max((layer.r[ADAPTER] for layer in self._layers.values()), default=0)

    def push_base(self, worker: EngineProcess, version: int) -> int:
        """Push the weights without adapters; return their number of bytes."""
        weights = checkpoint_layout(self._model, named_tensors(self._model, adapters=False))
        return worker.push(weights, version, seconds=self._seconds)

    def push(self, worker: EngineProcess, version: int, *, base: int) -> int:
        """Push the adapter to a worker with version `base`; return its number of bytes."""
        return self._push(worker, version, base, saved_adapter(self._model))

    def try_out(self, worker: EngineProcess, vocabulary: int | None, context_length: int) -> str | None:
        """Say why this worker's log-probabilities with an adapter and with merged weights differ; None if they
        agree, or did the last time. Leaves the worker with the weights of the trial."""
        if self._is_tried:
            return None
        size = vocabulary or self._model.config.vocab_size
        random = torch.randint(
            size, (_TRIAL_TEXTS + 1, min(_TRIAL_TOKENS, context_length - 1)), generator=torch.Generator().manual_seed(0)
        )
        *texts, tokens = random.tolist()
        question = {"kind": "score", "version": 0, "texts": texts, "tokens": sorted(set(tokens))}
        values = self._random_values()
        merged = named_tensors(self._model, lambda tensor: values.get(id(tensor), tensor.detach()))
        try:
            worker.push(checkpoint_layout(self._model, merged), 0, seconds=self._seconds)
            expected = self._ask(worker, question)
            self.push_base(worker, 0)
            without = self._ask(worker, question)
            named = {name: values[id(parameter)] for name, parameter in saved_adapter(self._model).items()}
            self._push(worker, 0, 0, named)
            found = self._ask(worker, question)
        except (WorkerFault, WorkerLost) as error:
            return f"of what vLLM did with a random one: {error}"
        changed, apart = (float((expected - other).abs().mean()) for other in (without, found))
        if not apart < self._tolerance * changed:
            return (
                f"in a trial its log-probabilities were {apart:.2g} nats from those of the merged weights, where the "
                f"adapter changed them by {changed:.2g}"
            )
        self._is_tried = True
        return None

    def _push(self, worker: EngineProcess, version: int, base: int, values: Mapping[str, Tensor]) -> int:
        with _in_memory(self._config(), values) as folder:
            message = {"kind": "adapter", "version": version, "base": base, "path": str(folder)}
            worker.ask(message, seconds=self._seconds)
        return sum(tensor.nbytes for tensor in values.values())

    def _config(self) -> dict[str, object]:
        layer = next(iter(self._layers.values()))  # all have the same rank and scale
        return {
            "peft_type": "LORA",
            "r": layer.r[ADAPTER],
            "lora_alpha": layer.lora_alpha[ADAPTER],
            "target_modules": sorted({name.rpartition(".")[2] for name in self._layers}),
            "bias": "none",
        }

    @torch.no_grad()
    def _random_values(self) -> dict[int, Tensor]:
        """Draw numbers for the adapters' parameters, by id, that change each layer by `TRIAL_SIZE`."""
        generator, values = torch.Generator().manual_seed(0), {}
        for layer in self._layers.values():
            own = [part for name, part in layer.named_parameters() if name.startswith("lora_")]
            for part in own:
                values[id(part)] = torch.randn(part.shape, generator=generator).to(part)
            added = delta_of(layer, lambda part: values[id(part)])
            weights = (layer.get_base_layer().weight, added)
            norms = [float(torch.linalg.vector_norm(matrix.float())) for matrix in weights]
            values[id(own[-1])] *= TRIAL_SIZE * norms[0] / norms[1]
        return values

    def _ask(self, worker: EngineProcess, question: Message) -> Tensor:
        return torch.tensor(worker.ask(question, seconds=self._seconds)["logprobs"])


@contextlib.contextmanager
def _in_memory(config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Iterator[Path]:
    """A folder with an adapter, whose weights are in memory of this process."""
    from safetensors.torch import save

    memory = os.memfd_create("burnish-adapter")
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))
        with tempfile.TemporaryDirectory(prefix="burnish-adapter-") as folder:
            (Path(folder) / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
            (Path(folder) / "adapter_model.safetensors").symlink_to(f"/proc/{os.getpid()}/fd/{memory}")
            yield Path(folder)
    finally:
        os.close(memory)
