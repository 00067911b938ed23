"""From a run file to the teachers of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from burnish.config.domains import DomainSettings, domain_settings
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_teacher import OWN_POLICY, TeacherConfig
from burnish.data.template import ChatFormat
from burnish.errors import ConfigError
from burnish.forward.lanes import Lanes
from burnish.models.distillation import Teachers
from burnish.models.endpoint_teacher import endpoint_teacher
from burnish.models.folders import resolve_source
from burnish.models.loading import LoadedModel, load_model, load_outline
from burnish.models.reference import FrozenReference
from burnish.models.roles import Reference
from burnish.models.tokenizers import load_tokenizer, require_same_tokens
from burnish.trainers.chaining import with_weights
from burnish.trainers.rl.lessons import Lesson, TeacherPrompts, lesson_of
from burnish.trainers.rl.setup.feeds import with_template
from burnish.types import Prompt, Tokenizer


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
    """The teachers with a path, each loaded, except for the one whose path is `here`: `own` makes it from a model of
    this process."""

    def load(path: str) -> Reference:
        return frozen(config, load_model(teacher_model(config, path), plain=loaded.plain, paths=loaded.paths), lanes)

    return Teachers([own() if path == here else load(path) for path in config.teacher_paths])


def with_endpoints(config: RlConfig, loaded: Reference | None) -> Reference | None:
    """Teachers of the run: the loaded ones, in whichever process they are, and the ones that the command's process
    asks at their endpoints. None if there is none."""
    if not config.teacher_endpoints:
        return loaded
    here = [loaded for _ in config.teacher_paths if loaded is not None]
    return Teachers([*here, *map(endpoint_teacher, config.teacher_endpoints)])


def loaded_alone(config: RlConfig, model: str) -> str:
    """Path of the model with which a role's own process begins: for teachers the first, unless one of them is the
    policy."""
    paths = config.teacher_paths
    return OWN_POLICY if model != "teacher" or OWN_POLICY in paths else paths[0]


def read_lessons(config: RlConfig, tokenizer: Tokenizer) -> dict[str, Lesson]:
    """The lesson of each domain that has a teacher."""
    models = (*config.teacher_paths, *config.teacher_endpoints)  # as in `with_endpoints`
    numbers = {model: number for number, model in enumerate(models)}
    return {
        domain.key: Lesson(numbers[own.model], own.weight, _prompts(domain, own, tokenizer))
        for domain in domain_settings(config)
        if (own := domain.teacher) is not None
    }


def _prompts(domain: DomainSettings, teacher: TeacherConfig, tokenizer: Tokenizer) -> TeacherPrompts | None:
    if teacher.prompt is None:
        return None
    chat, field = ChatFormat(domain.chat, domain.template_options), f"{domain.place('teacher')}.prompt"
    return TeacherPrompts(teacher.prompt, with_template(tokenizer, domain.chat_template), chat, field)


def check_teacher_prompts(
    config: RlConfig, prompts: Iterable[Prompt], tokenizer: Tokenizer, contexts: Mapping[str, int | None]
) -> None:
    """Try the template of every teacher on every prompt. DataError for a row without a column that it names,
    ConfigError for a prompt that leaves no room for the longest response in the teacher's context. contexts: by path,
    where they are known; of no endpoint."""
    paths = dict(enumerate(config.teacher_paths))
    lessons, room = read_lessons(config, tokenizer), config.rollout.max_response_tokens
    for prompt in prompts if any(lesson.prompts is not None for lesson in lessons.values()) else ():
        lesson = lesson_of(prompt, lessons)
        if lesson.prompts is None:
            continue
        context, tokens = contexts.get(paths.get(lesson.teacher, "")), len(lesson.prompts.tokens(prompt))
        if context is not None and tokens + room > context:
            raise ConfigError(
                f"{lesson.prompts.field} makes {tokens:,} tokens of prompt {prompt.id!r}, which leaves no room for "
                f"rollout.max_response_tokens {room:,} in a context of {context:,}",
                remedy="shorten the template, or leave out the rows that are long",
            )


def check_teachers(config: RlConfig, loaded: LoadedModel) -> dict[str, int | None]:
    """The context of each teacher by its path. Raises ModelError for a teacher with another vocabulary than the
    policy's, or whose endpoint cannot score the run's texts, and ConfigError for one whose context is too short for
    them. Reads no weights."""
    contexts: dict[str, int | None] = {OWN_POLICY: loaded.context_length}
    for field, path in config.named_teacher_paths.items():
        resolve_source(path, field=field)
        outline = load_outline(teacher_model(config, path))
        check_vocabulary(field, path, outline.tokenizer, loaded.tokenizer)
        contexts[path] = outline.context_length
    check_contexts(config, contexts)
    check_endpoints(config, loaded.tokenizer, min(config.longest_text, loaded.context_length))
    return contexts


def check_endpoints(config: RlConfig, ours: Tokenizer, longest: int, seconds: float = math.inf) -> None:
    """Compare vocabularies with each teacher at an endpoint, and ask it about texts as long as the `longest` of the
    run (`EndpointTeacher.check`). seconds: at most, for an answer."""
    for teacher in config.teacher_endpoints:
        if teacher.tokenizer is not None:
            resolve_source(teacher.tokenizer, field="teacher.tokenizer")
            theirs = load_tokenizer(teacher_model(config, teacher.tokenizer).model_copy(update={"tokenizer": None}))
            check_vocabulary("teacher.tokenizer", teacher.tokenizer, theirs, ours)
        asked = replace(endpoint_teacher(teacher), timeout_seconds=min(teacher.timeout_seconds, seconds))
        asked.check(ours, longest, compare_texts=teacher.tokenizer is None)


def check_contexts(config: RlConfig, contexts: Mapping[str, int | None]) -> None:
    """Raise ConfigError for a teacher whose context is too short for what the policy reads and writes. contexts: by
    path, where they are known."""
    longest = min(config.longest_text, contexts.get(OWN_POLICY) or config.longest_text)
    for field, path in config.named_teacher_paths.items():
        context = contexts[path]
        if context is not None and longest > context:
            raise ConfigError(
                f"{field} {path!r} has a context of {context:,} tokens, but prompt and response may have {longest:,}",
                remedy="lower rollout.max_prompt_tokens or max_response_tokens, or use a teacher with a longer context",
            )


def check_vocabulary(field: str, path: str, theirs: Tokenizer, ours: Tokenizer) -> None:
    """Raise ModelError for a teacher that reads other tokens than the policy writes."""
    remedy = (
        "use a teacher of the policy's model family, or train on texts that this teacher writes (`burnish sft`), which "
        "need no common vocabulary"
    )
    require_same_tokens(field, path, theirs, ours, remedy=remedy)
