"""Every column that carries part of the prompt is read, refused or named."""

import datasets
import pytest

from burnish.config.schema import RmConfig
from burnish.config.schema_data import DataSource
from burnish.data.overlap import find_overlap
from burnish.data.preferences import count_comparisons, load_preferences
from burnish.data.prompts import load_prompts, read_prompts
from burnish.data.sft import load_sft_examples
from burnish.errors import DataError

ASKED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"
EARLIER = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]}

MESSAGES = {"history": SHAREGPT["conversations"]}
BRIEF = {"system": "Be brief."}
PAIR = {"chosen": "It is a", "rejected": "It is b"}
TURNS = {name: {"from": "gpt", "value": name} for name in PAIR}


def prompts_everywhere(row: dict, jsonl, tokenizer, **fields: object) -> dict[str, str]:
    """The prompt of a row as text, by the way it enters."""
    source = DataSource(path=jsonl(row), **fields)
    found = {"rl": tokenizer.decode(load_prompts([source], tokenizer=tokenizer).prompt_tokens[0])}
    if "chosen" in row:
        config = RmConfig.model_validate({"model": "m", "data": {"train": [source]}})
        assert count_comparisons([source], config) == 1
        (example,) = load_preferences([source], config, tokenizer=tokenizer, max_tokens=1_000).examples
        return found | {"rm": tokenizer.decode(example.prompt_tokens)}
    (example,) = load_sft_examples([source], tokenizer=tokenizer).examples
    return found | {"sft": tokenizer.decode(example.tokens[: example.loss_mask.index(True)])}


@pytest.mark.parametrize(
    ("row", "fields", "prompt"),
    [
        (SHAREGPT | BRIEF, {}, SYSTEM + ASKED),
        (SHAREGPT | BRIEF, {"system_prompt": "other"}, SYSTEM + ASKED),
        (SHAREGPT | {"system": ""}, {"system_prompt": "Be brief."}, SYSTEM + ASKED),
        (SHAREGPT | {"persona": "Be brief."}, {"columns": {"system": "persona"}}, SYSTEM + ASKED),
        ({"system_prompt": "Be brief.", "question": "Hi", "response": "Yes"}, {}, SYSTEM + ASKED),
        ({"instruction": "Hi", "input": "", "output": "Yes"} | BRIEF, {}, SYSTEM + ASKED),
        ({"instruction": "Hi", "input": "", "output": "Yes", "history": [["Q", "A"]]}, {}, EARLIER + ASKED),
        ({"prompt": "Hi", "completion": "Yes", "history": '[["Q", "A"]]'} | BRIEF, {}, SYSTEM + EARLIER + ASKED),
        ({"prompt": "Hi", "completion": "Y"} | MESSAGES, {}, ASKED + "Yes<|im_end|>\n" + ASKED),
        ({"instruction": "Hi", "input": "you", "output": "Yes", "system": "", "history": []}, {}, "Hi\nyou"),
        ({"question": "Hi", "context": "you", "answer": "Yes"}, {"columns": {"input": "context"}}, "Hi\nyou"),
        ({"instruction": "Hi", "input": "you", "output": "Yes"}, {"prompt_template": "{instruction}!"}, "Hi!"),
        ({"instruction": "Hi", "system": "S", "output": "Yes"}, {"prompt_template": "{system}: {prompt}"}, "S: Hi"),
        ({"conversations": SHAREGPT["conversations"][:1]} | BRIEF | TURNS, {}, SYSTEM + ASKED),
        (SHAREGPT | TURNS, {}, ASKED),
        ({"instruction": "Hi", "input": "you"} | PAIR, {}, "Hi\nyou"),
        ({"question": "Hi"} | BRIEF | PAIR, {}, SYSTEM + ASKED),
        ({"question": "Hi"} | BRIEF | TURNS, {}, SYSTEM + ASKED),
        ({"question": "Hi"} | TURNS, {}, ASKED),
        ({"messages": SHAREGPT["conversations"][:1], "answer": "Y"}, {"columns": {"completion": "answer"}}, ASKED),
        ({"q": "Hi"} | TURNS, {"columns": {"prompt": "q"}}, ASKED),
    ],
)  # fmt: skip
def test_what_is_part_of_the_prompt_is_in_it(jsonl, chat_tokenizer, row: dict, fields: dict, prompt: str) -> None:
    found = prompts_everywhere(row, jsonl, chat_tokenizer, **fields)
    assert found == dict.fromkeys(found, prompt)


