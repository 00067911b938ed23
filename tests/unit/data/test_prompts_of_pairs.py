"""Comparisons as prompts: `burnish rl` asks what `burnish rm` takes for the prompt of the same rows."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from burnish.config.schema import RmConfig
from burnish.config.schema_data import DataSource
from burnish.data.preferences import PreferenceSet, load_preferences
from burnish.data.prompts import load_prompts, read_prompts
from burnish.data.template import ChatFormat
from burnish.errors import DataError

ASKED = "\n\nHuman: Hi\n\nAssistant: Hello\n\nHuman: 1+1?\n\nAssistant:"
TRANSCRIPTS = {"chosen": f"{ASKED} 2", "rejected": f"{ASKED} 3"}
TURNS = [{"role": "user", "content": "1+1?"}]


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_the_shared_beginning_of_transcripts_is_the_prompt(jsonl, plain_tokenizer) -> None:
    loaded = load_prompts([DataSource(path=jsonl(TRANSCRIPTS))], tokenizer=plain_tokenizer)
    assert loaded.prompts[0].text == ASKED
    assert loaded.prompts[0].columns == TRANSCRIPTS
    assert "  changed: 1 comparisons, where the prompt is what chosen and rejected both begin with" in loaded.lines()
    (prompt,), _ = read_prompts([DataSource(path=jsonl(TRANSCRIPTS))])  # what `burnish check` reads
    assert prompt.text == ASKED


def load_pairs(source: DataSource, tokenizer: PreTrainedTokenizerFast, chat: str) -> PreferenceSet:
    config = RmConfig.model_validate({"model": "m", "data": {"train": [], "chat": chat}, "bad_rows": "drop"})
    return load_preferences([source], config, tokenizer=tokenizer, max_tokens=100_000)


@pytest.mark.parametrize(
    "row",
    [
        TRANSCRIPTS,
        {"chosen": "one two three", "rejected": "one two four"},
        {"chosen": [*TURNS, said("2")], "rejected": [*TURNS, said("3")]},
        {"prompt": "1+1?", "chosen": [*TURNS, said("2")], "rejected": [*TURNS, said("3")]},
        {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
    ],
)
@pytest.mark.parametrize("chat", ["auto", "always", "never"])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_rl_asks_what_rm_takes_for_the_prompt(jsonl, chat_tokenizer, row, chat, system) -> None:
    source = DataSource(path=jsonl(row), system_prompt=system)
    pairs = load_pairs(source, chat_tokenizer, chat)
    prompts = load_prompts([source], tokenizer=chat_tokenizer, chat=ChatFormat(chat))
    assert prompts.prompt_tokens[0] == pairs.examples[0].prompt_tokens


def test_responses_need_not_be_comparable(jsonl, plain_tokenizer) -> None:
    rows = [{"chosen": ASKED, "rejected": f"{ASKED} 3"}, {"chosen": f"{ASKED} 3", "rejected": f"{ASKED} 3"}]
    loaded = load_prompts([DataSource(path=jsonl(*rows))], tokenizer=plain_tokenizer)
    assert [prompt.text for prompt in loaded.prompts] == [ASKED, ASKED]
    with pytest.raises(DataError, match=r"rows\.jsonl:1: chosen and rejected are the same text"):
        load_prompts([DataSource(path=jsonl({"chosen": "a b", "rejected": "a b"}))], tokenizer=plain_tokenizer)


@pytest.mark.slow
def test_real_pairs(shared_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared_dir / "models" / "minimind_tokenizer")
    source = DataSource(path=str(shared_dir / "data/hh_rlhf/harmless-base_test.jsonl.gz"), limit=200)
    for chat in ("auto", "always"):
        pairs = load_pairs(source, tokenizer, chat)
        prompts = load_prompts([source], tokenizer=tokenizer, chat=ChatFormat(chat))
        asked = {p.id: tokens for p, tokens in zip(prompts.prompts, prompts.prompt_tokens, strict=True)}
        assert len(asked) == 200
        alike = sum(asked[example.id] == example.prompt_tokens for example in pairs.examples)
        assert alike == len(pairs.examples) >= 195
