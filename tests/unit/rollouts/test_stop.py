from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from burnish.rollouts.engine import Sampling
from burnish.rollouts.stop import StopConditions
from burnish.types import FinishReason


def letters(tokenizer: Any, text: str) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(letter) for letter in text]


def conditions(tokenizer: Any, *, stop: tuple[str, ...] = (), ids: tuple[int, ...] = ()) -> StopConditions:
    return StopConditions.of(Sampling(9, stop=stop, stop_token_ids=ids), [1], tokenizer)


def test_end_of_sequence_and_asked_ids_stop(tokenizer: Any) -> None:
    stop = conditions(tokenizer, ids=(7,))
    assert stop.finish_reason([5, 1], 9) is FinishReason.STOP
    assert stop.finish_reason([5, 7], 9) is FinishReason.STOP
    assert stop.finish_reason([7, 5], 9) is None


def test_a_stop_wins_over_the_length_limit(tokenizer: Any) -> None:
    stop = conditions(tokenizer)
    assert stop.finish_reason([5, 6], 2) is FinishReason.LENGTH
    assert stop.finish_reason([5, 1], 2) is FinishReason.STOP


def test_a_stop_text_over_several_tokens_stops_at_the_one_that_completes_it(tokenizer: Any) -> None:
    stop = conditions(tokenizer, stop=("END", "##"))
    tokens = letters(tokenizer, "A" * 60 + "EEND")
    reasons = [stop.finish_reason(tokens[: i + 1], 99) for i in range(len(tokens))]
    assert reasons == [None] * (len(tokens) - 1) + [FinishReason.STOP]
    assert stop.response_text(tokens) == "A" * 60 + "EEND"


def test_the_text_is_without_the_token_that_ended_it_and_with_all_others(tokenizer: Any) -> None:
    """Token 0 is the padding, 1 the end. An id that ends responses may also be an ordinary token."""
    stop = conditions(tokenizer, ids=tuple(letters(tokenizer, ".")))
    assert stop.response_text([*letters(tokenizer, "AB"), 1]) == "AB"
    assert stop.response_text([*letters(tokenizer, "A.B."), 0]) == "A.B.<pad>"
    assert stop.response_text([0, *letters(tokenizer, "A"), 0, *letters(tokenizer, "B"), 1]) == "<pad>A<pad>B"
    assert stop.response_text(letters(tokenizer, "A.B.")) == "A.B"
    assert stop.response_text([1]) == ""


def test_a_special_token_may_be_a_stop_text(tokenizer: Any) -> None:
    assert conditions(tokenizer, stop=("<pad>",)).finish_reason([5, 0], 9) is FinishReason.STOP


def test_a_character_of_four_byte_tokens_completes_a_stop_text() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(WordLevel({letter: index for index, letter in enumerate(alphabet)}, unk_token="!"))
    inner.decoder = decoders.ByteLevel()
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.Split("", "isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    byte_ids = {byte: alphabet.index(letter) for byte, letter in bytes_to_letters().items()}
    tokens = [byte_ids[byte] for byte in ("x" * 40 + "🔥🔥🔥").encode()]
    assert tokenizer.decode(tokens[-4:]) == "🔥"
    stop = StopConditions.of(Sampling(999, stop=("🔥🔥🔥",)), [], tokenizer)
    reasons = [stop.finish_reason(tokens[: i + 1], 999) for i in range(len(tokens))]
    assert reasons == [None] * (len(tokens) - 1) + [FinishReason.STOP]


def bytes_to_letters() -> dict[int, str]:
    """The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
