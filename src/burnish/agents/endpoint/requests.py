"""Requests of clients: OpenAI's chat completions and completions, and tokens in and out as in vLLM.

All of this is untrusted input. A field that is not understood is refused by name; nothing is silently ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from burnish.agents.endpoint.answer_constraints import DEMANDS, Demands, read_demands
from burnish.data.turns import checked_message
from burnish.errors import DataError, RolloutError
from burnish.outside.listening import RefusedError, wrong
from burnish.rollouts.engine import Sampling
from burnish.rollouts.sampling import check_sampling
from burnish.types import Json, Message

Others = Literal["refuse", "ignore", "follow"]
"""Treatment of requests for other sampling settings than the run's."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "verbosity": ("medium",),
}
"""Fields that would change the samples, with the values that change nothing."""
_CHOSEN: Mapping[str, float] = {"temperature": 0.0, "top_p": 0.0, "min_p": 0.0, "top_k": -1.0}
"""Sampling settings of the run, with the lowest value of each."""
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "prompt_logprobs": (False,),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    **{f"guided_{form}": () for form in ("json", "regex", "choice", "grammar")},
    "structured_outputs": (),
}
"""Fields that this server does not support, with the values that have no effect."""
_CHAT = frozenset({"messages", "tools", "chat_template_kwargs", "reasoning_effort", *DEMANDS})
_MOST_SAMPLES = 128
_MOST_PROMPT_LOGPROBS = 128
_MOST_STOP_TOKENS = 256
_MOST_WHOLE = 2**63 - 1
_TOKEN_CHARACTERS = 32
"""More characters per token than any text has on average. A text longer than a context of such tokens is not read."""
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
    | {"stream_options", "skip_special_tokens", "spaces_between_special_tokens", "cache_salt", "priority"}
    | {"request_id", "detokenize", "output_kind", "routed_experts_prompt_start"}
)
"""Fields that do not change the samples, and that clients send routinely."""
_READ = frozenset(
    {"model", "stream", "max_tokens", "max_completion_tokens", "stop", "stop_token_ids", "logprobs", "seed", "n"}
    | {"return_token_ids", "return_tokens_as_token_ids"}
)
"""Fields that every route reads, besides its own."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits and settings for the clients of a trajectory.

    sampling: of the run. model: the name that clients give. context: tokens of prompt and answer. others: see `Others`.
    options: arguments of the chat template; reads: names of all that it takes. message_tokens: fewest of a message.
    scores_prompts: whether log-probabilities of prompts are known.
    """

    sampling: Sampling
    model: str
    context: int
    others: Others = "refuse"
    options: Mapping[str, Json] = field(default_factory=dict)
    reads: Set[str] = frozenset()
    message_tokens: int = 1
    scores_prompts: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """A client's settings for its turn.

    max_tokens: fewer than the run allows, if any. stop, stop_token_ids: further ends; the texts are left out of the
    answer. chosen, seed: in place of the server's own settings, where clients may choose. samples: number of answers.
    logprobs, token_ids: whether to return them. prompt_logprobs: number of the likeliest tokens to name at each token
    of the prompt, besides the token itself; None for no log-probabilities of the prompt. names_ids: log-probabilities
    name tokens by their ids. ignored: fields without effect here. demands: conditions on the answer.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    chosen: Mapping[str, float | bool] = field(default_factory=dict)
    seed: int | None = None
    samples: int = 1
    logprobs: bool = False
    prompt_logprobs: int | None = None
    token_ids: bool = False
    names_ids: bool = False
    stream: bool = False
    stream_usage: bool = False
    ignored: tuple[str, ...] = ()
    demands: Demands = field(default_factory=Demands)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The history, whose last message is not the policy's, and the tools that are offered. options: arguments of the
    chat template that differ from the server's own."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Json], ...]
    wish: Wish
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A text to be continued."""

    prompt: str
    wish: Wish


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Tokens to be continued. as_text: whether the answer has the form of a completion."""

    tokens: tuple[int, ...]
    wish: Wish
    as_text: bool = False


@dataclass(frozen=True, slots=True)
class RewardCall:
    """The reward of the trajectory."""

    reward: float


TurnRequest = ChatRequest | TextRequest | TokenRequest


def read_chat(asked: Mapping[str, Any], terms: Terms) -> ChatRequest:
    """Read `POST /v1/chat/completions`. RefusedError for a request that cannot be answered."""
    _check_model(asked, terms)
    tools = _tools(asked.get("tools"))
    options, others, ignored = _template_options(asked, terms)
    demands = read_demands(asked, tools)
    if terms.others == "ignore":
        ignored += demands.fields
        demands = Demands(calls=demands.calls)
    wish = replace(_wish(asked, terms, _CHAT, texts=True, others=others, ignored=ignored), demands=demands)
    if not isinstance(asked.get("logprobs", False), (bool, type(None))):
        raise wrong("logprobs", "logprobs has to be true or false")
    return ChatRequest(_messages(asked.get("messages"), asked.get("tools"), terms), tools, wish, options)


def _messages(messages: Any, tools: Any, terms: Terms) -> tuple[Message, ...]:
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "messages has to be a list of at least one message")
    _check_size(len(messages), sum(map(len, texts_in([messages, tools]))), terms, "messages")
    try:
        turns = tuple(checked_message(item, f"messages[{number}]") for number, item in enumerate(messages))
    except DataError as error:
        raise wrong("messages", str(error)) from error
    for number, turn in enumerate(turns):
        if not isinstance(turn.extra.get("tool_call_id", ""), (str, type(None))):
            raise wrong("messages", f"messages[{number}].tool_call_id has to be a text")
    if turns[-1].role == "assistant":
        raise wrong("messages", "the last message is the assistant's, so there is nothing to answer")
    return tuple(replace(turn, role="system") if turn.role == "developer" else turn for turn in turns)


def read_completion(asked: Mapping[str, Any], terms: Terms) -> TextRequest | TokenRequest:
    """Read `POST /v1/completions`, with a text or with tokens."""
    _check_model(asked, terms)
    logprobs = asked.get("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or logprobs not in (0, 1)):
        raise wrong("logprobs", "logprobs has to be 0 or 1: only those of the sampled tokens are known")
    named = None
    if terms.scores_prompts and asked.get("prompt_logprobs") is not False:
        named = _whole(asked, "prompt_logprobs", 0, _MOST_PROMPT_LOGPROBS)
        asked = {**asked, "prompt_logprobs": None}
    wish = _wish(asked, terms, {"prompt"}, texts=True)
    wish = replace(wish, logprobs=logprobs is not None, prompt_logprobs=named)
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        _check_size(0, len(prompt), terms, "prompt")
        return TextRequest(prompt, wish)
    return TokenRequest(_tokens(prompt, "prompt", terms.context), wish, as_text=True)


def read_tokens(asked: Mapping[str, Any], terms: Terms) -> TokenRequest:
    """Read `POST /inference/v1/generate`: tokens in and out, with `sampling_params`, as in vLLM and its clients."""
    if asked.get("model") is not None:
        _check_model(asked, terms)
    sampling = object_in(asked, "sampling_params")
    if sampling.get("logprobs") not in (None, 0, 1):
        raise wrong("sampling_params", "sampling_params.logprobs has to be 0 or 1")
    both = {**{name: value for name, value in asked.items() if name != "sampling_params"}, **sampling}
    wish = replace(_wish(both, terms, {"token_ids"}, texts=False), logprobs=True, token_ids=True)
    return TokenRequest(_tokens(asked.get("token_ids"), "token_ids", terms.context), wish)


def read_reward(asked: Mapping[str, Any]) -> RewardCall:
    """Read `POST .../reward`: `{"reward": 1.0}`."""
    reward = asked.get("reward")
    try:
        value = float(reward) if isinstance(reward, (int, float)) and not isinstance(reward, bool) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        value = math.inf
    if not math.isfinite(value):
        raise wrong("reward", "reward has to be a finite number")
    return RewardCall(value)


def _check_model(asked: Mapping[str, Any], terms: Terms) -> None:
    if asked.get("model") != terms.model:
        raise RefusedError(
            404,
            f"the model {asked.get('model')!r:.80} is not served here, but {terms.model!r} is",
            code="model_not_found",
            param="model",
        )


def _wish(
    asked: Mapping[str, Any],
    terms: Terms,
    own: Set[str],
    *,
    texts: bool,
    others: Sequence[str] = (),
    ignored: Sequence[str] = (),
) -> Wish:
    """Read the settings of a request. own: fields that only this route has. texts: whether stop texts make sense.
    others: its own fields that would change the samples. ignored: its own fields without effect."""
    given = {name: value for name, value in asked.items() if value is not None}
    chosen = _chosen(given)
    others = [*_others(given, own, chosen, terms), *others]
    if others and terms.others != "ignore":
        raise wrong(others[0], _why(others, given, terms))
    options = object_in(given, "stream_options")
    stops = given.get("stop_token_ids")
    limits = [_whole(given, name, 1, _MOST_WHOLE) for name in ("max_tokens", "max_completion_tokens")]
    return Wish(
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        stop=_stop_texts(given.get("stop"), texts),
        stop_token_ids=_tokens(stops, "stop_token_ids", _MOST_STOP_TOKENS) if stops else (),
        chosen=chosen if terms.others == "follow" else {},
        seed=_whole(given, "seed", 0, _MOST_WHOLE) if terms.others == "follow" else None,
        samples=_whole(given, "n", 1, _MOST_SAMPLES) or 1,
        logprobs=given.get("logprobs") is True,
        token_ids=_flag(given, "return_token_ids"),
        names_ids=_flag(given, "return_tokens_as_token_ids"),
        stream=_flag(given, "stream"),
        stream_usage=options.get("include_usage") is True,
        ignored=tuple(sorted({*others, *ignored})),
    )


def _others(given: Mapping[str, Any], own: Set[str], chosen: Mapping[str, Any], terms: Terms) -> list[str]:
    """List the fields that would change the samples, or do not exist. RefusedError for fields that no rule allows."""
    for name, harmless in _REFUSED.items():
        if name in given and not among(given[name], harmless):
            raise wrong(name, f"{name} {given[name]!r:.60} is not supported by this server")
    known = {*_READ, *own, *_REFUSED, *_NEUTRAL, *_CHOSEN, *_WITHOUT_EFFECT}
    others = [name for name in given if name not in known]
    if strange := [name for name in others if not (name.isascii() and name.isprintable())]:
        # Under every rule: the header that tells which fields were ignored could not hold such a name.
        raise RefusedError(400, f"the field {strange[0]!r:.60} does not exist")
    others += [name for name, values in _NEUTRAL.items() if name in given and not _is_neutral(given[name], values)]
    if terms.others != "follow":
        others += [name for name, value in chosen.items() if value != _ours(name, terms.sampling)]
        others += ["seed"] if "seed" in given else []
    return others


def _is_neutral(value: Any, values: tuple[Any, ...]) -> bool:
    return among(value, values) or (isinstance(value, dict) and not any(value.values()))  # logit_bias of zeros


def _template_options(asked: Mapping[str, Any], terms: Terms) -> tuple[dict[str, Json], list[str], list[str]]:
    """Return the arguments of the chat template that differ from the server's own, if clients may choose; the fields
    that would change the samples, if they may not; and the fields without effect."""
    given = {} if asked.get("chat_template_kwargs") is None else object_in(asked, "chat_template_kwargs")
    if unread := [name for name in given if name not in terms.reads and name not in terms.options]:
        raise wrong(
            "chat_template_kwargs",
            f"the chat template has no argument {unread[0]!r:.60}, but {', '.join(sorted(terms.reads)) or 'none'}",
        )
    effort, name = asked.get("reasoning_effort"), "reasoning_effort"
    ignored = [name] if effort not in (None, "none") and name not in terms.reads else []
    sources = dict.fromkeys(given, "chat_template_kwargs")
    if effort is not None and name in terms.reads:
        given, sources = {**given, name: effort}, {**sources, name: name}
    options = {name: value for name, value in given.items() if not _same(value, terms.options.get(name))}
    if terms.others == "follow":
        return options, [], ignored
    return {}, sorted({sources[name] for name in options}), ignored


def _check_size(count: int, characters: int, terms: Terms, name: str) -> None:
    """Raise RefusedError for messages or a text that cannot fit, before any work is done on them."""
    if count * terms.message_tokens > terms.context or characters > _TOKEN_CHARACTERS * terms.context:
        raise _too_long(
            name,
            f"This model's maximum context length is {terms.context} tokens. {name} is too long for it: "
            f"{count:,} items with {characters:,} characters.",
        )


def _too_long(name: str, why: str) -> RefusedError:
    return RefusedError(400, why, code="context_length_exceeded", param=name)


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    todo = [value]
    while todo:
        match todo.pop():
            case str() as text:
                yield text
            case list() | tuple() as items:
                todo += items
            case dict() as items:
                todo += [*items, *items.values()]


def _chosen(given: Mapping[str, Any]) -> dict[str, float | bool]:
    """The sampling settings of a request, in the words of `Sampling`."""
    chosen: dict[str, float | bool] = {}
    for name, least in _CHOSEN.items():
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 1e6:
            raise wrong(name, f"{name} {value!r:.60} is not a number that it can be")
        chosen[name] = max(int(value), 0) if name == "top_k" else float(value)
    try:
        check_sampling(Sampling(1, **{**chosen, "temperature": chosen.get("temperature") or 1.0}))  # type: ignore[arg-type]
    except RolloutError as error:
        raise wrong(next(iter(chosen)), error.line) from error
    return chosen


def _why(others: list[str], given: Mapping[str, Any], terms: Terms) -> str:
    name = others[0]
    if name in _CHOSEN:
        ours = _ours(name, terms.sampling)
        return f"{name} is {ours:g} in this run, and not {given[name]!r:.60}: leave it out of the request"
    if terms.others == "follow" or name not in {*_NEUTRAL, *_CHAT, "seed"}:
        return f"there is no {name} at this address: leave it out of the request"
    return f"{name} {given[name]!r:.60} would change what this run samples: leave it out of the request"


def _ours(name: str, sampling: Sampling) -> float:
    """A setting of the run in the form of a request, in which temperature 0 means greedy."""
    return 0.0 if name == "temperature" and sampling.greedy else float(getattr(sampling, name))


def _whole(given: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = given.get(name)
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise wrong(name, f"{name} has to be a whole number from {least} to {most}, not {value!r:.60}")
    return value


def object_in(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object in a field; an empty one without the field. RefusedError for anything else."""
    value = given.get(name, {})
    if not isinstance(value, dict):
        raise wrong(name, f"{name} has to be an object")
    return value


