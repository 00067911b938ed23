"""What clients ask: OpenAI's chat completions and completions, and tokens in and out as vLLM has them.

Everything here comes from outside. What is not understood is refused with the name of the field; nothing is left out in
silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from burnish.data.turns import checked_message
from burnish.errors import DataError, RolloutError
from burnish.rollouts.engine import Sampling
from burnish.rollouts.sampling import check_sampling
from burnish.types import Json, Message

Others = Literal["refuse", "ignore", "follow"]
"""What happens to a request that wants other sampling settings than those of the run."""

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
    "chat_template_kwargs": ({},),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "parallel_tool_calls": (True,),
}
"""Fields that would change what is sampled, with the values that change nothing."""
_CHOSEN: Mapping[str, float] = {"temperature": 0.0, "top_p": 0.0, "min_p": 0.0, "top_k": -1.0}
"""Sampling settings of the run, with the least value of each."""
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "prompt_logprobs": (0, False),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "tool_choice": ("auto",),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    **{f"guided_{form}": () for form in ("json", "regex", "choice", "grammar")},
    "structured_outputs": (),
}
"""Fields that this server does not have, with the values that ask for nothing."""
_WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "stream_options",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "cache_salt",
        "priority",
        "request_id",
        "detokenize",
        "output_kind",
        "routed_experts_prompt_start",
    }
)
"""Fields that change nothing in what is sampled, and that clients send as a matter of course."""
_READ = frozenset(
    {"model", "stream", "max_tokens", "max_completion_tokens", "stop", "stop_token_ids", "logprobs", "seed"}
    | {"return_token_ids", "return_tokens_as_token_ids"}
)
"""What every route reads, next to its own fields."""


class RefusedError(Exception):
    """A request that gets no turn. status: of HTTP. code, param: as in OpenAI's errors."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Terms:
    """What clients of a trajectory may ask.

    sampling: of the run. model: the name that clients give. context: tokens of prompt and answer. others: see `Others`.
    """

    sampling: Sampling
    model: str
    context: int
    others: Others = "refuse"


