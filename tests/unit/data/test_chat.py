"""Prompts to tokens: special tokens once, chat templates, and clear words where there is none."""

from itertools import product
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from burnish.data import chat as chats
from burnish.data.chat import Encoder, asked_prompt, encode_prompt, encode_response, encode_text, written
from burnish.data.template import Chat, ChatFormat
from burnish.errors import DataError
from burnish.types import Message, Prompt

TALK = Prompt("p:0", messages=(Message("system", "S"), Message("user", "Q")))
TEXT = Prompt("p:1", text="Q")


def test_auto_templates_conversations_only(chat_tokenizer) -> None:
    written = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    assert chat_tokenizer.decode(encode_prompt(TALK, chat_tokenizer)) == written
    assert chat_tokenizer.decode(encode_prompt(TEXT, chat_tokenizer)) == "Q"


def test_always_and_never(chat_tokenizer) -> None:
    as_turn = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    assert chat_tokenizer.decode(encode_prompt(TEXT, chat_tokenizer, ChatFormat("always"))) == as_turn
    assert chat_tokenizer.decode(encode_prompt(TALK, chat_tokenizer, ChatFormat("never"))) == "S\n\nQ"


def test_plain_text_gets_bos_but_never_eos(new_tokenizer) -> None:
    for bos, eos in product((False, True), repeat=2):
        tokenizer = new_tokenizer(bos=bos, eos=eos)
        assert tokenizer.decode(encode_text("Q", tokenizer)) == ("<s>Q" if bos else "Q")


WORDS = st.lists(st.sampled_from(["Q", " é", "\n", "<s>", "</s>", "<|im_end|>", "\N{BELL}"]), min_size=1).map("".join)
TALKS = st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), WORDS), min_size=1).map(tuple)


@settings(max_examples=40)
@given(asked=st.lists(WORDS | TALKS), bos=st.booleans(), eos=st.booleans(), chat=st.sampled_from(get_args(Chat)))
def test_prompts_have_the_same_tokens_together_as_alone(new_tokenizer, chatml, asked, bos, eos, chat) -> None:
    tokenizer = new_tokenizer(bos=bos, eos=eos, template=chatml)
    prompts = [asked_prompt(f"p:{n}", one) for n, one in enumerate(asked)]
    alone = [encode_prompt(prompt, tokenizer, ChatFormat(chat)) for prompt in prompts]
    encoder, texts = Encoder(tokenizer), [written(prompt, tokenizer, ChatFormat(chat)) for prompt in prompts]
    encoder.announce(texts)
    assert encoder._known.keys() == set(texts)
    assert [encoder.prompt("p", text) for text in texts] == alone


def test_few_long_texts_are_encoded_together(new_tokenizer, monkeypatch) -> None:
    """The third row has more characters than are held at a time, so nothing after it is encoded with it."""
    monkeypatch.setattr(chats, "_CHARACTERS_AT_ONCE", 10)
    encoder, rows = Encoder(new_tokenizer(bos=True, eos=True)), ["Q", "é", "Q" * 11, "QQ"]
    held = [(row, {text for text, _ in encoder._known}) for row in encoder.announced(rows, lambda row: [(row, False)])]
    assert held == [(row, set(rows[:3])) for row in rows[:3]] + [("QQ", {"QQ"})]


def test_an_eos_that_the_text_itself_has_stays(new_tokenizer) -> None:
    tokenizer = new_tokenizer(bos=True, eos=True)
    assert tokenizer.decode(encode_text("Q</s>", tokenizer)) == "<s>Q</s>"


def test_a_response_has_the_tokens_that_follow_on_the_prompt(new_tokenizer, chatml) -> None:
    """No BOS and no EOS of its own, whatever the tokenizer adds to a text."""
    for bos, prompt in product((False, True), (TEXT, TALK)):
        tokenizer = new_tokenizer(bos=bos, eos=True, template=chatml)
        assert tokenizer.decode(encode_response(prompt, " yes", tokenizer)) == " yes"


def test_a_response_after_a_merge_over_the_seam_is_encoded_by_itself() -> None:
    """The prompt `a` and the response `b` would be one token `ab` in one go, but the policy is given `a`."""
    core = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    assert encode_response(Prompt("p:2", text="a"), "b", tokenizer) == (1,)
    assert encode_response(Prompt("p:3", text="b"), "ab", tokenizer) == (2,)


def test_a_template_with_bos_gets_no_second_one(new_tokenizer, chatml) -> None:
    tokenizer = new_tokenizer(bos=True, template="{{ bos_token }}" + chatml)
    tokens = encode_prompt(TALK, tokenizer)
    assert tokens[0] == tokenizer.bos_token_id
    assert tokens.count(tokenizer.bos_token_id) == 1


def test_no_template_is_told_with_the_knob(plain_tokenizer) -> None:
    with pytest.raises(DataError, match=r"prompt p:0: .*has no chat template\n.*model\.chat_template"):
        encode_prompt(TALK, plain_tokenizer)
    with pytest.raises(DataError, match="has no chat template"):
        encode_prompt(TEXT, plain_tokenizer, ChatFormat("always"))


def test_a_template_that_refuses_is_told(new_tokenizer) -> None:
    tokenizer = new_tokenizer(template="{{ raise_exception('System role not supported') }}")
    with pytest.raises(DataError, match=r"prompt p:0: the chat template refuses.*System role not supported"):
        encode_prompt(TALK, tokenizer)


def test_a_character_that_the_tokenizer_does_not_know_is_told() -> None:
    core = Tokenizer(models.WordLevel({"a": 0}, unk_token=""))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    with pytest.raises(DataError, match="the tokenizer cannot encode str 'ab'"):
        encode_text("ab", PreTrainedTokenizerFast(tokenizer_object=core))


def test_a_prompt_without_a_token_is_an_error(plain_tokenizer) -> None:
    with pytest.raises(DataError, match="zero tokens"):
        encode_prompt(Prompt("p:2", text=""), plain_tokenizer)
