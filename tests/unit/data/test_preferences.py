"""Comparisons from rows of every layout; each kind of bad row is an error that names file and line."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from burnish.config.schema import RmConfig
from burnish.config.schema_data import DataSource
from burnish.data.preferences import PreferenceSet, is_held_out, load_preferences
from burnish.errors import DataError

Jsonl = Callable[..., str]
HUMAN = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: How are you?\n\nAssistant:"


MESSAGE = {"role": "assistant", "content": "a"}


def load(source: str | DataSource, tokenizer: PreTrainedTokenizerFast, **options: object) -> PreferenceSet:
    """With the options of a run file; those of `data` are named `data_chat` and so on."""
    data = {key.removeprefix("data_"): options.pop(key) for key in [*options] if key.startswith("data_")}
    config = RmConfig.model_validate({"model": "m", "data": {"train": [], **data}, "max_tokens": 100_000, **options})
    sources = [DataSource(path=source) if isinstance(source, str) else source]
    return load_preferences(sources, config, tokenizer=tokenizer, max_tokens=config.max_tokens)


def decoded(found: PreferenceSet, tokenizer: PreTrainedTokenizerFast, row: int = 0) -> tuple[str, list[str]]:
    example = found.examples[row]
    return tokenizer.decode(example.prompt_tokens), [tokenizer.decode(tokens) for tokens in example.responses_tokens]


def test_transcripts_are_cut_behind_the_last_common_assistant(jsonl, plain_tokenizer) -> None:
    path = jsonl({"chosen": HUMAN + " Fine.", "rejected": HUMAN + " Find out."})
    found = load(path, plain_tokenizer)
    assert decoded(found, plain_tokenizer) == (HUMAN, [" Fine.</s>", " Find out.</s>"])
    assert found.examples[0].best == 0
    assert found.examples[0].conversation == "hi"


def test_transcripts_become_turns_where_the_chat_template_is_asked_for(jsonl, chat_tokenizer) -> None:
    path = jsonl({"chosen": HUMAN + " Fine.", "rejected": HUMAN + " Bad."})
    turns = (("user", "Hi"), ("assistant", "Hello."), ("user", "How are you?"))
    prompt = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns) + "<|im_start|>assistant\n"
    found = decoded(load(path, chat_tokenizer, data_chat="always"), chat_tokenizer)
    assert found == (prompt, ["Fine.<|im_end|>", "Bad.<|im_end|>"])


def test_plain_text_shares_whole_words(jsonl, plain_tokenizer) -> None:
    path = jsonl({"chosen": "Two plus two is four", "rejected": "Two plus two is forty"})
    assert decoded(load(path, plain_tokenizer), plain_tokenizer) == ("Two plus two is", [" four</s>", " forty</s>"])


def test_an_explicit_prompt_and_no_eos(jsonl, plain_tokenizer) -> None:
    path = jsonl({"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": 2})
    found = load(path, plain_tokenizer, append_eos=False)
    assert decoded(found, plain_tokenizer) == ("2+2=", ["4", "5"])
    assert found.examples[0].margin == 2.0


def test_conversations_share_their_first_turns(jsonl, chat_tokenizer) -> None:
    asked = [{"role": "user", "content": "Hi"}]
    good, bad = ([*asked, {"role": "assistant", "content": text}] for text in ("Hello!", "What?"))
    found = load(jsonl({"chosen": good, "rejected": bad, "prompt": "Hi"}), chat_tokenizer)
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert decoded(found, chat_tokenizer) == (prompt, ["Hello!<|im_end|>", "What?<|im_end|>"])


def test_what_a_template_does_to_conversations_is_told(jsonl, chat_tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for examples of `sft` and prompts of `rl`: once for each row, however many responses it has."""
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}"
    opening = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    monkeypatch.setattr(chat_tokenizer, "chat_template", turns + opening)
    asked = [{"role": "user", "content": "Hi", "mood": "good"}]
    good, bad = ([*asked, {"role": "assistant", "content": text}] for text in ("Hello!", "What?"))
    found = load(jsonl({"chosen": good, "rejected": bad}), chat_tokenizer)
    lines = "\n".join(found.lines())
    assert "changed: 1 conversations with fields that the chat template does not read: mood" in lines
    assert "changed: 1 conversations that the chat template does not end" in lines
    assert sum(found.last_tokens().values()) == 2


