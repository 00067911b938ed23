"""Prompts to token ids: plain text as the tokenizer writes it, conversations through the chat template.

Special tokens are added once: plain text gets what the tokenizer adds by itself (BOS where the model has one) but never
an EOS at the end of a prompt; a chat template writes its own, so the tokenizer adds none to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.data.rows import check_length, describe
from burnish.data.template import ChatFormat, Template
from burnish.errors import DataError
from burnish.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tokens = tuple[int, ...]

AUTO = ChatFormat()
PLAIN = ChatFormat("never")


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, chat: ChatFormat = AUTO) -> tuple[int, ...]:
    """Token ids that the policy continues.

    `auto` sends conversations through the chat template and leaves text plain; `always` makes text a user's turn;
    `never` writes a conversation as its contents, a blank line between turns. The template ends with the beginning of
    the assistant's turn (generation prompt). DataError for a tokenizer without a template, a template that refuses
    the conversation, or a prompt without a single token.
    """
    if uses_template(prompt, chat):
        template = Template(tokenizer, chat.options, prompt.tools)
        written = template.render(turns_of(prompt), where=f"prompt {prompt.id}", add_generation_prompt=True)
        tokens = encode_bare(written, tokenizer)
    else:
        tokens = encode_text(plain_text(prompt), tokenizer)
    if not tokens:
        raise DataError(f"prompt {prompt.id}: the tokenizer makes no token of it", remedy="remove the row")
    return tokens


def uses_template(prompt: Prompt, chat: ChatFormat) -> bool:
    """Whether the chat template writes this prompt."""
    return chat.chat == "always" or (chat.chat == "auto" and prompt.messages is not None)


def encode_response(prompt: Prompt, text: str, tokenizer: PreTrainedTokenizerBase, chat: ChatFormat = AUTO) -> Tokens:
    """Token ids that the policy would have to sample to answer the prompt with this text (no EOS is added)."""
    if uses_template(prompt, chat):
        return encode_bare(text, tokenizer)
    return encode_continuation(encode_prompt(prompt, tokenizer, PLAIN), plain_text(prompt), text, tokenizer)


def encode_continuation(before: Tokens, prompt: str, text: str, tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Tokens of a text that follows on a plain prompt whose tokens are `before`.

    Written in one go with the prompt, the text has no artificial space before it; but where a token spans the seam the
    prompt must stay what the policy will be given, so the text is then encoded by itself.
    """
    joined = encode_text(prompt + text, tokenizer)
    return joined[len(before) :] if joined[: len(before)] == before else encode_bare(text, tokenizer)


def plain_text(prompt: Prompt) -> str:
    """The prompt without a chat template. DataError for what only a template can write: tools and tool calls."""
    if prompt.tools:
        raise DataError(
            f"prompt {prompt.id}: the row offers tools, which only a chat template can write",
            remedy="set data.chat: always (conversations: auto), or rename the column `tools`",
        )
    if prompt.text is not None:
        return prompt.text
    return plain_messages(prompt.messages or (), where=f"prompt {prompt.id}")


def plain_messages(messages: Sequence[Message], *, where: str) -> str:
    """The contents, a blank line between turns. DataError when a turn says more than its content."""
    for message in messages:
        if message.tool_calls or message.reasoning_content:
            what = "tool_calls" if message.tool_calls else "reasoning_content"
            raise DataError(
                f"{where}: a turn of the {message.role} has {what}, which only a chat template can write",
                remedy="set data.chat: auto, or write it into the content",
            )
    return "\n\n".join(message.content for message in messages)


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
    check_length(text)
    try:
        return list(tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
    # Boundary to the tokenizer's own code, which raises bare Exceptions for characters that it does not know.
    except Exception as error:
        raise DataError(
            f"the tokenizer cannot write {describe(text)}: {error}",
            remedy="use a tokenizer that knows these characters, or remove the row",
        ) from error
