"""Queries cut from documents."""

from pathlib import Path

import pytest

from burnish.config.schema_data import DataSource, QueryConfig
from burnish.data.prompts import load_prompts
from burnish.data.text_documents import cut_query
from burnish.errors import DataError

STORY = "One day. Tim ran. He fell. He cried a lot."


def up_to(limit: int):
    return lambda text: len(text) <= limit


def test_a_query_stands_between_full_stops() -> None:
    assert cut_query(STORY, start_text=".", end_text=".", fits=up_to(17)) == "Tim ran. He fell."
    assert cut_query(STORY, start_text=".", end_text=".", fits=up_to(16)) == "Tim ran."
    assert cut_query(STORY, start_text=".", end_text=".", fits=up_to(99)) == "Tim ran. He fell. He cried a lot."


def test_without_a_start_it_begins_with_the_document() -> None:
    assert cut_query(STORY, start_text=None, end_text=".", fits=up_to(17)) == "One day. Tim ran."


@pytest.mark.parametrize("document", ["no stop at all", "Only one. then nothing", "One. a sentence too long to fit."])
def test_documents_without_a_query(document: str) -> None:
    assert cut_query(document, start_text=".", end_text=".", fits=up_to(10)) is None


def test_documents_become_prompts_and_the_others_are_counted(tmp_path: Path, plain_tokenizer) -> None:
    """One token a byte, so 17 tokens hold two sentences."""
    file = tmp_path / "stories.txt"
    file.write_text(f"{STORY}\n\nNo query here\n\nA. B. C.\n")
    query = QueryConfig(start_text=".", end_text=".")
    found = load_prompts([DataSource(path=str(file))], tokenizer=plain_tokenizer, max_prompt_tokens=17, query=query)
    assert [prompt.text for prompt in found.prompts] == ["Tim ran. He fell.", "B. C."]
    assert [len(tokens) for tokens in found.prompt_tokens] == [17, 5]
    assert found.prompts[0].columns["text"] == STORY  # rewards can still ask for the document
    lines = "\n".join(found.lines())
    assert "2 of 3 rows used" in lines
    assert "left out: 1 documents without a query between '.' and '.' within max_prompt_tokens (17)" in lines
    whole = load_prompts([DataSource(path=str(file))], tokenizer=plain_tokenizer, max_prompt_tokens=64)
    assert whole.prompts[0].text == STORY


def test_prompts_are_not_documents(jsonl, plain_tokenizer) -> None:
    source = DataSource(path=jsonl({"prompt": STORY}))
    query = QueryConfig(start_text=".", end_text=".")
    found = load_prompts([source], tokenizer=plain_tokenizer, max_prompt_tokens=64, query=query)
    assert [prompt.text for prompt in found.prompts] == [STORY]
    assert "queries" not in "\n".join(found.lines())


def test_no_document_with_a_query_is_an_error(tmp_path: Path, plain_tokenizer) -> None:
    (tmp_path / "x.txt").write_text("nothing\n\nhere\n")
    source, query = DataSource(path=str(tmp_path / "x.txt")), QueryConfig(end_text=".")
    with pytest.raises(DataError, match="none of 2 rows can be used: 2 documents without a query"):
        load_prompts([source], tokenizer=plain_tokenizer, max_prompt_tokens=9, query=query)
