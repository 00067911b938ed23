"""Tokenizers: loading, chat templates, and the token ids that end a response or fill a row."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from burnish.config.names import KEEP_THINKING
from burnish.config.schema_data import ModelConfig
from burnish.errors import ModelError
from burnish.machine.memory import uncollected
from burnish.models.chat_templates import check_template, keep_thinking
from burnish.models.folders import nearest_folder_hint, resolve_source
from burnish.models.weight_checks import GENERATION_FILE, checked_token_ids
from burnish.outside.reading import file_problem, reading
from burnish.types import Tokenizer

_CONFIG, _SENTENCEPIECE = "tokenizer_config.json", "tokenizer.model"


def load_tokenizer(config: ModelConfig) -> Tokenizer:
    """The tokenizer of a run, with its chat template replaced if the run file says so. Loads no weights.

    Raises ModelError if there is none or it is of an unknown kind.
    """
    path = config.tokenizer or config.path
    field = "model.tokenizer" if config.tokenizer else "model.path"
    source = resolve_source(path, field=field)
    kind = None if config.trust_remote_code else _kind_of_model(Path(source))
    try:
        with uncollected():
            if kind is not None and _stands_in_its_file(Path(source)):
                from transformers import PreTrainedTokenizerFast

                tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
            else:
                from transformers import AutoTokenizer, PreTrainedConfig  # much slower to import

                tokenizer = AutoTokenizer.from_pretrained(
                    source,
                    revision=None if config.tokenizer else config.revision,
                    trust_remote_code=config.trust_remote_code,
                    config=None if kind is None else PreTrainedConfig(**kind),
                )
    except Exception as error:  # boundary to transformers: a broken tokenizer raises almost anything
        raise ModelError(
            f"{field} {path!r} has no tokenizer that can be loaded ({type(error).__name__}: {_first_line(error)})",
            remedy="put tokenizer.json next to the weights or name its folder in model.tokenizer"
            + nearest_folder_hint(path),
        ) from error
    if not isinstance(tokenizer.get_vocab(), dict) or len(tokenizer) == 0:
        raise ModelError(
            f"{field} {path!r} has a tokenizer without a vocabulary",
            remedy="put tokenizer.json next to the weights or name its folder in model.tokenizer",
        )
    if config.chat_template is not None:
        tokenizer.chat_template = chat_template_for(tokenizer, config.chat_template)
    _check_templates(tokenizer, path, replaced=config.chat_template is not None)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer, with the SentencePiece model that it was made from if its folder has one.

    Transformers leaves that file out, and without it converters to GGUF cut words in other places. With it they read
    added tokens from the configuration alone.
    """
    tokenizer.save_pretrained(folder)
    file = Path(tokenizer.name_or_path, _SENTENCEPIECE)  # without a name it was made in memory
    if tokenizer.name_or_path and file.is_file() and not (folder / _SENTENCEPIECE).exists():
        shutil.copyfile(file, folder / _SENTENCEPIECE)
        settings = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        added = tokenizer.added_tokens_decoder.items()
        settings["added_tokens_decoder"] = {str(number): token.__getstate__() for number, token in added}
        (folder / _CONFIG).write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _stands_in_its_file(folder: Path) -> bool:
    """Return whether the folder names a tokenizer class that takes everything from tokenizer.json. For some model types
    (Qwen 2) transformers ignores that name and takes the model's own class, which splits texts by its own rules: a
    tokenizer that was made for a model, or saved with it, would silently become another one. The folder has passed
    `_kind_of_model`."""
    named = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))["tokenizer_class"]
    return named in ("TokenizersBackend", "PreTrainedTokenizerFast") and (folder / "tokenizer.json").exists()


def _kind_of_model(folder: Path) -> dict[str, object] | None:
    """Return the entries of a model's config that choose its tokenizer class. Given only these, transformers need not
    import the model's own config class, and with it its compiler, which takes longer than everything else here. None if
    the files name no class or bring code: then transformers has to look at the whole config."""
    try:
        model, tokenizer = (
            json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", _CONFIG)
        )
    except (OSError, ValueError):
        return None
    if not isinstance(model, dict) or not isinstance(tokenizer, dict) or "auto_map" in {**model, **tokenizer}:
        return None
    if not isinstance(tokenizer.get("tokenizer_class"), str):
        return None
    return {"name_or_path": str(folder)} | {key: model[key] for key in ("model_type", "model_name") if key in model}


