"""Arguments that cannot be meant: one clear line before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import burnish
from burnish.api.inputs import inputs_of
from burnish.errors import BurnishError

RUN: dict[str, Any] = {"model": "m", "data": [{"prompt": "a"}], "quiet": True}


def looped(empty: Any) -> Any:
    (empty.append if isinstance(empty, list) else lambda value: empty.update(me=value))(empty)
    return empty


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data": ({"prompt": "a"} for _ in "a")}, "'train' is a builtins.generator"),
        ({"data": {"train": map(dict, [])}}, "'train' is a builtins.map"),
        ({"data": [looped({"prompt": "a"})]}, "row 0 of train.jsonl: the column 'me' cannot be written: it contains"),
        ({"data": [{"prompt": "a", "x": looped([])}]}, "column 'x' cannot be written: it contains itself"),
        ({"rollout": looped({})}, "a list or dictionary contains itself"),
        ({"rewards": [{"name": "length", "options": looped({})}]}, "a list or dictionary contains itself"),
        ({"rewards": (name for name in ["math"])}, "rewards is not a value"),
        ({"on_step": 7}, "on_step is 7, not a function"),
    ],
)
@pytest.mark.parametrize(("call", "run"), [(burnish.sft, RUN), (burnish.train, {**RUN, "rewards": len})])
def test_a_training_is_refused(
    given: Any, says: str, call: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BurnishError) as caught:
        call({}, **{**run, **given})
    assert says in str(caught.value)
    assert not list(tmp_path.glob("runs/*"))


def test_a_model_without_numbers_is_refused(save_tiny_llama: Any) -> None:
    folder = save_tiny_llama("01")
    pair = AutoModelForCausalLM.from_pretrained(folder).to("meta"), AutoTokenizer.from_pretrained(folder)
    with pytest.raises(BurnishError, match="device `meta`, which have no numbers"):
        inputs_of("runs/x").plain({"model": pair})


@pytest.mark.parametrize("weight", ["x", None, True, [1], float("nan")])
def test_a_weight_is_a_number(weight: Any) -> None:
    for reward in (burnish.rewards.math(), burnish.rewards.function(len)):
        with pytest.raises(BurnishError, match=r"the weight of the reward '(math|len)' is"):
            reward.weighted(weight)


@pytest.mark.parametrize(
    ("prompt", "given", "says"),
    [
        (7, {}, "the prompt is 7, not a text"),
        (None, {}, "the prompt is None"),
        (b"x", {}, "the prompt is b'x'"),
        ({"role": "user", "content": "a"}, {}, "the prompt is {'role'"),
        (({"role": "user"} for _ in "a"), {}, "the prompt is <generator"),
        ([], {}, "the prompt is [], not a text"),
        ([7], {}, "a turn of the conversation is int 7"),
        ("0", {"max_response_tokens": "x"}, "max_response_tokens is 'x'"),
        ("0", {"temperature": None}, "temperature is None"),
        ("0", {"top_k": 1.5}, "top_k is 1.5"),
        ("0", {"seed": "x"}, "seed is 'x'"),
        ("0", {"stop": 7}, "stop is 7"),
        ("0", {"stop": ["a", 7]}, "stop is"),
    ],
)
def test_a_prompt_or_a_number_of_sampling_is_refused_by_name(prompt: Any, given: Any, says: str) -> None:
    with pytest.raises(BurnishError) as caught:
        burnish.Policy("nothing is loaded for this").generate(prompt, **given)
    assert str(caught.value).startswith(says)


def test_a_policy_is_of_a_folder() -> None:
    with pytest.raises(BurnishError, match=r"burnish.Policy got 3\n  -> give a folder"):
        burnish.Policy(3)  # type: ignore[arg-type]


def test_a_single_stop_text_is_one_text(save_tiny_llama: Any) -> None:
    policy = burnish.Policy(save_tiny_llama("01"))
    torch.nn.init.zeros_(policy.loaded().model.get_output_embeddings().weight)
    one, listed = (policy.generate("0", stop=stop, max_response_tokens=9, seed=3) for stop in ("01", ["01"]))
    assert one == listed


@pytest.mark.parametrize("folder", ["nowhere", 7])
def test_a_run_has_a_folder(folder: Any) -> None:
    with pytest.raises(BurnishError, match=f"{folder} is not a run"):
        burnish.Run(folder)
