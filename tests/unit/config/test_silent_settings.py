"""Settings that would have no effect, or another one than they say, are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from burnish.config.domains import domain_settings
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig, RmConfig, SftConfig
from burnish.data.preferences import load_preferences
from burnish.data.sft import load_sft_examples
from burnish.data.template import ChatFormat
from burnish.errors import BurnishError, ConfigError, DataError, ModelError
from burnish.models.characters import character_tokenizer
from burnish.models.weight_checks import check_declared_sizes, check_quantization
from burnish.planning.model_facts import facts_of
from burnish.planning.room import refuse_impossible
from burnish.planning.seats import Machine
from burnish.rewards.success import success_of_domain
from burnish.trainers.rl.feeds import load_prompt_set

BASE: dict[str, Any] = {"model": "m", "data": {"train": "a"}, "rewards": "length"}
TOKENIZER = character_tokenizer(
    "abcdefghij []", eos="$", pad="_", chat_template="{% for m in messages %}[{{ m.content }}{{ think }}]{% endfor %}"
)
OPTIONS = ChatFormat("auto", {"think": "a"})
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def rl(**fields: Any) -> RlConfig:
    return load_run_data({**BASE, **fields}).rl


def rows(tmp_path: Path, *given: dict[str, Any]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in given))
    return file


def test_weights_that_are_random_are_not_rounded_and_frozen() -> None:
    with pytest.raises(ConfigError, match=r"model.quantization is nf4, but model.from_scratch makes random weights"):
        rl(model={"path": "m", "lora": {}, "quantization": "nf4", "from_scratch": True})


@pytest.mark.parametrize("field", ["gpus_per_worker", "cpus_per_worker"])
@pytest.mark.parametrize("trainers", [1, 2])
def test_only_ray_gives_out_processors(field: str, trainers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    machine = Machine(8, 8, 64 << 30)
    config = rl(cluster={field: 1, "trainers": trainers})
    with pytest.raises(ConfigError, match=f"cluster.{field} is set, but this run does not use Ray"):
        refuse_impossible(config, (), machine)
    refuse_impossible(rl(cluster={field: 1, "trainers": trainers, "backend": "ray"}), (), machine)


def test_a_score_that_nothing_has_to_reach() -> None:
    (domain,) = domain_settings(rl(evaluation={"success_score": 0.5}))
    with pytest.raises(ConfigError, match=r"evaluation.success_score is 0.5, but no reward compares with the answer"):
        success_of_domain(domain, ())
    assert success_of_domain(domain, ("length",)) is not None
    own = {"train": "a", "rewards": "length", "evaluation": {"success_score": 0.5}}
    for domains, refuses in (({"x": own}, True), ({"x": {"train": "a", "rewards": "length"}}, False)):
        several = {"model": "m", "domains": domains, "evaluation": {} if refuses else {"success_score": 0.5}}
        (domain,) = domain_settings(load_run_data(several).rl)
        if refuses:
            with pytest.raises(ConfigError, match=r"domains.x.evaluation.success_score is 0.5"):
                success_of_domain(domain, ())
        else:
            assert success_of_domain(domain, ()) is None


@pytest.mark.parametrize("chat", ["auto", "never", "always"])
@pytest.mark.parametrize("kind", ["rl", "sft", "rm"])
def test_options_of_a_template_that_is_not_applied(kind: str, chat: str, tmp_path: Path) -> None:
    data = {"template_options": {"think": "a"}, "chat": chat}

    def load(*given: dict[str, Any]) -> None:
        file = str(rows(tmp_path, *given))
        if kind == "rl":
            config = rl(data={"train": file, **data})
            load_prompt_set(config, domain_settings(config)[0], TOKENIZER, None, "train")
        elif kind == "sft":
            sft = SftConfig.model_validate({"model": "m", "data": {"train": file, **data}})
            load_sft_examples(sft.data.train, tokenizer=TOKENIZER, chat=ChatFormat.of(sft.data))
        else:
            rm = RmConfig.model_validate({"model": "m", "data": {"train": file, **data}})
            load_preferences(rm.data.train, rm, tokenizer=TOKENIZER, max_tokens=99)

    plain = {"prompt": "a", "completion": "b"} if kind != "rm" else {"prompt": "a", "chosen": "b", "rejected": "c"}
    if chat == "always":
        load(plain)
        return
    with pytest.raises(
        (DataError, ConfigError), match=r"data.template_options is set, but no chat template is applied"
    ):
        load(plain)
    if chat == "auto" and kind == "sft":
        load(plain, {"prompt": MESSAGES[:1], "completion": MESSAGES[1:]})


def test_weights_of_an_unknown_quantization() -> None:
    for found in ({"quant_method": "magic"}, {"bits": 3}, "nf4ish"):
        for config in ({"quantization_config": found}, {"text_config": {"quantization_config": found}}):
            with pytest.raises(ModelError, match="its weights are quantized by"):
                check_quantization(config, "m")
    for known in ({"quant_method": "gptq"}, {"load_in_4bit": True}, None):
        check_quantization({"quantization_config": known}, "m")


def test_a_size_for_each_layer() -> None:
    """As gemma3n has them."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9}
    check_declared_sizes({**sizes, "intermediate_size": [32, 48]}, "m")
    facts = facts_of({**sizes, "intermediate_size": [32, 48]}, num_parameters=1)
    assert facts is not None
    assert facts.intermediate_size == 48
    for wrong in ([], [32, 0], [32, "48"], [True], {"a": 1}):
        with pytest.raises(BurnishError, match=r"intermediate_size is"):
            check_declared_sizes({**sizes, "intermediate_size": wrong}, "m")
    with pytest.raises(BurnishError, match=r"hidden_size is"):
        check_declared_sizes({**sizes, "hidden_size": [8, 8]}, "m")