def test_candidates_with_a_best_one(jsonl, plain_tokenizer) -> None:
    found = load(jsonl({"prompt": "p", "responses": ["a", "b", "c"], "best": 2}), plain_tokenizer)
    assert found.examples[0].best == 2
    assert len(found.examples[0].responses_tokens) == 3


def test_rated_conversations(jsonl, chat_tokenizer) -> None:
    """The last answer, or the completion beside them, is rated; a JSON string is read as its turns are."""
    turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    named = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]
    rows = (
        {"messages": turns, "label": True},
        {"messages": json.dumps(turns), "label": True},
        {"conversations": named, "kto_tag": 1},
        {"messages": turns[:1], "completion": "A", "label": True},
    )
    first, *others = (load(jsonl(row), chat_tokenizer).examples[0] for row in rows)
    assert first.good is True
    assert [others.count(first), len(others)] == [3, 3]
    for messages, words in ((turns[:1], "response 0 is empty"), (turns[1:], "the prompt is empty")):
        with pytest.raises(DataError, match=words):
            load(jsonl({"messages": messages, "label": True}), chat_tokenizer)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "p", "chosen": "a", "rejected": "b", "margin": 1.5, "tie": False, "weight": 2.0},
        {"prompt": "p", "responses": ["a", "b"], "best": 1},
        {"messages": [{"role": "user", "content": "p"}], "responses": [[MESSAGE], "b"], "best": 0, "weight": 0.5},
        {"prompt": "p", "completion": "a", "label": True},
        {"messages": [{"role": "user", "content": "p"}, MESSAGE], "label": False, "weight": 3},
    ],
)
def test_csv_holds_comparisons_as_text(jsonl, chat_tokenizer, row: dict) -> None:
    """Numbers and truth values as Python prints them, lists as JSON; an empty cell is no margin."""
    cells = {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in row.items()}
    path = Path(jsonl(row)).with_name("rows.csv")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([cells, cells.values()])
    assert load(str(path), chat_tokenizer).examples == load(jsonl(row), chat_tokenizer).examples
    path.write_text("prompt,chosen,rejected,margin\np,a,b,\n")
    assert load(str(path), chat_tokenizer).examples[0].margin is None


def test_token_labels_of_2019_lose_their_padding(jsonl, plain_tokenizer) -> None:
    row = {"query": [7, 8, 999], **{f"sample{i}": [9, 10 + i] for i in range(4)}, "best": 3}
    found = load(jsonl(row, name="labels.json"), plain_tokenizer, label_pad_token_id=999)
    (example,) = found.examples
    responses = ((9, 10), (9, 11), (9, 12), (9, 13))
    assert (example.prompt_tokens, example.responses_tokens, example.best) == ((7, 8), responses, 3)
    with pytest.raises(DataError, match=r"token id 999.*tokens\n.*label_pad_token_id: 999"):
        load(jsonl(row, name="labels.json"), plain_tokenizer)


WHOLE = {name: [{"role": "user", "content": "q"}, {**MESSAGE, "content": name}] for name in ("chosen", "rejected")}
GOOD = {"prompt": "p", "chosen": "a", "rejected": "b"}
K = {"prompt": "p", "responses": ["a", "b", "c"], "best": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, {**GOOD, "rejected": "a"}], r"rows.jsonl:2: chosen and rejected are identical\n.*bad_rows: drop"),
        ([GOOD, {**GOOD, "chosen": "  "}], r"rows.jsonl:2: the chosen response is empty\n.*bad_rows"),
        ([GOOD, {**GOOD, "rejected": ""}], r"rows.jsonl:2: the rejected response is empty"),
        ([{"chosen": "abc", "rejected": "xyz"}], r"rows.jsonl:1: chosen and rejected have no common beginning"),
        ([{**GOOD, "chosen": [{"role": "assistant", "content": "a"}]}], r"chosen is a list of messages, rejected is"),
        ([{**WHOLE, "prompt": [{"role": "system", "content": "s"}]}], "whole conversations, but.*system turn str 's'"),
        ([{**WHOLE, "prompt": "other"}], "whole conversations, but.*user turn str 'other'\n.*prompt_template"),
        ([{**GOOD, "margin": -1}], r"rows.jsonl:1: column 'margin' \(margin\) holds int -1"),
        ([K, {**K, "responses": ["a", "b"]}], r"rows.jsonl:2: 2 candidates, but 3 are expected"),
        ([K, {**K, "best": 3}], r"rows.jsonl:2: best is int 3, but the 3 candidates are numbered 0 to 2"),
        ([{**K, "best": -1}], r"best is int -1"),
        ([{**K, "responses": ["a"], "best": 0}], r"rows.jsonl:1: 1 candidates; a comparison needs two"),
        ([{**K, "best": "a"}], r"best is str 'a'"),
        ([{**K, "responses": ["a", "a", "c"]}], r"rows.jsonl:1: the best response \(number 1\) is also among"),
        ([{**K, "responses": ["a", "", "c"]}], r"rows.jsonl:1: response 1 is empty"),
        ([{**GOOD, "tie": True}], r"rows.jsonl:1: the responses are tied.*\n.*ties: drop"),
        ([{"prompt": "p", "completion": "c"}], r"the rows are not comparisons; the columns are prompt, completion"),
    ],
)
def test_bad_rows_are_named(rows: list[dict[str, object]], message: str, jsonl, plain_tokenizer) -> None:
    with pytest.raises(DataError, match=message):
        load(jsonl(*rows), plain_tokenizer)


