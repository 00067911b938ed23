"""Random models that hold conversations of known lengths: every turn has the same number of tokens and calls a tool.

Each position of a turn has words of its own, and the embedding of a word has 1 in the dimension of its position, where
no layer writes. The head's rows of the words of the next position read that dimension, so a turn goes from position to
position, and which of its words stands at each is random. So nothing has to be forced while sampling: all peers run the
same ordinary model. Models of the same name without turns are made in models.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from models import NEVER, build_model, build_tokenizer
from workloads import CALL, EOS, FIRST_SPOKEN_WORD, FIRST_WORD, MODELS, OPENING, PAD, UNKNOWN, Turns
from workloads import WORDS_IN_CALL as LOOKED_UP

SIGNS = {sign: FIRST_WORD + place for place, sign in enumerate((*OPENING, *CALL))}
ALWAYS = 40.0
"""What is added to the logits of the words that can follow."""

TEMPLATE = """
{%- if tools -%}<tools>{% for tool in tools %} {{ tool.function.name }}{% endfor %} <eos> {% endif -%}
{%- for message in messages -%}
{%- if message.role == "assistant" -%}
<assistant> {{ message.content }}
{%- for call in message.tool_calls or [] %} <tool_call> {"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}} </tool_call>
{%- endfor %} <eos>{{ " " }}
{%- else -%}
<{{ message.role }}> {{ message.content }} <eos>{{ " " }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{{ " " }}{%- endif -%}
"""  # noqa: E501


def write_turn_model(name: str, turns: Turns, folder: Path, seed: int = 0) -> None:
    """Model and tokenizer in the Hugging Face layout."""
    shape = MODELS[name]
    torch.manual_seed(seed)
    model = build_model(shape)
    aim_turns(model, positions(turns, shape.vocabulary))
    model.save_pretrained(folder)
    tokenizer = build_tokenizer(shape.vocabulary, SIGNS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def positions(turns: Turns, vocabulary: int) -> list[list[int]]:
    """The tokens that may stand at each position of a turn: words, then a call with some words in it, and the end."""
    before, after = CALL[:-2], CALL[-2:]
    free = turns.said - len(CALL) - LOOKED_UP - 1
    with_words = free + LOOKED_UP
    words = [list(range(FIRST_SPOKEN_WORD + place, vocabulary, with_words)) for place in range(with_words)]
    return [
        *words[:free],
        *([SIGNS[sign]] for sign in before),
        *words[free:],
        *([SIGNS[sign]] for sign in after),
        [EOS],
    ]


@torch.no_grad()
def aim_turns(model: Any, positions: list[list[int]]) -> None:
    """Lead the head from each position's tokens to those of the next one. Dimension 0 is the same everywhere; dimension
    1 + p belongs to the token in front of position p."""
    head, embedding = model.lm_head.weight, model.model.embed_tokens.weight
    dimensions = slice(1, 1 + len(positions))
    head[:, dimensions] = 0.0
    embedding[:, dimensions] = 0.0
    for layer in model.model.layers:
        for matrix in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            matrix[dimensions] = 0.0
    for place, tokens in enumerate([[SIGNS["<assistant>"]], *positions[:-1]]):
        embedding[tokens, 1 + place] = 1.0
    words = torch.arange(FIRST_SPOKEN_WORD, head.shape[0]).repeat(2)[:256]
    level = model.model(input_ids=words[None])[0][..., 0].mean()  # after the last norm
    silent = [PAD, UNKNOWN, *(SIGNS[sign] for sign in OPENING)]
    head[[*silent, EOS, *(SIGNS[sign] for sign in CALL)]] = 0.0
    head[silent, 0] = NEVER / level
    for place, tokens in enumerate(positions):
        head[tokens, 1 + place] = ALWAYS / level