def test_rows_that_differ_in_their_system_prompt_are_not_repeats(jsonl, chat_tokenizer) -> None:
    source = DataSource(path=jsonl(*(SHAREGPT | {"system": system} for system in ("a", "b", "a"))))
    for load in (load_prompts, load_sft_examples):
        found = load([source], tokenizer=chat_tokenizer)
        assert find_overlap(found.asked()).repeated_train == (("rows:2", "rows:0"),)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (SHAREGPT | {"system": ["S"]}, "column 'system' (system) holds list ['S'], not text"),
        ({"messages": [{"role": "system", "content": "A"}], "system": "B"}, "have different system prompts"),
        ({"messages": [{"role": "user", "content": "Q"}], "persona": "B"}, "input is only for text prompts"),
        ({"prompt": "Q", "completion": "A", "history": [["a"]]}, "(history) holds list [['a']], not pairs of texts"),
        ({"prompt": "Q", "completion": "A", "history": "earlier"}, "'history' is text but not a JSON list of pairs"),
    ],
)  # fmt: skip
def test_context_that_cannot_be_read_is_refused(jsonl, chat_tokenizer, row: dict, words: str) -> None:
    source = DataSource(path=jsonl(row), columns={"input": "persona"} if "persona" in row else {})
    with pytest.raises(DataError, match=r"rows\.jsonl:1: ") as caught:
        load_prompts([source], tokenizer=chat_tokenizer)
    assert words in str(caught.value)


def test_columns_that_look_like_part_of_the_prompt_are_named(jsonl) -> None:
    def notes(*rows: dict, **fields: object) -> list[str]:
        lines = read_prompts([DataSource(path=jsonl(*rows), **fields)])[1][0].lines()
        return [line for line in lines if "looks like part of the prompt" in line]

    row = {"question": "Why?", "context": "Because.", "choices": ["a"], "id": "x", "system": "", "system_message": "Hi"}
    (line,) = notes(row)
    assert line == "  not used, but looks like part of the prompt: context, choices, system_message"
    assert notes({"messages": [{"role": "user", "content": 'Say "x"'}], "prompt": 'Say "x"'}) == []
    assert notes({"text": "It is so.", "system": "so"}, {"text": "a", "image_url": ""}) == []
    assert notes({"prompt": "Q", "context": None}, {"prompt": "Q", "context": ""}) == []


def test_columns_that_look_like_a_rating_or_the_domain_are_named(jsonl, chat_tokenizer) -> None:
    asked = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    rows = [{"prompt": asked, "completion": "B", "label": good, "data_source": f"s{good}"} for good in (True, False)]
    (read,) = load_sft_examples([DataSource(path=jsonl(*rows))], tokenizer=chat_tokenizer).understandings
    looks = [hint.removeprefix("not used, but looks like ").partition(" (")[0] for hint in read.hints]
    assert looks == ["a rating: label", "the domain: data_source"]
    assert read.changed == {"prompts that end with the assistant's turn, so the completion is learned as another": 2}
    assert read_prompts([DataSource(path=jsonl(*rows), domain="d")])[1][0].hints == ()


PICTURE = {"bytes": b"\xff\xd8", "path": None}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("images", ["a.jpg"]), ("image", "a.jpg"), ("videos", ["a.mp4"]), ("Audio", "a.wav"), ("image_2", "b.jpg")),
        ("multi_modal_data", {"image": ["a.jpg"]}),
        *(("images", [PICTURE]), ("image", PICTURE), ("photo", PICTURE), ("scans", [PICTURE, PICTURE])),
    ],
)
def test_pictures_and_sounds_are_refused_wherever_they_are(jsonl, chat_tokenizer, tmp_path, name: str, value) -> None:
    row = {"messages": [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "A"}], name: value}
    saved = datasets.Dataset.from_list([row])
    saved.to_parquet(tmp_path / "rows.parquet")
    if value is PICTURE:  # it is not decoded, which would need another package
        saved = saved.cast_column(name, datasets.Image())
    saved.save_to_disk(tmp_path / "saved")
    paths = [str(tmp_path / "rows.parquet"), str(tmp_path / "saved")] + ([] if "bytes" in str(value) else [jsonl(row)])
    for path in paths:
        for load in (load_sft_examples, load_prompts):
            with pytest.raises(DataError, match=rf"row.*: column '{name}' holds pictures, video or sound"):
                load([DataSource(path=path)], tokenizer=chat_tokenizer)
        with pytest.raises(DataError, match=f"column '{name}' holds pictures"):
            read_prompts([DataSource(path=path)])


def test_columns_for_pictures_with_nothing_in_them_are_no_pictures(jsonl, chat_tokenizer) -> None:
    path = jsonl({"prompt": "Q", "images": []}, {"prompt": "Q", "images": None}, {"prompt": "Q", "images": [None]})
    assert len(load_prompts([DataSource(path=path)], tokenizer=chat_tokenizer)) == 3
