"""What is masked, what is not, and that a masked file still knows its values."""

from typing import Any

import pytest

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.config.secrets import MASK, masked, masked_command, masked_places, masked_yaml, restored
from burnish.config.yaml_text import parse_value
from burnish.errors import ConfigError

HF = "hf_" + "aB3" * 12


def options(**values: Any) -> dict[str, Any]:
    return {"rewards": [{"name": "judge.py:score", "options": values}]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", "abc"),
        ("apiKey", "abc"),
        ("OPENAI_API_KEY", "abc"),
        ("key", "0f" * 20),
        ("token", "hf_secret123"),
        ("auth_token", "abc"),
        ("user_token", "abc"),
        ("wandb_key", "a1" * 20),
        ("password", "hunter2"),
        ("password", 1234),
        ("db_password", "x"),
        ("client_secret", "x"),
        ("credentials", {"user": "me", "code": "x"}),
        ("keys", ["a", "b"]),
        ("first", "sk-abc12345"),
        ("second", HF),
        ("third", f"Authorization: Bearer {HF}"),
        ("fourth", "AKIAIOSFODNN7EXAMPLE"),
        ("fifth", "ghp_" + "a1" * 18),
        ("url", "https://me:hunter2@example.org/v1"),
        ("address", "https://example.org/v1?api_key=abcdef123"),
        ("nested", {"headers": {"Authorization": "abc"}}),
    ],
)
def test_secrets_of_options_are_masked(name: str, value: Any) -> None:
    hidden = masked(options(**{name: value}))
    assert hidden != options(**{name: value})
    assert "abc" not in str(hidden["rewards"][0]["options"].get(name))
    assert not isinstance(value, str) or value not in str(hidden)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pad_token", "<pad>"),
        ("pad_token", "pad"),
        ("token", "</s>"),
        ("stop_token", "END"),
        ("stop_token_ids", [1, 2]),
        ("max_response_tokens", 512),
        ("tokens", 5),
        ("token", True),
        ("unit", "tokens"),
        ("tokenizer", "gpt2"),
        ("tokenizer_path", "models/key"),
        ("token_level", "word"),
        ("answer_key", "gold"),
        ("key_column", "id"),
        ("keyword", "therefore"),
        ("keywords", ["so", "thus"]),
        ("monkey", "business"),
        ("revision", "0f" * 20),
        ("url", "http://localhost:8000/v1"),
        ("path", "data/hf_datasets2024/train.jsonl"),
        ("password", None),
        ("api_key", ""),
    ],
)
def test_other_options_stay_as_they_are(name: str, value: Any) -> None:
    assert masked(options(**{name: value})) == options(**{name: value})


def test_names_of_the_run_files_own_fields_hide_nothing() -> None:
    fields = {"scoring": {"truncate_token": "."}, "model": {"path": "hf_models2024"}}
    fields |= {"rollout": {"stop_token_ids": [3]}}
    assert masked(fields) == fields
    assert masked({"data": {"train": [f"https://x.org/{HF}"]}}) == {"data": {"train": [MASK]}}
    assert masked(RlConfig(model="m").model_dump(mode="json")) == RlConfig(model="m").model_dump(mode="json")


def test_a_command_line_keeps_what_is_no_secret() -> None:
    plain = ["burnish", "rl", "run.yaml", "scoring.truncate_token=.", "rollout.stop_token_ids=[1, 2]", "output=runs/a"]
    assert masked_command(plain) == plain
    words = ["rewards.0.options.api_key=abc", "rewards.0.options={api_key: abc, n: 3}", "--token", "abc", HF]
    words += ["--api-key=abc", "rewards=[{name: x, options: {password: abc}}]", "a=https://me:abc@example.org"]
    hidden = masked_command(words)
    assert "abc" not in " ".join(hidden)
    assert HF not in hidden
    assert hidden[0] == f"rewards.0.options.api_key={MASK}"
    assert parse_value(hidden[1].partition("=")[2]) == {"api_key": MASK, "n": 3}


@pytest.mark.slow
def test_a_hashed_mask_knows_its_value_and_no_other() -> None:
    # of letters that no hash has in it
    data = options(api_key="xyz", password=7, n=3)
    written = masked(data, hashed=True)
    assert "xyz" not in str(written)
    assert list(masked_places(written)) == ["rewards.0.options.api_key", "rewards.0.options.password"]
    assert restored(written, data) == data
    assert masked(written) == masked(data)
    other = restored(written, options(api_key="xyw", password=7, n=3))
    assert list(masked_places(other)) == ["rewards.0.options.api_key"]
    assert masked(data, hashed=True) != written  # salted


def test_text_for_others_shows_neither_secret_nor_hash() -> None:
    plain = "seed: 17\nmodel:\n  path: m\n"
    assert masked_yaml(plain) == plain
    old = masked(options(key="abc"), hashed=True)
    written = masked_yaml(f"rewards:\n- options:\n    api_key: abc\n    old: {old}\n")
    assert "abc" not in written
    assert "masked:" not in written
    assert HF not in masked_yaml(f"not: [yaml {HF}")


def test_a_masked_value_must_be_given_again() -> None:
    data = masked({"model": "m", "data": {"train": "t.jsonl"}, **options(api_key="abc")}, hashed=True)
    with pytest.raises(ConfigError, match=r"options\.api_key was masked(?s:.*)rewards\.0\.options\.api_key=VALUE"):
        load_run_data(data)
    loaded = load_run_data(data, ["rewards.0.options.api_key=abc"])
    assert loaded.config.rewards[0].options == {"api_key": "abc"}
