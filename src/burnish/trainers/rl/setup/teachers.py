"""From a run file to the teachers of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from burnish.config.domains import domain_settings
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_teacher import OWN_POLICY
from burnish.errors import ConfigError, ModelError
from burnish.forward.lanes import Lanes
from burnish.models.loading import LoadedModel, load_model, load_outline
from burnish.models.reference import FrozenReference
from burnish.models.roles import Reference
from burnish.models.teachers import Teachers
from burnish.models.tokenizers import vocabulary_difference
from burnish.trainers.chaining import with_weights
from burnish.trainers.rl.lessons import Lesson, Lessons

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def frozen(config: RlConfig, loaded: LoadedModel, lanes: Lanes) -> FrozenReference:
    """The loaded model itself, to score responses of the run."""
    temperature, budget = config.rollout.temperature, config.optimization.microbatch_tokens
    return FrozenReference(loaded, temperature=temperature, tokens_per_microbatch=budget, lanes=lanes)


def teacher_model(config: RlConfig, path: str) -> ModelConfig:
    """The model section of a teacher: the policy's, with complete weights from elsewhere."""
    return with_weights(config.model, path).model_copy(update={"router_aux_coef": 0.0})


def build_teachers(
    config: RlConfig, loaded: LoadedModel, lanes: Lanes, *, here: str, own: Callable[[], Reference]
) -> Teachers:
    """The teachers, each loaded, except for the one whose path is `here`: `own` makes it from a model of this
    process."""

    def load(path: str) -> Reference:
        return frozen(config, load_model(teacher_model(config, path), plain=loaded.plain, paths=loaded.paths), lanes)

    return Teachers([own() if path == here else load(path) for path in config.teacher_paths])


def loaded_alone(config: RlConfig, model: str) -> str:
    """Path of the model that the process of its own of a role begins with: of teachers the first, unless one of them is
    the policy."""
    paths = config.teacher_paths
    return OWN_POLICY if model != "teacher" or OWN_POLICY in paths else paths[0]


def open_lessons(config: RlConfig, teachers: Reference | None) -> Lessons | None:
    """The lesson of each domain, with the teachers; None for a run without any."""
    if teachers is None:
        return None
    taught = {domain.name: domain.teacher for domain in domain_settings(config)}
    number = {path: index for index, path in enumerate(config.teacher_paths)}
    lessons = {name: Lesson(number[own.path], own.weight) for name, own in taught.items() if own is not None}
    return Lessons(teachers, lessons)


def check_teachers(config: RlConfig, loaded: LoadedModel) -> None:
    """Raise ModelError for a teacher with another vocabulary than the policy's, and ConfigError for one whose context
    is too short for the texts of the run. Reads no weights."""
    longest = min(loaded.context_length, config.longest_text)
    for field, teacher in config.named_teachers.items():
        if teacher.path == OWN_POLICY:
            continue
        outline = load_outline(teacher_model(config, teacher.path))
        check_vocabulary(f"{field}.path", teacher.path, outline.tokenizer, loaded.tokenizer)
        if longest > outline.context_length:
            raise ConfigError(
                f"{field}.path {teacher.path!r} has a context of {outline.context_length:,} tokens, but prompt and "
                f"response may have {longest:,}",
                remedy="lower rollout.max_prompt_tokens or max_response_tokens, or use a teacher with a longer context",
            )


def check_vocabulary(field: str, path: str, theirs: PreTrainedTokenizerBase, ours: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for a teacher that reads other tokens than the policy writes."""
    difference = vocabulary_difference(theirs, ours)
    if difference is not None:
        raise ModelError(
            f"{field} {path!r} does not have the vocabulary of the policy, token by token of whose responses it is "
            f"asked: {difference}",
            remedy="use a teacher of the policy's model family, or train on texts that this teacher writes "
            "(`burnish sft`), which need no common vocabulary",
        )
