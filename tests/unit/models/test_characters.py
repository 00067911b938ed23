import pytest
import torch
from transformers import AutoTokenizer

from burnish.errors import ModelError
from burnish.models.characters import character_tokenizer, tiny_llama


def test_ids_follow_the_stated_order():
    tokenizer = character_tokenizer("0123456789,:", bos="S", eos="E", pad="P", unk="U")
    assert tokenizer("12,3:S")["input_ids"] == [5, 6, 14, 7, 15, 0]
    assert tokenizer.all_special_tokens == ["S", "E", "U", "P"]
    assert tokenizer.convert_tokens_to_ids(["S", "E", "P", "U"]) == [0, 1, 2, 3]


def test_text_round_trip_with_spaces_and_line_breaks():
    tokenizer = character_tokenizer("ab \n", eos="E", pad="P")
    assert tokenizer.decode(tokenizer("a b\n a")["input_ids"]) == "a b\n a"
    assert tokenizer.decode([*tokenizer("ab")["input_ids"], 0, 1], skip_special_tokens=True) == "ab"


def test_survives_saving(tmp_path):
    tokenizer = character_tokenizer("ab ", eos="E", pad="P", unk="U", chat_template="{{ 'x' }}")
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again("a bz")["input_ids"] == tokenizer("a bz")["input_ids"]
    assert again.chat_template == "{{ 'x' }}"
    assert again.pad_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"alphabet": ["a", "bc"]}, "'bc'"), ({"alphabet": "aba"}, "'a'"), ({"alphabet": "aE"}, "'E'")],
)
def test_contradictory_tokens(arguments, word):
    with pytest.raises(ModelError, match=word):
        character_tokenizer(**arguments, eos="E", pad="P")


def test_tiny_llama_is_a_function_of_its_seed():
    arguments = {"vocab_size": 16, "hidden_size": 16, "eos_token_id": 1, "pad_token_id": 2}
    state = torch.random.get_rng_state()
    first, again = tiny_llama(**arguments, seed=5), tiny_llama(**arguments, seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, tiny_llama(**arguments, seed=6).lm_head.weight)


def test_tiny_llama_rejects_crooked_heads():
    with pytest.raises(ModelError, match="num_heads"):
        tiny_llama(vocab_size=16, hidden_size=10, num_heads=4, eos_token_id=1, pad_token_id=2)
