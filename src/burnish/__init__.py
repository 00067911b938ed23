"""Burnish: reinforcement learning for language models after pre-training."""

__version__ = "0.1.0"
