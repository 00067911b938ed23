"""A task of SkyRL-gym (https://github.com/NovaSky-AI/SkyRL): `pip install skyrl-gym`.

environment: examples/environments/skyrl_gym_task.py:Task
environment_options: {id: gsm8k_multi_turn}

The columns of a row are the task's `extras` (these tasks want `reward_spec`, and some `extra_info`). For a task of your
own, call `skyrl_gym.register` in a copy of this file.
"""

from __future__ import annotations

from typing import Any

import skyrl_gym

from burnish.agents.environments.protocol import Step


class Task:
    """One task, whose steps have rewards."""

    def __init__(self, id: str, config: dict[str, Any] | None = None) -> None:
        """config: the task's `env_config`."""
        self._id = id
        self._config = config

    def reset(self, prompt: str | list[dict[str, str]], **row: Any) -> list[dict[str, str]] | None:
        """Make the task; the messages that it adds to the prompt."""
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        self._task = skyrl_gym.make(self._id, env_config=self._config, extras={"prompt": prompt, **row})
        said, _ = self._task.init([dict(message) for message in asked])
        if said[: len(asked)] != asked:
            raise ValueError("the task has changed the prompt of the row, and may only add messages")
        return said[len(asked) :] or None

    def step(self, text: str) -> Step:
        answer = self._task.step(text)
        said = "\n".join(message["content"] for message in answer["observations"])
        return Step(said, answer["reward"], answer["done"])

    def close(self) -> None:
        self._task.close()
