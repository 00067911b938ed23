"""Prompts to token ids: plain text as the tokenizer writes it, conversations through the chat template.

Special tokens are added once: plain text gets what the tokenizer adds by itself (BOS where the model has one) but never
an EOS at the end of a prompt; a chat template writes its own, so the tokenizer adds none to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jinja2

from burnish.data.rows import describe
from burnish.errors import DataError
from burnish.reading import reason_of
from burnish.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Literal["auto", "always", "never"]
Tokens = tuple[int, ...]


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, chat: Chat = "auto") -> tuple[int, ...]:
    """Token ids that the policy continues.

    `auto` sends conversations through the chat template and leaves text plain; `always` makes text a user's turn;
    `never` writes a conversation as its contents, a blank line between turns. The template ends with the beginning of
    the assistant's turn (generation prompt). DataError for a tokenizer without a template, a template that refuses
    the conversation, or a prompt without a single token.
    """
    if chat == "never" or (chat == "auto" and prompt.messages is None):
        tokens = encode_text(plain_text(prompt), tokenizer)
    else:
        tokens = encode_conversation(turns_of(prompt), tokenizer, where=f"prompt {prompt.id}")
    if not tokens:
        raise DataError(f"prompt {prompt.id}: the tokenizer makes no token of it", remedy="remove the row")
    return tokens


def encode_response(prompt: Prompt, text: str, tokenizer: PreTrainedTokenizerBase, chat: Chat = "auto") -> Tokens:
    """Token ids that the policy would have to sample to answer the prompt with this text (no EOS is added)."""
    if chat == "never" or (chat == "auto" and prompt.messages is None):
        return encode_continuation(encode_prompt(prompt, tokenizer, "never"), plain_text(prompt), text, tokenizer)
    return encode_bare(text, tokenizer)


def encode_continuation(before: Tokens, prompt: str, text: str, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Tokens of a text that follows on a plain prompt whose tokens are `before`.

    Written in one go with the prompt, the text has no artificial space before it; but where a token spans the seam the
    prompt must stay what the policy will be given, so the text is then encoded by itself.
    """
    joined = encode_text(prompt + text, tokenizer)
    return joined[len(before) :] if joined[: len(before)] == before else encode_bare(text, tokenizer)


def plain_text(prompt: Prompt) -> str:
    """The prompt without a chat template."""
    if prompt.text is not None:
        return prompt.text
    return "\n\n".join(message.content for message in prompt.messages or ())


def turns_of(prompt: Prompt) -> tuple[Message, ...]:
    """The prompt as a conversation; plain text is one turn of the user's."""
    return prompt.messages if prompt.messages is not None else (Message("user", prompt.text or ""),)


def encode_text(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Tokens of plain text with the specials that the tokenizer puts before it, but none after it."""
    tokens = _ids(text, tokenizer, add_special_tokens=True)
    if not tokens or tokens[-1] not in tokenizer.all_special_ids:
        return tuple(tokens)
    bare = list(encode_bare(text, tokenizer))
    added = len(tokens) - len(bare)
    for start in range(added + 1):
        if tokens[start : start + len(bare)] == bare:
            return tuple(tokens[: start + len(bare)])
    # A tokenizer that writes text differently beside its specials: keep its own way, the EOS apart.
    while added > 0 and tokens and tokens[-1] == tokenizer.eos_token_id:
        tokens.pop()
    return tuple(tokens)


def encode_bare(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Tokens of the text alone, nothing added. Length is judged elsewhere, so the tokenizer need not warn of it."""
    return tuple(_ids(text, tokenizer, add_special_tokens=False))


def _ids(text: str, tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool) -> list[int]:
    try:
        return list(tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
    # Boundary to the tokenizer's own code, which raises bare Exceptions for characters that it does not know.
    except Exception as error:
        raise DataError(
            f"the tokenizer cannot write {describe(text)}: {error}",
            remedy="use a tokenizer that knows these characters, or remove the row",
        ) from error


def encode_conversation(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, *, where: str
) -> tuple[int, ...]:
    """Tokens of the conversation and of the generation prompt after it."""
    return encode_bare(render(messages, tokenizer, where=where, add_generation_prompt=True), tokenizer)


def render(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, *, where: str, add_generation_prompt: bool
) -> str:
    """The conversation as the chat template writes it. DataError without a template, or when it refuses."""
    turns = [message.to_dict() for message in messages]
    return with_template(
        tokenizer,
        where,
        lambda: tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=add_generation_prompt),
    )


def with_template(tokenizer: PreTrainedTokenizerBase, where: str, call: Callable[[], Any]) -> Any:
    """The result of a call that uses the tokenizer's chat template, its failures told as DataError."""
    require_chat_template(tokenizer, where)
    try:
        return call()
    except Exception as error:  # boundary: a template is a program that came with the model
        said = str(error) if isinstance(error, jinja2.TemplateError) else reason_of(error)
        raise DataError(
            f"{where}: the chat template refuses this conversation: {said}",
            remedy="change the turns (roles, order, system message) or set model.chat_template",
        ) from error


def require_chat_template(tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """DataError when the tokenizer has no chat template."""
    if not tokenizer.chat_template:
        raise DataError(
            f"{where}: this is a conversation, but the tokenizer {tokenizer.name_or_path or '(unnamed)'} has no chat "
            "template",
            remedy="set model.chat_template (inline or a file), or data.chat: never to write turns as plain text",
        )