def _check_templates(tokenizer: Tokenizer, path: str, *, replaced: bool) -> None:
    name = "model.chat_template" if replaced else f"the chat template of {path!r}"
    templates = tokenizer.chat_template or {}
    if not isinstance(templates, (str, dict)):
        raise ModelError(f"{name} is {templates!r:.60}, not text", remedy="set model.chat_template")
    tokens = {key: str(token) for key, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    for template in [templates] if isinstance(templates, str) else templates.values():
        check_template(template, tuple(tokens.items()), name, must_parse=replaced)


def chat_template_for(tokenizer: Tokenizer, value: str) -> str | dict[str, str]:
    """Return the template that `model.chat_template` means: for `keep_thinking` the tokenizer's own, changed; else the
    value itself if it contains a brace, or the text of the file that it names. Raises ModelError."""
    if value == KEEP_THINKING:
        own = tokenizer.chat_template
        if isinstance(own, dict):
            return {name: keep_thinking(template) for name, template in own.items()}
        if own is None:
            raise ModelError(
                f"model.chat_template is {KEEP_THINKING}, but the tokenizer has no chat template",
                remedy="give the path of a .jinja file or the template itself",
            )
        return keep_thinking(own)
    if "{" in value:
        return value
    file = Path(value).expanduser()
    problem = file_problem(file)
    if problem is not None and not problem.startswith("does not exist"):
        raise ModelError(f"model.chat_template {value!r:.200} {problem}", remedy="give the path of a .jinja file")
    if problem is not None:
        raise ModelError(
            f"model.chat_template {value!r:.200} is neither Jinja text (no brace in it) nor a file",
            remedy="give the path of a .jinja file or the template itself",
        )
    with reading(f"model.chat_template {value!r}: reading the file", ModelError, remedy="save it as UTF-8 text"):
        return file.read_text(encoding="utf-8")


def check_vocabulary(tokenizer: Tokenizer, num_embeddings: int, *, path: str) -> int:
    """The largest id of the tokenizer. Raises ModelError if the model has no embedding for it."""
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= num_embeddings:
        raise ModelError(
            f"the tokenizer goes up to id {largest} ({token!r}), but model {path!r} has {num_embeddings} embeddings",
            remedy="set model.tokenizer to the tokenizer that the model was trained with",
        )
    return largest


def same_tokens(first: Tokenizer, second: Tokenizer) -> bool:
    """Return whether both map the same tokens to the same ids and have the same end-of-sequence token."""
    return first.get_vocab() == second.get_vocab() and first.eos_token_id == second.eos_token_id


def vocabulary_difference(theirs: Tokenizer, ours: Tokenizer) -> str | None:
    """Describe one of our tokens that has another id, or none, in `theirs`. None if all our ids mean the same there
    (`theirs` may have more tokens)."""
    known = theirs.get_vocab()
    for token, number in sorted(ours.get_vocab().items(), key=lambda item: item[1]):
        if known.get(token) != number:
            there = "no token there" if token not in known else f"id {known[token]} there"
            return f"{token!r} is id {number} here and {there}"
    return None


def require_same_tokens(
    field: str, path: str, theirs: Tokenizer, ours: Tokenizer, *, remedy: str, no_more: bool = False
) -> None:
    """Raise ModelError unless every token of ours has the same id for the model at `path`; with `no_more`, also if that
    model has further ones. Models with other vocabularies cannot be compared token by token."""
    difference = vocabulary_difference(theirs, ours)
    if difference is None and no_more and len(theirs) != len(ours):
        difference = f"it has {len(theirs):,} tokens instead of {len(ours):,}"
    if difference is not None:
        raise ModelError(
            f"{field} {path!r} has a different vocabulary from the trained model, so the two cannot be compared token "
            f"by token: {difference}",
            remedy=remedy,
        )


def eos_token_ids(
    tokenizer: Tokenizer, raw_config: dict[str, Any], generation_config: dict[str, Any]
) -> tuple[int, ...]:
    """Every id that ends a response, according to the generation config, the model's config or the tokenizer.

    Only what the files say counts. `raw_config` must not contain the defaults of a config class, whose eos id may be an
    ordinary token in another vocabulary. Raises ModelError for a value that is not an id.
    """
    nested = raw_config.get("text_config")
    found = [
        *checked_token_ids(generation_config.get("eos_token_id"), GENERATION_FILE),
        *checked_token_ids(raw_config.get("eos_token_id"), "config.json"),
        *checked_token_ids(nested.get("eos_token_id") if isinstance(nested, dict) else None, "config.json"),
        *checked_token_ids(tokenizer.eos_token_id, "the tokenizer"),
    ]
    return tuple(dict.fromkeys(found))


def choose_pad_token_id(
    tokenizer: Tokenizer, eos_ids: tuple[int, ...], *, pad_token: str | None
) -> tuple[int, str | None]:
    """(id to fill rows with, note if it is not the tokenizer's own).

    Rows are right-padded and their lengths are known, so the id never affects a result. It only must not end a
    response. Raises ModelError if `pad_token` is unknown or ends a response.
    """
    if pad_token is not None:
        return _asked_pad(tokenizer, eos_ids, pad_token), None
    own = tokenizer.pad_token_id
    if own is not None and own not in eos_ids:
        return int(own), None
    reason = "has no pad token" if own is None else f"pads with {tokenizer.pad_token!r}, which ends a response"
    unknown = tokenizer.unk_token_id
    first_other = next(number for number in range(len(eos_ids) + 1) if number not in eos_ids)
    chosen = unknown if unknown is not None and unknown not in eos_ids else first_other
    token = tokenizer.convert_ids_to_tokens(int(chosen))
    return int(chosen), f"the tokenizer {reason}; rows are filled with id {chosen} ({token!r}) beyond their length"


def _asked_pad(tokenizer: Tokenizer, eos_ids: tuple[int, ...], pad_token: str) -> int:
    token_id = tokenizer.get_vocab().get(pad_token)
    if token_id is None:
        raise ModelError(
            f"model.pad_token {pad_token!r} is not in the tokenizer's vocabulary", remedy="name an existing token"
        )
    if token_id in eos_ids:
        raise ModelError(
            f"model.pad_token {pad_token!r} (id {token_id}) ends a response (end ids: {list(eos_ids)})",
            remedy="choose another token, or leave model.pad_token out",
        )
    return int(token_id)


def _first_line(error: BaseException) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip()
    return text if len(text) <= 200 else text[:200] + " ..."
