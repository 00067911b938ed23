"""Make the model folder of this example: the given random Llama, plus the character tokenizer that it lacks.

    python examples/arithmetic_sequence/prepare.py GIVEN_MODEL_FOLDER OUTPUT_FOLDER

The given folder holds config.json, model.safetensors and a tokenizer_config.json that lists the characters
(`char_ords`) and the chat template, but no tokenizer that `transformers` could load.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from burnish.models.characters import character_tokenizer

# Ids 0 to 3 of the given embedding; the characters follow from 4 on.
SEPARATOR, END, PAD, UNKNOWN = "S", "E", "P", "U"


def build_model_folder(given: Path, output: Path) -> None:
    """Copy configuration and weights, and write the tokenizer next to them."""
    described = json.loads((given / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = character_tokenizer(
        [chr(number) for number in described["char_ords"]],
        bos=SEPARATOR,
        eos=END,
        pad=PAD,
        unk=UNKNOWN,
        context_length=described["model_max_length"],
        chat_template=described["chat_template"],
    )
    tokenizer.sep_token = SEPARATOR  # the chat template ends the prompt with it
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(output)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(given / name, output / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    build_model_folder(arguments.given, arguments.output)
    print(f"model and tokenizer -> {arguments.output}")


if __name__ == "__main__":
    main()
