"""Sections and fields common to all run files; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator

from burnish.config.engines import NO_ENGINE, EngineUse
from burnish.config.names import is_template_file
from burnish.config.presets import Preset
from burnish.config.problems import Problem
from burnish.config.schema_cluster import Offloaded, TrainersConfig
from burnish.config.schema_data import DataConfig, DataSource, ModelConfig, places_of_sources
from burnish.config.schema_domains import RewardConfig
from burnish.config.schema_evaluation import EvaluationConfig, StopConfig
from burnish.config.schema_optimization import OptimizationConfig
from burnish.config.section import (
    IsSet,
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
    """Steps between checkpoints. The last step is always saved. `null`: save only at the end."""
    keep: PositiveInt = 2
    """Number of checkpoints to keep. Older ones are removed once a newer one is safely on disk."""

    def due(self, step: int, *, last: bool) -> bool:
        """Return whether to save after this step; `last`: it is the run's last."""
        return last or (self.every_steps is not None and step % self.every_steps == 0)


class LoggingConfig(Section):
    """Destinations of metrics and rollouts (metrics.jsonl is always written)."""

    not_here: ClassVar[Mapping[str, str]] = {"record_rollouts": "only `burnish rl` has rollouts"}

    sinks: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ("tensorboard",)
    """Metric sinks in addition to metrics.jsonl: `tensorboard`, `wandb`, `mlflow`, `trackio`, `package.module:Class` or
    `path/to/file.py:Class`."""
    project: str = "burnish"
    """Project name for wandb, mlflow and trackio."""
    verbose: bool = False
    """Show all columns of metrics, and the fast paths in use. On the command line: `--verbose`."""

    @property
    def keeps_rollouts(self) -> bool:
        """True if the run writes its rollouts to files."""
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
    """Use only the plain paths: separate, padded rows that each recompute their prompt, all logits at once, and
    PyTorch's own gradients. Slower, but with the same numbers; if they differ, a fast path has a bug."""


class RunConfig(Section):
    """Fields of every run, and properties that the rooms read from a run of any kind."""

    kind: ClassVar[str] = ""
    """Name of the row in `burnish.config.kinds`."""
    preset_field: ClassVar[str] = "preset"
    """Field that names a preset, one of `presets`."""
    presets: ClassVar[Mapping[str, Preset]] = {}
    head: ClassVar[Literal["language", "score"]] = "language"
    """Head of the trained model; a reward model has a score head."""
    may_rest: ClassVar[tuple[Offloaded, ...]] = ("optimizer",)
    """Roles that `cluster.offload` may name in a run that trains one model on data."""
    refused: ClassVar[tuple[str, ...]] = ()
    """Fields shared with another kind of run but refused here. The configuration page leaves them out."""

    output: OutputPath = "runs/burnish"
    """Folder of the run. Starting again in the same folder resumes the run."""
    seed: NonNegativeInt = 0
    """Seed for everything random in the run."""
    model: Annotated[ModelConfig, shorthand("path")]
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    stop_when: StopConfig | None = None
    """End the run early. `null`: run all steps."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    debug: DebugConfig = DebugConfig()

    def named_sources(self, split: Literal["train", "eval"]) -> dict[str, DataSource]:
        """The training or held-out data sets of the run, by the field that names each (`data.train.0`)."""
        own = self.data.train if split == "train" else self.data.eval
        return {f"data.{split}.{index}": source for index, source in enumerate(own)}

    if TYPE_CHECKING:  # sections that each kind has with settings of its own, in a place of its own
        steps: int | None = None
        max_tokens: int = 0  # in files of kinds whose texts have a single limit
        optimization: OptimizationConfig = OptimizationConfig()
        cluster: TrainersConfig = TrainersConfig()

    def changed(self, section: str, **values: object) -> Self:
        """The run file with these values in a section, unchecked."""
        return self.model_copy(update={section: vars(self)[section].model_copy(update=values)})

    @property
    def longest_text(self) -> int:
        """Longest text that a pass reads, in tokens."""
        return self.max_tokens

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
        """True if there is held-out data."""
        return bool(self.named_sources("eval"))

    @property
    def engine(self) -> EngineUse:
        """Engine and settings for sampling during training; `NO_ENGINE` if the run does not sample."""
        return NO_ENGINE

    @property
    def critic_source(self) -> str | None:
        """The model that a separate critic starts from; None if it starts from the policy, or there is no such
        critic."""
        return None

    @property
    def teacher_sources(self) -> tuple[str, ...]:
        """The models that teach, except for the policy itself."""
        return ()

    @property
    def all_rewards(self) -> tuple[RewardConfig, ...]:
        """The rewards that score responses of the run."""
        return ()

    def domains_with_own(self, field: str) -> Iterator[str]:
        """Domains that name their own evaluation data or rewards instead of sharing the run's."""
        return iter(())

    def missing(self) -> Iterator[Problem]:
        """Further fields that a run cannot start without."""
        return iter(())

    def named_places(self) -> Iterator[NamedPlace]:
        """Everything that the run learns from."""
        model = self.model
        yield NamedPlace("model.path", model.path, "settings" if model.from_scratch else "model", "weights")
        if model.tokenizer is not None:
            yield NamedPlace("model.tokenizer", model.tokenizer, "settings", "weights")
        if is_template_file(model.chat_template):
            yield NamedPlace("model.chat_template", model.chat_template, "settings")
        yield from places_of_sources(self.named_sources("train"))

    @classmethod
    def give_way(cls, resolved: dict[str, Json], is_set: IsSet) -> None:
        """Remove from a resolved run file the values that stood in for fields that overrides are about to set."""


ConfigT = TypeVar("ConfigT", bound=RunConfig)
