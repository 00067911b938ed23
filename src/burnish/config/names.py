"""Names of algorithms that a run file may use, listed here so that a run file can be checked without loading torch.

A test checks that the first three tables agree with the tables and signatures of `burnish.algorithms`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeGuard

from burnish.errors import suggestion

KEEP_THINKING = "keep_thinking"
"""Value of `model.chat_template`: the tokenizer's own, changed to keep the thinking of earlier turns."""
_ESTIMATORS: Mapping[str, tuple[str, ...]] = {
    "gae": ("critic", "gamma", "lam", "discount"),
    "grpo": ("group",),
    "dr_grpo": ("group",),
    "rloo": ("group",),
    "reinforce_plus_plus": ("gamma", "discount"),
    "reinforce_plus_plus_baseline": ("group",),
    "remax": ("greedy",),
    "opo": ("group",),
    "gpg": ("group",),
    "passk": ("group",),
    "gdpo": ("group",),
    "grpo_batch_std": ("group",),
    "maxrl": ("group",),
    "raw": (),
    "turn_grpo": ("group", "gamma"),
    "gigpo": ("group", "gamma"),
    "best_of_n": ("group",),
    "online_dpo": ("group", "old", "reference"),
    "opd": ("teacher", "old"),
}
"""Needs of each built-in estimator (a critic's values, the other samples of its group, a greedy response, the
log-probabilities of a teacher, of the reference or of the weights that sampled), and the fields of `algorithm` that it
uses."""
_LOSSES: Mapping[str, tuple[str, ...]] = {
    "ppo_clip": ("clip_low", "clip_high"),
    "reinforce": (),
    "gspo": ("clip_low", "clip_high"),
    "turn_gspo": ("clip_low", "clip_high"),
    "gmpo": ("clip_low", "clip_high"),
    "cispo": ("clip_low",),
    "tis": (),
    "topr": (),
    "sapo": (),
    "kl_cov": (),
    "clip_cov": ("clip_low", "clip_high"),
    "kimi": (),
    "dppo": ("clip_low", "clip_high"),
}
"""Clips that each built-in loss uses."""
PAIR_LOSSES: Mapping[str, tuple[str, ...]] = {
    "sigmoid": ("beta", "label_smoothing", "divergence", "alpha"),
    "robust": ("beta", "label_smoothing", "divergence", "alpha"),
    "ipo": ("beta",),
    "hinge": ("beta", "divergence", "alpha"),
    "exo_pair": ("beta", "label_smoothing"),
    "nca_pair": ("beta",),
    "apo_zero": ("beta",),
    "apo_down": ("beta",),
    "aot": ("beta", "label_smoothing"),
    "aot_unpaired": ("beta", "label_smoothing"),
    "sppo_hard": ("beta",),
    "discopop": ("beta", "tau"),
    "sft": (),
    "simpo": ("beta", "gamma"),
    "cpo": ("beta", "alpha"),
    "orpo": ("lam",),
    "kto": ("beta", "desirable_weight", "undesirable_weight"),
}
"""Options of each built-in loss on preferences."""
RATED_LOSS = "kto"
"""The one that rates single responses; all others compare pairs."""
REFERENCE_FREE_LOSSES = ("sft", "simpo", "cpo", "orpo")
REFERENCE_LOSSES = tuple(name for name in PAIR_LOSSES if name not in REFERENCE_FREE_LOSSES)
SORTS_REFERENCE = "aot"
REORDERING_LOSSES = (SORTS_REFERENCE, "aot_unpaired")
"""Losses that sort the pairs of the whole step: the reference of each, or the rejected response."""
LOSS_WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {"dppo": {"divergence": ("tv", "kl")}}
"""Options of built-in losses that are words, not numbers, and the words that they may be."""


ALIASES: Mapping[str, str] = {"dro": "kimi", "icepop": "token_mask", "seq-mask-tis": "sequence_mask_mean"}
"""Names that other systems give to a loss or a correction which has another name here."""


