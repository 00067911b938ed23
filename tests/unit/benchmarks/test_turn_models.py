"""The models of `benchmarks/peers` that hold conversations: each turn has the length that the workload says, and a call
that can be read."""

from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from burnish.agents.tools.calls import ToolCall
from burnish.agents.tools.parsers.tagged import Hermes

from .conftest import Script


def test_a_turn_has_one_position_for_each_token(script: Script) -> None:
    workloads = script("workloads")
    turns = workloads.Turns(count=3, said=32, answered=20)
    positions = script("turn_models").positions(turns, 128)
    assert (turns.sampled, turns.tokens) == (96, 96 + 2 * (20 + 3))
    assert len(positions) == 32
    assert positions[0] == [16, 39, 62, 85, 108]  # 20 words before the call and 3 in it have every 23rd word each
    assert positions[26] == [36, 59, 82, 105]
    assert positions[-1] == [workloads.EOS]
    assert sorted(word for place in (*positions[:20], *positions[26:29]) for word in place) == list(range(16, 128))


def test_sampled_turns_end_where_they_should_and_call_the_tool(script: Script, tmp_path: Path) -> None:
    workloads = script("workloads")
    turns = workloads.WORKLOADS["W8"].turns
    script("turn_models").write_turn_model("tiny", turns, tmp_path)
    model, tokenizer = LlamaForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    asked = [{"role": "user", "content": "w20 w21"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    torch.manual_seed(0)
    said = model.generate(prompt, do_sample=True, top_k=0, max_new_tokens=40, num_return_sequences=4)[
        :, prompt.shape[1] :
    ]
    assert said.shape == (4, turns.said)
    assert len({tuple(row) for row in said.tolist()}) == 4
    for row in said:
        assert row.tolist().index(workloads.EOS) == turns.said - 1
        (call,) = Hermes().parse(tokenizer.decode(row, skip_special_tokens=True)).calls
        assert isinstance(call, ToolCall)
        answer = script("look_up").look_up(**call.arguments)
        assert len(tokenizer(answer)["input_ids"]) == turns.answered


def test_answers_are_words_of_the_model(script: Script) -> None:
    answer = script("look_up").look_up(" w16 w17 w20 ").split()
    assert answer[0] == f"w{16 + 53}"  # 16 + 17 + 20, of 112 words from 16 on
    assert len(answer) == 20
