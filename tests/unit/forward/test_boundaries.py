from typing import Any

import pytest
from transformers import AutoConfig

from burnish.forward.boundaries import Boundaries

LISTED = {"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}


@pytest.mark.parametrize(
    ("model_type", "settings", "expected"),
    [
        ("gpt_neo", {"window_size": 24}, Boundaries((24,), context=2048)),
        ("mistral", {"sliding_window": 40, "max_position_embeddings": 99}, Boundaries((40,), context=99)),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": False}, Boundaries(context=32768)),
        ("qwen2", {"sliding_window": 40, "use_sliding_window": True, **LISTED}, Boundaries(context=32768)),
        ("llama4_text", {"attention_chunk_size": 30, "max_position_embeddings": 99}, Boundaries((30,), context=99)),
        ("mamba2", {"chunk_size": 64}, Boundaries((64,))),
        ("gpt2", {}, Boundaries(context=1024)),
        (
            "llama",
            {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 128}, "max_position_embeddings": 256},
            Boundaries(context=256),
        ),
        (
            "phi3",
            {"rope_parameters": LONG, "original_max_position_embeddings": 64, "max_position_embeddings": 256},
            Boundaries(rotation=64, context=256),
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            Boundaries(stretch=2048, context=2048),
        ),
    ],
)
def test_what_a_config_says_of_lengths(model_type: str, settings: dict[str, Any], expected: Boundaries) -> None:
    assert Boundaries.of(AutoConfig.for_model(model_type, **settings)) == expected


def test_only_shorter_boundaries_are_crossed() -> None:
    boundaries = Boundaries((8, 20, 400))
    assert boundaries.crossed_by(8) == ()
    assert boundaries.crossed_by(21) == (8, 20)
