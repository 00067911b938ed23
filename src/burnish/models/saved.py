"""Checks of a saved policy: generation ends where responses did, and transformers loads the same model."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from burnish.config.schema_data import ModelConfig
from burnish.forward.batch import Batch
from burnish.forward.logprobs import plain_token_scores
from burnish.machine.resources import free_memory
from burnish.models.loading import LoadedModel, sampled_ids
from burnish.models.loading_bars import without_loading_bars
from burnish.models.roles import Policy
from burnish.models.weight_checks import GENERATION_FILE, checked_token_ids

LARGEST_BYTES = 20 << 30
"""Models with larger files are not loaded again: it would take minutes."""
_ROWS, _PROMPT, _RESPONSE, _SPECIAL = 2, 2, 14, 4
_TEXT = "Two  words, 12 + 3:\n\téa 数学 _x"
_TOLERANCE, _ROUNDED_TOLERANCE = 5e-3, 4e-2
"""Tolerances of the mean log-probability; the second for weights with fewer bits than float32."""


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A policy as `from_pretrained` will see it. further_ends: ids that end responses in training besides the ones in
    the model's files. temperature: divides the logits in the policy's own passes."""

    config: ModelConfig
    loaded: LoadedModel
    policy: Policy
    further_ends: Sequence[int]
    temperature: float = 1.0

    def write_ends(self, folder: Path) -> None:
        """Let generation_config.json name all end ids; one that does so already stays as it is."""
        file = folder / GENERATION_FILE
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        known = checked_token_ids(content.get("eos_token_id"), GENERATION_FILE)
        ids = list(dict.fromkeys([*known, *self.loaded.eos_token_ids, *self.further_ends]))
        if ids != known:
            content["eos_token_id"] = ids[0] if len(ids) == 1 else ids
            file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def problem(self, folder: Path) -> str | None:
        """A sentence about a folder whose model or tokens differ from the policy's, or why they were not compared. None
        if they agree."""
        return self._other_model(folder) or self._other_tokens(folder)

    def _other_model(self, folder: Path) -> str | None:
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        free = free_memory()
        if size > LARGEST_BYTES or (free is not None and 2 * size > free):
            return f"the saved policy was not loaded again to compare it: its files have {size / 1e9:.1f} GB"
        batch = self._batch()
        if batch is None:
            return None
        try:
            found = self._loaded_again(folder, batch)
        except Exception as error:  # noqa: BLE001  boundary to transformers, which may raise anything
            text = " ".join(str(error).split())[:200]
            return f"warning: transformers cannot load {folder} again ({type(error).__name__}: {text})"
        own = self.policy.logprobs(batch).logprobs_BT.cpu().double()
        difference, size_of_own = float((found - own).abs().mean()), float(own.abs().mean())
        is_exact = self.config.quantization is None and self.loaded.model.dtype == torch.float32
        tolerance = _TOLERANCE if is_exact else _ROUNDED_TOLERANCE
        if difference <= tolerance * max(1.0, size_of_own):  # false for numbers that are not finite
            return None
        return (
            f"warning: {folder}, loaded again with transformers, is not the model that is trained: log-probabilities "
            f"of {_ROWS * _RESPONSE} tokens differ by {difference:.3g} on average. Training goes on, and resumes from "
            "its own files; do not use the folder with other programs before this is understood"
        )

    def _other_tokens(self, folder: Path) -> str | None:
        """A sentence about a folder whose tokenizer encodes a text differently in transformers; None if it does not."""
        from transformers import AutoTokenizer

        own = self.loaded.tokenizer
        try:
            expected = own.encode(_TEXT, add_special_tokens=False)
        except Exception:  # noqa: BLE001  boundary to tokenizers: one without a token for what is unknown cannot say
            return None
        try:
            found = AutoTokenizer.from_pretrained(folder, trust_remote_code=self.config.trust_remote_code)
            same = found.encode(_TEXT, add_special_tokens=False) == expected
        except Exception as error:  # noqa: BLE001  boundary to transformers, which may raise anything
            text = " ".join(str(error).split())[:200]
            return f"warning: transformers cannot load the tokenizer of {folder} ({type(error).__name__}: {text})"
        if same:
            return None
        return (
            f"warning: AutoTokenizer reads the tokenizer of {folder} as {type(found).__name__}, because of the type of "
            "its model, and splits a text into other tokens. Burnish reads it as it was saved; with other programs, "
            "use PreTrainedTokenizerFast.from_pretrained"
        )

    def _batch(self) -> Batch | None:
        """Make rows of evenly spread ids, without the first ones, which are mostly special. None if they do not fit the
        vocabulary or the context."""
        last, length = sampled_ids(self.loaded) - 1, _PROMPT + _RESPONSE
        if last < _SPECIAL or self.loaded.context_length < length:
            return None
        rows = torch.linspace(_SPECIAL, last, _ROWS * length).long().view(_ROWS, length).tolist()
        return Batch.of_texts([(row[:_PROMPT], row[_PROMPT:]) for row in rows], pad_token_id=0)

    @torch.no_grad()
    def _loaded_again(self, folder: Path, batch: Batch) -> Tensor:
        """Log-probabilities of the batch's responses by the folder's model, on the CPU, as anybody would load it."""
        from transformers import AutoModelForCausalLM

        with without_loading_bars():
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype="auto", trust_remote_code=self.config.trust_remote_code
            )
        tokens_BS = torch.cat((batch.prompt_tokens, batch.response_tokens), dim=1)
        logits = model.eval()(tokens_BS, use_cache=False).logits[:, _PROMPT - 1 : -1, : self.loaded.vocabulary]
        scores, _ = plain_token_scores(
            logits.flatten(0, 1), batch.response_tokens.flatten(), temperature=self.temperature
        )
        del model
        gc.collect()  # its memory is needed for the next step
        return scores.view(_ROWS, _RESPONSE).double()
