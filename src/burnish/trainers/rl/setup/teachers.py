"""From a run file to the teachers of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from burnish.config.domains import DomainSettings, domain_settings
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_teacher import OWN_POLICY, TeacherConfig
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError
from burnish.forward.lanes import Lanes
from burnish.models.loading import LoadedModel, load_model, load_outline
from burnish.models.reference import FrozenReference
from burnish.models.roles import Reference
from burnish.models.teachers import Teachers
from burnish.models.tokenizers import require_same_tokens
from burnish.trainers.chaining import with_weights
from burnish.trainers.rl.lessons import Lesson, TeacherPrompts, lesson_of
from burnish.trainers.rl.setup.feeds import with_template
from burnish.types import Prompt

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
    """Path of the model with which a role's own process begins: for teachers the first, unless one of them is the
    policy."""
    paths = config.teacher_paths
    return OWN_POLICY if model != "teacher" or OWN_POLICY in paths else paths[0]


def read_lessons(config: RlConfig, tokenizer: PreTrainedTokenizerBase) -> dict[str, Lesson]:
    """The lesson of each domain that has a teacher."""
    numbers = {path: number for number, path in enumerate(config.teacher_paths)}
    return {
        domain.key: Lesson(numbers[own.path], own.weight, _prompts(domain, own, tokenizer))
        for domain in domain_settings(config)
        if (own := domain.teacher) is not None
    }


def _prompts(
    domain: DomainSettings, teacher: TeacherConfig, tokenizer: PreTrainedTokenizerBase
) -> TeacherPrompts | None:
    if teacher.prompt is None:
        return None
    chat, field = ChatFormat(domain.chat, domain.template_options), f"{domain.place('teacher')}.prompt"
    return TeacherPrompts(teacher.prompt, with_template(tokenizer, domain.chat_template), chat, field)


def check_teacher_prompts(
    config: RlConfig,
    prompts: Iterable[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    contexts: Mapping[str, int | None],
) -> None:
    """Try the template of every teacher on every prompt. DataError for a row without a column that it names,
    ConfigError for a prompt that leaves no room for the longest response in the teacher's context. contexts: by path,
    where they are known."""
    lessons, room = read_lessons(config, tokenizer), config.rollout.max_response_tokens
    for prompt in prompts if any(lesson.prompts is not None for lesson in lessons.values()) else ():
        lesson = lesson_of(prompt, lessons)
        if lesson.prompts is None:
            continue
        context, tokens = contexts[config.teacher_paths[lesson.teacher]], len(lesson.prompts.tokens(prompt))
        if context is not None and tokens + room > context:
            raise ConfigError(
                f"{lesson.prompts.field} makes {tokens:,} tokens of prompt {prompt.id!r}, which leaves no room for "
                f"rollout.max_response_tokens {room:,} in a context of {context:,}",
                remedy="shorten the template, or leave out the rows that are long",
            )


def check_teachers(config: RlConfig, loaded: LoadedModel) -> dict[str, int | None]:
    """The context of each teacher by its path. Raises ModelError for a teacher with another vocabulary than the
    policy's, and ConfigError for one whose context is too short for the texts of the run. Reads no weights."""
    contexts: dict[str, int | None] = {OWN_POLICY: loaded.context_length}
    for field, teacher in config.named_teachers.items():
        if teacher.path != OWN_POLICY:
            outline = load_outline(teacher_model(config, teacher.path))
            check_vocabulary(f"{field}.path", teacher.path, outline.tokenizer, loaded.tokenizer)
            contexts[teacher.path] = outline.context_length
    check_contexts(config, contexts)
    return contexts


def check_contexts(config: RlConfig, contexts: Mapping[str, int | None]) -> None:
    """Raise ConfigError for a teacher whose context is too short for what the policy reads and writes. contexts: by
    path, where they are known."""
    longest = min(config.longest_text, contexts.get(OWN_POLICY) or config.longest_text)
    for field, teacher in config.named_teachers.items():
        context = contexts[teacher.path]
        if context is not None and longest > context:
            raise ConfigError(
                f"{field}.path {teacher.path!r} has a context of {context:,} tokens, but prompt and response may have "
                f"{longest:,}",
                remedy="lower rollout.max_prompt_tokens or max_response_tokens, or use a teacher with a longer context",
            )


def check_vocabulary(field: str, path: str, theirs: PreTrainedTokenizerBase, ours: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for a teacher that reads other tokens than the policy writes."""
    remedy = (
        "use a teacher of the policy's model family, or train on texts that this teacher writes (`burnish sft`), which "
        "need no common vocabulary"
    )
    require_same_tokens(field, path, theirs, ours, remedy=remedy)
