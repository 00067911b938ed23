"""Burnish: reinforcement learning for language models after pre-training."""

__version__ = "0.2.0"
