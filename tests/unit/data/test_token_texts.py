"""Texts of single tokens."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from burnish.data.chat import text_of_tokens
from burnish.models.characters import character_tokenizer


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Words that begin with a space, of which decoders of this kind drop the first one of a text."""
    words = ["\u2581a", "\u2581The", "\u2581answer", "s", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", left=1)]  # type: ignore[list-item]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_a_token_keeps_the_space_that_it_begins_with() -> None:
    tokenizer = sentencepiece_like()
    text = text_of_tokens(tokenizer)
    assert tokenizer.decode([1, 2, 3]) == "The answers"
    assert [text(token) for token in (1, 2, 3)] == [" The", " answer", "s"]


def test_characters_are_as_they_are() -> None:
    tokenizer = character_tokenizer("0123456789+=", eos="$", pad="_")
    text = text_of_tokens(tokenizer)
    assert "".join(map(text, tokenizer.encode("1+2=3$"))) == "1+2=3$"
