"""Prompts that come twice are counted, and the first of them named."""

from burnish.config.schema import RmConfig
from burnish.config.schema_data import DataSource
from burnish.data.overlap import find_overlap
from burnish.data.preferences import load_preferences
from burnish.data.prompts import load_prompts
from burnish.data.sft import load_sft_examples
from burnish.data.template import ChatFormat

TRAIN = [("train:0", "a"), ("train:1", "b"), ("train:2", "a"), ("train:3", "c")]


def test_what_is_asked_twice_is_named_with_the_first_row_that_asks_it() -> None:
    found = find_overlap(TRAIN, [("eval:0", "c"), ("eval:1", "d"), ("eval:2", "d"), ("eval:3", "a")])
    assert found.shared == (("eval:0", "train:3"), ("eval:3", "train:0"))
    assert found.repeated_train == (("train:2", "train:0"),)
    assert found.repeated_heldout == (("eval:2", "eval:1"),)
    assert found.lines() == [
        "2 of 4 held-out prompts are training prompts too: eval:0 is train:3, eval:3 is train:0",
        "1 of 4 training prompts repeat an earlier one: train:2 repeats train:0",
        "1 of 4 held-out prompts repeat an earlier one: eval:2 repeats eval:1",
    ]


def test_only_the_first_few_are_named_and_nothing_where_nothing_comes_twice() -> None:
    assert find_overlap([("train:0", "a")], [("eval:0", "b")]).lines() == []
    held_out = [(f"eval:{n}", ("a",) if n == 9 else "a") for n in range(10)]
    assert find_overlap([("train:0", "a")], held_out).lines()[0] == (
        "9 of 10 held-out prompts are training prompts too: eval:0 is train:0, eval:1 is train:0, eval:2 is train:0, "
        "and 6 more"
    )


def test_prompts_are_compared_before_they_are_cut(jsonl, chat_tokenizer) -> None:
    texts = ["one and the end", "two and the end", "one and the end"]
    prompts = [DataSource(path=jsonl(*({"prompt": text} for text in texts), name="prompts.jsonl"))]
    for limit, chat in ((8, ChatFormat()), (20, ChatFormat("always"))):
        cut = load_prompts(prompts, tokenizer=chat_tokenizer, max_prompt_tokens=limit, over_long="truncate", chat=chat)
        assert len(set(cut.prompt_tokens)) == 1
        assert find_overlap(cut.asked()).repeated_train == (("prompts:2", "prompts:0"),)
    documents = [DataSource(path=jsonl(*({"text": text[::-1]} for text in texts), name="texts.jsonl"))]
    examples = load_sft_examples(documents, tokenizer=chat_tokenizer, max_tokens=8, over_long="truncate")
    assert find_overlap(examples.asked()).repeated_train == (("texts:2", "texts:0"),)
    pairs = jsonl(*({"prompt": text, "chosen": "a", "rejected": "b"} for text in texts), name="pairs.jsonl")
    config = RmConfig.model_validate({"model": "m", "data": {"train": pairs, "over_long": "truncate"}})
    comparisons = load_preferences(config.data.train, config, tokenizer=chat_tokenizer, max_tokens=8)
    assert find_overlap(comparisons.asked()).repeated_train == (("pairs:2", "pairs:0"),)


def test_prompts_of_which_nothing_is_left_are_counted(jsonl, chat_tokenizer) -> None:
    source, always = DataSource(path=jsonl({"prompt": "one, x"}, {"prompt": "two"})), ChatFormat("always")
    written = len(chat_tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n"))
    for limit, count in ((written - 2, 2), (written, 2), (written + 1, 0)):
        options = {"max_prompt_tokens": limit, "over_long": "truncate", "chat": always}
        changed = load_prompts([source], tokenizer=chat_tokenizer, **options).understandings[0].changed
        assert [number for reason, number in changed.items() if "left only the text" in reason] == [count] * bool(count)