def test_bad_rows_may_be_left_out_and_are_counted(jsonl, plain_tokenizer) -> None:
    path = jsonl(GOOD, {**GOOD, "chosen": ""}, {**GOOD, "rejected": "a"})
    found = load(path, plain_tokenizer, bad_rows="drop")
    assert len(found) == 1
    for fault in ("an empty response", "identical responses"):
        assert f"left out: 1 with {fault}" in "\n".join(found.lines())


def test_responses_that_become_the_same_tokens_may_be_left_out(jsonl, new_tokenizer) -> None:
    tokenizer = new_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    path = jsonl(GOOD, {**GOOD, "chosen": "Yes", "rejected": "yes"})
    with pytest.raises(DataError, match=r"rows\.jsonl:2: different responses become the same tokens"):
        load(path, tokenizer)
    found = load(path, tokenizer, bad_rows="drop")
    assert len(found) == 1
    assert "left out: 1 with identical tokens" in "\n".join(found.lines())


def test_ties_are_kept_where_asked_for(jsonl, plain_tokenizer) -> None:
    path = jsonl(GOOD, {**GOOD, "tie": True})
    assert [example.tie for example in load(path, plain_tokenizer, ties="half").examples] == [False, True]
    assert len(load(path, plain_tokenizer, ties="drop")) == 1


def test_truncation_cuts_the_prompt_first(jsonl, plain_tokenizer) -> None:
    path = jsonl({"prompt": "0123456789", "chosen": "abc", "rejected": "de"})
    found = load(path, plain_tokenizer, max_tokens=8, data_over_long="truncate")
    assert decoded(found, plain_tokenizer) == ("6789", ["abc</s>", "de</s>"])
    with pytest.raises(DataError, match=r"rows.jsonl:1: prompt and response have 14 tokens, over max_tokens 8"):
        load(path, plain_tokenizer, max_tokens=8, data_over_long="error")
    with pytest.raises(DataError, match="none of 1 rows can be used"):
        load(path, plain_tokenizer, max_tokens=8, data_over_long="drop")


def test_a_split_keeps_conversations_together(jsonl, plain_tokenizer) -> None:
    rows = [{**GOOD, "prompt": f"question {n // 2}"} for n in range(80)]
    found = load(jsonl(*rows), plain_tokenizer)
    train, heldout = found.split(0.25, seed=3)
    assert len(train) + len(heldout) == 80
    assert not {e.conversation for e in train.examples} & {e.conversation for e in heldout.examples}
    assert 0 < len(heldout) < 40
    assert found.split(0.25, seed=3)[1].examples == heldout.examples
    assert train.source_sizes == (len(train),)
    with pytest.raises(DataError, match="leaves no held-out comparison"):
        load(jsonl(GOOD), plain_tokenizer).split(1e-9, seed=0)


def test_the_coin_of_a_conversation_has_the_asked_odds() -> None:
    held = sum(is_held_out(str(n), 0.2, seed=0) for n in range(5000))
    assert 900 < held < 1100


@pytest.mark.slow
def test_real_human_preferences(shared_dir: Path, plain_tokenizer) -> None:
    source = DataSource(path=str(shared_dir / "data/hh_rlhf/harmless-base_test.jsonl.gz"), limit=200)
    found = load(source, plain_tokenizer, bad_rows="drop")
    assert len(found) == 199
    assert all(plain_tokenizer.decode(e.prompt_tokens).endswith("\n\nAssistant:") for e in found.examples[:20])
    with pytest.raises(DataError, match=r"jsonl.gz:87: the chosen response is empty"):
        load(source, plain_tokenizer)