_NO_PRESET = {name: f"set algorithm.mismatch_correction: {ALIASES[name]}" for name in ("icepop", "seq-mask-tis")} | {
    "dro": "it is called kimi here",
    "bnpo": "its mean over a micro-batch lets memory decide the gradient: use dapo, the mean over a step's tokens",
}


def suggested(name: str, known: Collection[str]) -> str:
    """The remedy for a name that is not known here; another system may have an algorithm of that name."""
    return _NO_PRESET.get(name) or suggestion(name, known)


def own_name(name: object) -> object:
    """The name that the tables here have for a loss or a correction; all others are returned as they are."""
    return ALIASES.get(name, name) if isinstance(name, str) else name


def _with(what: str, table: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for name, needs in table.items() if what in needs)


ESTIMATOR_NAMES, LOSS_NAMES = tuple(_ESTIMATORS), tuple(_LOSSES)
CRITIC_ESTIMATORS = _with("critic", _ESTIMATORS)
GROUP_ESTIMATORS = _with("group", _ESTIMATORS)
"""Estimators whose baseline comes from the other samples of the prompt, so a group of one has none."""
GREEDY_ESTIMATORS = _with("greedy", _ESTIMATORS)
"""Estimators that need one greedy response per prompt in addition to the samples."""
GAMMA_ESTIMATORS, LAM_ESTIMATORS = _with("gamma", _ESTIMATORS), _with("lam", _ESTIMATORS)
DISCOUNT_ESTIMATORS = _with("discount", _ESTIMATORS)
"""Estimators that discount by token or by turn."""
REFERENCE_ESTIMATORS = _with("reference", _ESTIMATORS)
TEACHER_ESTIMATORS, OLD_ESTIMATORS = _with("teacher", _ESTIMATORS), _with("old", _ESTIMATORS)
"""Estimators that read log-probabilities of a teacher, and of the policy before the step's updates."""
TURN_ESTIMATORS = ("turn_grpo", "gigpo")
"""Estimators that compare turns."""
CLIP_LOW_LOSSES, CLIP_HIGH_LOSSES = _with("clip_low", _LOSSES), _with("clip_high", _LOSSES)

SINK_NAMES = ("tensorboard", "wandb", "mlflow", "trackio")
"""Built-in sinks other than metrics.jsonl."""

MODEL_REWARD = "model:"
"""Prefix of the name of a reward that is a trained reward model: `model:PATH`."""

IN_MEMORY = "python:"
"""Prefix of the name of a reward that is a function in the training program (`burnish.train`): `python:NAME`."""

PUZZLES = "reasoning_gym"
"""Path of a data source whose rows reasoning-gym makes, and name of the reward that scores them."""
PUZZLE_ROWS = 1 << 20
"""Most rows of such a source."""
PUZZLE_SEEDS = 1 << 12
"""Seeds that such a source can have. Row i of seed s is made with the number s * PUZZLE_ROWS + i, so that no two rows
share one; some tasks take no number above 2^32."""
UNSOUND_PUZZLES: Mapping[str, str] = {
    "game_of_life_halting": "any answer gets 1",
    "palindrome_generation": "any text gets .02, a blank .05",
    "propositional_logic": "any word gets up to .25",
    "puzzle24": "the same answer, 6*4*1*1, gets 1 in every row",
    "sentence_reordering": "any text gets .05",
}
"""Tasks of reasoning-gym 0.1.25 that reward answers which solve nothing, and how they do."""

AUTO_PARSER = "auto"
"""The parser of tool calls that follows the format of the chat template."""
PYTHON_TOOL, MCP_TOOL = "python", "mcp"
SERVED_TOOLS = (PYTHON_TOOL, MCP_TOOL)
"""Tools that are not functions."""
ENVIRONMENT_REWARD = "environment"
"""The reward that an environment pays."""


def is_template_file(chat_template: str | None) -> TypeGuard[str]:
    """Return whether the setting names a file. With a brace it is the template itself."""
    return chat_template is not None and "{" not in chat_template and chat_template != KEEP_THINKING
