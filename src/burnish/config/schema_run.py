"""Sections and fields common to all run files, and the fields of `burnish sft`; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from burnish.config.presets import Preset
from burnish.config.problems import Problem
from burnish.config.schema_cluster import TrainersConfig
from burnish.config.schema_data import DataConfig, DataSource, ModelConfig
from burnish.config.schema_evaluation import EvaluationConfig
from burnish.config.schema_optimization import OptimizationConfig, SftOptimizationConfig
from burnish.config.schema_reward import RewardConfig
from burnish.config.section import (
    IsSet,
    ModelAt,
    NamedPlace,
    NonNegativeInt,
    OutputPath,
    PositiveInt,
    Section,
    as_list,
    shorthand,
)
from burnish.types import Json


class CheckpointConfig(Section):
    """Steps between checkpoints, and the number of checkpoints to keep."""

    every_steps: PositiveInt | None = 50
    """Steps between two checkpoints. The last step is always saved. `null`: save only at the end."""
    keep: PositiveInt = 2
    """Number of checkpoints to keep. Older ones are removed once a newer one is safely on disk."""

    def due(self, step: int, *, last: bool) -> bool:
        """Return whether to save after this step; `last`: it is the run's last."""
        return last or (self.every_steps is not None and step % self.every_steps == 0)


class LoggingConfig(Section):
    """Destinations of metrics and rollouts (metrics.jsonl is always written)."""

    not_here: ClassVar[Mapping[str, str]] = {"record_rollouts": "only `burnish rl` has rollouts"}

    sinks: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ("tensorboard",)
    """Sinks for the metrics in addition to metrics.jsonl: `tensorboard`, `wandb`, `mlflow`, `package.module:Class` or
    `path/to/file.py:Class`."""
    project: str = "burnish"
    """Project name for wandb and mlflow."""

    @property
    def keeps_rollouts(self) -> bool:
        """Whether rollouts are written."""
        return False


class RlLoggingConfig(LoggingConfig):
    """Destinations of metrics and rollouts (metrics.jsonl is always written)."""

    record_rollouts: bool = True
    """Write every rollout, before any filtering, to rollouts/step-*.jsonl."""

    @property
    def keeps_rollouts(self) -> bool:
        return self.record_rollouts


class DebugConfig(Section):
    """Switches for debugging."""

    plain: bool = False
    """Use only plain paths: rows are separate and padded, each reads its prompt again, all logits are computed at once,
    and gradients are PyTorch's own. The numbers are the same, only slower; if they differ, a fast path is wrong."""


class RunConfig(Section):
    """Fields of every run, and what the rooms ask about the settings of a run of any kind."""

    kind: ClassVar[str] = ""
    """Name of the row in `burnish.config.kinds`."""
    preset_field: ClassVar[str] = "preset"
    """Field that names a preset, one of `presets`."""
    presets: ClassVar[Mapping[str, Preset]] = {}
    head: ClassVar[Literal["language", "score"]] = "language"
    """What the trained model ends with; a reward model ends with scores."""

    output: OutputPath = "runs/burnish"
    """Folder of the run. Starting again in the same folder resumes the run."""
    seed: NonNegativeInt = 0
    """Seed for everything random in the run."""
    model: Annotated[ModelConfig, shorthand("path")]
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    debug: DebugConfig = DebugConfig()

    def named_sources(self, split: Literal["train", "eval"]) -> dict[str, DataSource]:
        """The training or held-out data sets of the run, by the field that names each (`data.train.0`)."""
        own = self.data.train if split == "train" else self.data.eval
        return {f"data.{split}.{index}": source for index, source in enumerate(own)}

    if TYPE_CHECKING:  # sections that each kind has with settings of its own, in a place of its own
        steps: int | None = None
        optimization: OptimizationConfig = OptimizationConfig()
        cluster: TrainersConfig = TrainersConfig()

    @property
    def longest_text(self) -> int:
        """Most tokens of a text that a pass reads."""
        raise NotImplementedError

    @property
    def texts_each(self) -> int:
        """Texts of a row of data, as far as the run file says."""
        return 1

    @property
    def small_processes(self) -> int:
        """Processes without a model that always run."""
        return 0

    @property
    def holds_out(self) -> bool:
        """Whether there is held-out data."""
        return bool(self.named_sources("eval"))

    @property
    def sampling_engine(self) -> str | None:
        """The engine that samples while the run trains; None if nothing does."""
        return None

    @property
    def vllm_beside_training(self) -> Mapping[str, Any] | None:
        """Options of a vLLM engine that has its share of a GPU while the run trains on it; None without one."""
        return None

    @property
    def sampled_at_once(self) -> int:
        """Most responses that an engine samples at the same time."""
        return 0

    @property
    def gpus_per_engine(self) -> int:
        """GPUs of each engine."""
        return 1

    @property
    def has_reference(self) -> bool:
        """Whether the run compares with a frozen reference."""
        return False

    @property
    def has_separate_critic(self) -> bool:
        """Whether the run trains a critic with a backbone of its own."""
        return False

    @property
    def critic_source(self) -> str | None:
        """The model that a separate critic begins from; None if it is the policy's, or there is no such critic."""
        return None

    @property
    def all_rewards(self) -> tuple[RewardConfig, ...]:
        """The rewards that score responses of the run."""
        return ()

    @property
    def own_of_domains(self) -> Mapping[str, Mapping[str, bool]]:
        """By domain the fields `eval` and `rewards`, and whether it has some of its own."""
        return {}

    def missing(self) -> Iterator[Problem]:
        """Further fields that a run cannot start without."""
        return iter(())

    def named_places(self) -> Iterator[NamedPlace]:
        """What the run reads besides its model and its data."""
        return iter(())

    def other_models(self, model_at: ModelAt) -> dict[str, Any]:
        """The sections that name models besides `model`, with `model_at` of each of these."""
        return {}

    @classmethod
    def give_way(cls, resolved: dict[str, Json], is_set: IsSet) -> None:
        """Take out of a resolved run file what stood for fields that overrides are about to set."""


class SftFields(RunConfig):
    """Fields of a run file of `burnish sft`."""

    kind: ClassVar[str] = "sft"

    steps: PositiveInt | None = None
    """Optimizer steps. `null`: `optimization.epochs` passes over the data."""
    max_tokens: PositiveInt = 2048
    """Longest example (prompt and completion), in tokens; see `data.over_long`."""
    optimization: SftOptimizationConfig = SftOptimizationConfig()
    cluster: TrainersConfig = TrainersConfig()

    @property
    def longest_text(self) -> int:
        return self.max_tokens
