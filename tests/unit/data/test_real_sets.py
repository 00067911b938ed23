"""Every real set at hand loads, with the numbers that its publishers give."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from burnish.config.schema_data import DataSource
from burnish.data.prompts import load_prompts
from burnish.data.sft import load_sft_examples
from burnish.data.sources import read_table
from burnish.data.template import ChatFormat


@pytest.fixture(scope="module")
def chatml_tokenizer(shared_dir: Path):
    return AutoTokenizer.from_pretrained(shared_dir / "models" / "minimind_tokenizer")


@pytest.mark.slow_cases(
    "gsm8k/test.jsonl-fields0-1319-prompt-roles0-#### 18-domains0",
    "math_eval/mawps_test.jsonl-fields4-2065-prompt-roles4-43.0-domains4",
    "one_shot_rlvr/dsr_sub.parquet-fields2-1209-verl-roles2-\\\\frac{3}{7}-domains2",
    "roll_math/math_benchmarks.jsonl-fields1-560-roll-roles1-204-domains1",
)
@pytest.mark.parametrize(
    ("path", "fields", "rows", "schema", "roles", "answer", "domains"),
    [
        ("gsm8k/test.jsonl", {}, 1319, "prompt", {"prompt": "question", "answer": "answer"}, "#### 18", {"test"}),
        ("roll_math/math_benchmarks.jsonl", {}, 560, "roll",
         {"messages": "messages", "answer": "ground_truth", "domain": "tag"}, "204",
         {"aime2024", "aime2025", "MATH-500"}),
        ("one_shot_rlvr/dsr_sub.parquet", {}, 1209, "verl",
         {"prompt": "prompt", "answer": "reward_model.ground_truth", "domain": "data_source"},
         r"\frac{3}{7}", {"deepscaler"}),
        ("math_eval/math500_test.jsonl", {}, 500, "prompt", {"prompt": "problem", "answer": "answer"},
         r"\left( 3, \frac{\pi}{2} \right)", {"math500_test"}),
        ("math_eval/mawps_test.jsonl", {}, 2065, "prompt", {"prompt": "input", "answer": "target"},
         "43.0", {"mawps_test"}),
        ("math_eval/svamp_test.jsonl",
         {"prompt_template": "{Body}. {Question}", "columns": {"id": "ID", "answer": "Answer"}},
         1000, "prompt", {"answer": "Answer", "id": "ID"}, "145.0", {"svamp_test"}),
        ("humaneval/HumanEval.jsonl.gz", {"columns": {"id": "task_id"}}, 164, "prompt", None, "None", {"HumanEval"}),
        ("arithmetic_sequence/data", {"split": "test"}, 200, "prompt", {"prompt": "prompt"}, "None", {"data/test"}),
    ],
)  # fmt: skip
def test_prompts(shared_dir, chatml_tokenizer, path, fields, rows, schema, roles, answer, domains) -> None:
    source = DataSource(path=str(shared_dir / "data" / path), **fields)
    loaded = load_prompts([source], tokenizer=chatml_tokenizer)
    (understanding,) = loaded.understandings
    assert (len(loaded), understanding.rows, understanding.reading.schema) == (rows, rows, schema)
    assert roles is None or understanding.reading.roles == roles
    assert str(loaded.prompts[0].answer).endswith(answer)
    assert {prompt.domain for prompt in loaded.prompts} == domains
    assert len({prompt.id for prompt in loaded.prompts}) == rows
    assert all(loaded.prompt_tokens)


def test_gsm8k_train_has_7473_rows(shared_dir: Path) -> None:
    assert len(read_table(DataSource(path=str(shared_dir / "data/gsm8k"))).rows) == 7473


def test_a_real_chat_template(shared_dir: Path, chatml_tokenizer) -> None:
    source = DataSource(path=str(shared_dir / "data/roll_math/math_benchmarks.jsonl"), limit=1)
    text = chatml_tokenizer.decode(load_prompts([source], tokenizer=chatml_tokenizer).prompt_tokens[0])
    assert text.startswith("<|im_start|>system\nPlease reason step by step")
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_real_chat_training(shared_dir: Path, chatml_tokenizer) -> None:
    source = DataSource(path=str(shared_dir / "data/gsm8k/test.jsonl"), system_prompt="Think.", limit=50)
    loaded = load_sft_examples([source], tokenizer=chatml_tokenizer)
    rows = read_table(source).rows
    for example, row in zip(loaded.examples, rows, strict=True):
        trained = [token for token, flag in zip(example.tokens, example.loss_mask, strict=True) if flag]
        assert chatml_tokenizer.decode(trained) == row.values["answer"] + "<|im_end|>"


def test_stories_are_documents(shared_dir: Path, stories_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(stories_model)
    file = str(shared_dir / "data/tinystories/tinystories.txt")
    source = DataSource(path=file, document_separator=r"\n\n(?=Once upon a time)")
    loaded = load_sft_examples([source], tokenizer=tokenizer, max_tokens=512)
    assert loaded.understandings[0].rows == 149
    first = loaded.examples[0]
    assert (first.tokens[0], first.tokens[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert first.loss_mask == (False,) + (True,) * (len(first.tokens) - 1)
    assert max(loaded.lengths()) <= 512


@pytest.mark.parametrize("options", [{}, {"open_thinking": True}])
def test_a_real_template_with_tools_renders_a_history_alike_for_sft_and_rl(jsonl, chatml_tokenizer, options) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": '{"a": 1}'}]}
    history = [{"role": "user", "content": "1+1?"}, call, {"role": "tool", "content": "2"}]
    answer = {"role": "assistant", "content": "2", "reasoning_content": "it says so"}
    chat = ChatFormat(options=options)
    asking = DataSource(path=jsonl({"messages": history, "tools": [tool]}))
    asked = load_prompts([asking], tokenizer=chatml_tokenizer, chat=chat)
    source = DataSource(path=jsonl({"messages": [*history, answer], "tools": [tool]}))
    (example,) = load_sft_examples([source], tokenizer=chatml_tokenizer, chat=chat).examples
    prompt = chatml_tokenizer.decode(asked.prompt_tokens[0]).removesuffix("<think>\n\n</think>\n\n")
    assert chatml_tokenizer.decode(example.tokens).startswith(prompt)
    trained = chatml_tokenizer.decode([t for t, m in zip(example.tokens, example.loss_mask, strict=True) if m])
    assert '"name": "add", "arguments": {"a": 1}' in trained
    assert trained.endswith("it says so\n</think>\n\n2<|im_end|>")
    assert "<tools>" not in trained
    assert "<tool_response>" not in trained
