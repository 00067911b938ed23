"""The engines and models that the tests of rollouts sample with."""

from ..rollouts.conftest import make_engine, model, tokenizer

__all__ = ["make_engine", "model", "tokenizer"]