@dataclass(frozen=True, slots=True)
class Wish:
    """How a client wants its turn.

    max_tokens: fewer than the run allows, if any. stop, stop_token_ids: further ends; the texts are left out of the
    answer. chosen, seed: in place of the server's own settings, where clients may choose. logprobs, token_ids: whether
    to return them. names_ids: log-probabilities name tokens by their ids. ignored: fields that have no effect here.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    chosen: Mapping[str, float | bool] = field(default_factory=dict)
    seed: int | None = None
    logprobs: bool = False
    token_ids: bool = False
    names_ids: bool = False
    stream: bool = False
    stream_usage: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The history, whose last message is not the policy's, and the tools that are offered."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Json], ...]
    wish: Wish


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
    """What the trajectory is worth."""

    reward: float


TurnRequest = ChatRequest | TextRequest | TokenRequest


def read_chat(asked: Mapping[str, Any], terms: Terms) -> ChatRequest:
    """`POST /v1/chat/completions`. RefusedError for what cannot be answered."""
    _check_model(asked, terms)
    wish = _wish(asked, terms, {"messages", "tools"}, texts=True)
    if not isinstance(asked.get("logprobs", False), (bool, type(None))):
        raise RefusedError(400, "logprobs has to be true or false", param="logprobs")
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages has to be a list of at least one message", param="messages")
    try:
        turns = tuple(checked_message(item, f"messages[{number}]") for number, item in enumerate(messages))
    except DataError as error:
        raise RefusedError(400, str(error), param="messages") from error
    for number, turn in enumerate(turns):
        if not isinstance(turn.extra.get("tool_call_id", ""), (str, type(None))):
            raise RefusedError(400, f"messages[{number}].tool_call_id has to be a text", param="messages")
    if turns[-1].role == "assistant":
        raise RefusedError(400, "the last message is the assistant's, so there is nothing to answer", param="messages")
    return ChatRequest(turns, _tools(asked.get("tools")), wish)


def read_completion(asked: Mapping[str, Any], terms: Terms) -> TextRequest | TokenRequest:
    """`POST /v1/completions`, with a text or with tokens."""
    _check_model(asked, terms)
    logprobs = asked.get("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or logprobs not in (0, 1)):
        raise RefusedError(
            400, "logprobs has to be 0 or 1: only those of the sampled tokens are known", param="logprobs"
        )
    wish = replace(_wish(asked, terms, {"prompt"}, texts=True), logprobs=logprobs is not None)
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return TextRequest(prompt, wish)
    return TokenRequest(_tokens(prompt, "prompt"), wish, as_text=True)


def read_tokens(asked: Mapping[str, Any], terms: Terms) -> TokenRequest:
    """`POST /inference/v1/generate`: tokens in and out, with `sampling_params`, as vLLM and its clients have it."""
    if asked.get("model") is not None:
        _check_model(asked, terms)
    sampling = asked.get("sampling_params", {})
    if not isinstance(sampling, dict):
        raise RefusedError(400, "sampling_params has to be an object", param="sampling_params")
    if sampling.get("logprobs") not in (None, 0, 1):
        raise RefusedError(400, "sampling_params.logprobs has to be 0 or 1", param="sampling_params")
    both = {**{name: value for name, value in asked.items() if name != "sampling_params"}, **sampling}
    wish = replace(_wish(both, terms, {"token_ids"}, texts=False), logprobs=True, token_ids=True)
    return TokenRequest(_tokens(asked.get("token_ids"), "token_ids"), wish)


def read_reward(asked: Mapping[str, Any]) -> RewardCall:
    """`POST .../reward`: `{"reward": 1.0}`."""
    reward = asked.get("reward")
    try:
        value = float(reward) if isinstance(reward, (int, float)) and not isinstance(reward, bool) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        value = math.inf
    if not math.isfinite(value):
        raise RefusedError(400, "reward has to be a finite number", param="reward")
    return RewardCall(value)


def _check_model(asked: Mapping[str, Any], terms: Terms) -> None:
    if asked.get("model") != terms.model:
        raise RefusedError(
            404,
            f"the model {asked.get('model')!r:.80} is not served here, but {terms.model!r} is",
            code="model_not_found",
            param="model",
        )


def _wish(asked: Mapping[str, Any], terms: Terms, own: Set[str], *, texts: bool) -> Wish:
    """own: fields that only this route has. texts: whether stop texts make sense."""
    given = {name: value for name, value in asked.items() if value is not None}
    for name, harmless in _REFUSED.items():
        if name in given and not _among(given[name], harmless):
            raise RefusedError(400, f"{name} {given[name]!r:.60} is not supported by this server", param=name)
    known = {*_READ, *own, *_REFUSED, *_NEUTRAL, *_CHOSEN, *_WITHOUT_EFFECT}
    others = [name for name in given if name not in known]
    if strange := [name for name in others if not (name.isascii() and name.isprintable())]:
        # Under every rule: the header that tells which fields were ignored could not hold such a name.
        raise RefusedError(400, f"the field {strange[0]!r:.60} does not exist")
    others += [name for name, values in _NEUTRAL.items() if name in given and not _among(given[name], values)]
    chosen = _chosen(given)
    if terms.others != "follow":
        others += [name for name, value in chosen.items() if value != _ours(name, terms.sampling)]
    if "seed" in given and terms.others != "follow":
        others.append("seed")
    if others and terms.others != "ignore":
        raise RefusedError(400, _why(others, given, terms), param=others[0])
    options = given.get("stream_options")
    return Wish(
        max_tokens=_limit(given),
        stop=_stop_texts(given.get("stop"), texts),
        stop_token_ids=_stop_tokens(given.get("stop_token_ids")),
        chosen=chosen if terms.others == "follow" else {},
        seed=_seed(given) if terms.others == "follow" else None,
        logprobs=given.get("logprobs") is True,
        token_ids=_flag(given, "return_token_ids"),
        names_ids=_flag(given, "return_tokens_as_token_ids"),
        stream=_flag(given, "stream"),
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
        ignored=tuple(sorted(others)),
    )


def _chosen(given: Mapping[str, Any]) -> dict[str, float | bool]:
    """The sampling settings of a request, in the words of `Sampling`."""
    chosen: dict[str, float | bool] = {}
    for name, least in _CHOSEN.items():
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= 1e6:
            raise RefusedError(400, f"{name} {value!r:.60} is not a number that it can be", param=name)
        chosen[name] = max(int(value), 0) if name == "top_k" else float(value)
    try:
        check_sampling(Sampling(1, **{**chosen, "temperature": chosen.get("temperature") or 1.0}))  # type: ignore[arg-type]
    except RolloutError as error:
        raise RefusedError(400, f"{error.message}: {error.remedy}", param=next(iter(chosen))) from error
    return chosen


def _why(others: list[str], given: Mapping[str, Any], terms: Terms) -> str:
    name = others[0]
    if name in _CHOSEN:
        ours = _ours(name, terms.sampling)
        return f"{name} is {ours:g} in this run, and not {given[name]!r:.60}: leave it out of the request"
    if terms.others == "follow" or name not in {*_NEUTRAL, "seed"}:
        return f"there is no {name} at this address: leave it out of the request"
    return f"{name} {given[name]!r:.60} would change what this run samples: leave it out of the request"


def _ours(name: str, sampling: Sampling) -> float:
    """A setting of the run in the words of a request, where temperature 0 takes the likeliest token."""
    return 0.0 if name == "temperature" and sampling.greedy else float(getattr(sampling, name))


def _limit(given: Mapping[str, Any]) -> int | None:
    limits = [given[name] for name in ("max_tokens", "max_completion_tokens") if name in given]
    if any(type(limit) is not int or limit < 1 for limit in limits):
        raise RefusedError(
            400, f"max_tokens has to be a whole number from 1, not {limits[0]!r:.60}", param="max_tokens"
        )
    return min(limits) if limits else None


def _seed(given: Mapping[str, Any]) -> int | None:
    seed = given.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise RefusedError(400, f"seed has to be a whole number from 0, not {seed!r:.60}", param="seed")
    return seed


def _flag(given: Mapping[str, Any], name: str) -> bool:
    if not isinstance(given.get(name, False), bool):
        raise RefusedError(400, f"{name} has to be true or false", param=name)
    return bool(given.get(name, False))


def _stop_texts(value: Any, texts: bool) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops) or len(stops) > 16:
        raise RefusedError(400, "stop has to be a text, or a list of at most 16", param="stop")
    if stops and not texts:
        raise RefusedError(400, "stop is not supported where tokens are asked for: use stop_token_ids", param="stop")
    return tuple(stops)


def _stop_tokens(value: Any) -> tuple[int, ...]:
    return () if value is None or value == [] else _tokens(value, "stop_token_ids")


def _tokens(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_token, value)):
        also = "a text or " if name == "prompt" else ""
        raise RefusedError(400, f"{name} has to be {also}a list of token ids", param=name)
    return tuple(value)


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _tools(value: Any) -> tuple[Mapping[str, Json], ...]:
    """Schemas of functions."""
    tools = [] if value is None else value
    if not isinstance(tools, list):
        raise RefusedError(400, "tools has to be a list", param="tools")
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise RefusedError(400, f"tools[{number}] is not a function with a name", param="tools")
    return tuple(tools)


def _among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(_same(value, one) for one in values)


def _same(value: Any, other: Any) -> bool:
    """Equal, where True is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