def _flag(given: Mapping[str, Any], name: str) -> bool:
    if not isinstance(given.get(name, False), bool):
        raise wrong(name, f"{name} has to be true or false")
    return bool(given.get(name, False))


def _stop_texts(value: Any, texts: bool) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops) or len(stops) > 16:
        raise wrong("stop", "stop has to be a text, or a list of at most 16")
    if stops and not texts:
        raise wrong("stop", "stop is not supported where tokens are asked for: use stop_token_ids")
    return tuple(stops)


def _tokens(value: Any, name: str, most: int) -> tuple[int, ...]:
    if isinstance(value, list) and len(value) > most:
        raise _too_long(name, f"{name} has {len(value):,} tokens, and {most:,} are the most here")
    if not isinstance(value, list) or not value or any(type(one) is not int or not 0 <= one < 2**31 for one in value):
        also = "a text or " if name == "prompt" else ""
        raise wrong(name, f"{name} has to be {also}a list of token ids")
    return tuple(value)


def _tools(value: Any) -> tuple[Mapping[str, Json], ...]:
    """Schemas of functions."""
    tools = [] if value is None else value
    if not isinstance(tools, list):
        raise wrong("tools", "tools has to be a list")
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise wrong("tools", f"tools[{number}] is not a function with a name")
    return tuple(tools)


def among(value: Any, values: tuple[Any, ...]) -> bool:
    """Return whether the value is one of these; True is not 1."""
    return any(_same(value, one) for one in values)


def _same(value: Any, other: Any) -> bool:
    """Return whether the two are equal; True is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
