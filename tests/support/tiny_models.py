"""Random models of a few thousand parameters."""

from pathlib import Path
from typing import Any


def save_llama(folder: Path, tokenizer: Any, **sizes: Any) -> Path:
    """Save a random Llama with this tokenizer, and return the folder; further arguments are those of `tiny_llama`."""
    from burnish.models.characters import tiny_llama  # torch, which many tests do without

    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    tiny_llama(vocab_size=len(tokenizer), **(ends | sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
