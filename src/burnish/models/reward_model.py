"""Reward models: a causal language model with a scalar head, read at one token of prompt and response.

On disk a reward model is a transformers sequence classifier with one label (`AutoModelForSequenceClassification`), with
`burnish_reward_model.json` next to it. Its gain is folded into the head's weight. Its bias is in the JSON file, because
the heads of most architectures have none: reward = logit + bias. In transformers, comparisons and rankings are
therefore the same, and absolute rewards differ by the bias.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.algorithms.shaping import reward_normalisation
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_optimization import TOKENS_PER_MICROBATCH
from burnish.errors import ModelError
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.microbatches import microbatches_by_tokens
from burnish.forward.row_rules import padded_inputs, plain_inputs, row_rules
from burnish.models.cut import Cut, CutModel, save_model
from burnish.models.folders import check_model_folder, nearest_folder_hint, resolve_source
from burnish.models.loading import NEW_HEAD, LoadedModel, load_model
from burnish.models.lora import Adapter
from burnish.types import PreTrainedModel

REWARD_FILE = "burnish_reward_model.json"
ScoreAt = Literal["last", "eos", "last_position"]
PromptResponse = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of one response to it."""


@dataclass(frozen=True, slots=True)
class Readout:
    """Position at which a response is scored.

    `last`: at its last token. `eos`: at its first end-of-sequence token, or at its last token if it has none.
    `last_position`: at the last of `response_length` positions. A shorter response is followed by padding that no
    token attends to (as in 2019, https://arxiv.org/abs/1909.08593).
    """

    score_at: ScoreAt = "last"
    response_length: int | None = None

    def offset(self, response: Sequence[int], eos_token_ids: Sequence[int]) -> int:
        """Position that is scored, counted from the first token of the response."""
        if self.score_at == "last_position":
            return self._fixed(response) - 1
        if self.score_at == "eos":
            ends = (i for i, token in enumerate(response) if token in eos_token_ids)
            return next(ends, len(response) - 1)
        return len(response) - 1

    def width(self, response: Sequence[int]) -> int:
        """Positions that the response takes up."""
        return self._fixed(response) if self.score_at == "last_position" else len(response)

    def _fixed(self, response: Sequence[int]) -> int:
        length = self.response_length or 0
        if len(response) > length:
            raise ModelError(
                f"a response has {len(response)} tokens, but the reward model scores at position {length}",
                remedy="raise response_length, or use score_at: last",
            )
        return length


def lay_out_pairs(
    pairs: Sequence[PromptResponse], readout: Readout, *, pad_token_id: int, eos_token_ids: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, attention mask, columns): rows `prompt|response|padding` (B, S), and where each is scored (B,), int64.

    The mask depends on lengths only, so the padding id may be any token, even end of sequence. Raises ValueError for an
    empty response."""
    if any(not response for _, response in pairs):
        raise ValueError("an empty response has no token to be scored at")
    widths = [len(prompt) + readout.width(response) for prompt, response in pairs]
    lengths_B = torch.tensor([len(prompt) + len(response) for prompt, response in pairs])
    rows = [
        [*prompt, *response, *([pad_token_id] * (max(widths) - len(prompt) - len(response)))]
        for prompt, response in pairs
    ]
    mask_BS = torch.arange(max(widths)) < lengths_B[:, None]
    read = [len(prompt) + readout.offset(response, eos_token_ids) for prompt, response in pairs]
    return torch.tensor(rows, dtype=torch.int64), mask_BS.to(torch.int64), torch.tensor(read, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Normalization:
    """Scale and shift since the head was made. `gain` is already folded into the head's weight, `bias` is added to
    every logit, and `measured_on` says what data they were last set on."""

    gain: float = 1.0
    bias: float = 0.0
    measured_on: str = ""


class GainBias(nn.Module):
    """reward = gain * logit + bias, both trained, after a head that keeps the scale it was made with
    (https://arxiv.org/abs/1909.08593). 0-d float32."""

    def __init__(self, gain: float, bias: float, *, device: torch.device) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain, device=device))
        self.bias = nn.Parameter(torch.tensor(bias, device=device))

    def forward(self, logits: Tensor) -> Tensor:
        return self.gain * logits + self.bias

    def folded(self, earlier: Normalization) -> Normalization:
        """The equivalent normalisation, including the gain that is already in the head's weight."""
        return Normalization(earlier.gain * self.gain.item(), self.bias.item(), earlier.measured_on)


class RewardModel:
    """Scores responses. `loaded.model` is a sequence classifier with one label, `head` its linear layer.

    `gain_bias` is None unless gain and bias are trained. Then `normalization` holds the earlier gain, and bias 0.
    """

    def __init__(
        self, loaded: LoadedModel, readout: Readout | None = None, normalization: Normalization | None = None
    ) -> None:
        self.loaded = loaded
        self.readout = readout or Readout()
        self.normalization = normalization or Normalization()
        self.head_name, self.head = score_head(loaded.model)
        self.adapter: Adapter | None = None
        self.gain_bias: GainBias | None = None
        self.shared: CutModel | None = None
        self._rules = row_rules(loaded.model)

    def share_weights(self, lanes: Lanes, cut: Cut) -> CutModel:
        """Keep a slice of every weight only, as one of a team. Gain and bias, a number each, stay whole."""
        self.shared = CutModel(self.loaded.model, lanes, cut)
        return self.shared

    def scores(self, pairs: Sequence[PromptResponse]) -> Tensor:
        """Rewards of the responses, `[B]` float32, differentiable, including normalisation. Takes one forward pass
        unless rows would change each other's numbers (`burnish.forward.row_rules`)."""
        if self.shared is None:
            return self._scores(pairs)
        return self.shared.root(lambda: self._scores(pairs))

    def check_common(self, parts: Iterable[Sequence[PromptResponse]]) -> None:
        """Raise ModelError where one of the parts needs several passes, with slices of the weights: processes that have
        them make equally many passes, side by side."""
        if self.shared is None:
            return
        for part in parts:
            if len(self._companies(part)) > 1:
                raise ModelError(
                    f"rows of different lengths change each other's numbers in a {type(self.loaded.model).__name__}, "
                    "so they need separate passes, which cluster.sharding: full cannot make",
                    remedy="set cluster.sharding: optimizer",
                )

    def _companies(self, pairs: Sequence[PromptResponse]) -> list[list[int]]:
        return self._rules.groups([len(prompt) + len(response) for prompt, response in pairs])

    def _scores(self, pairs: Sequence[PromptResponse]) -> Tensor:
        companies = self._companies(pairs)
        hidden = [self._read([pairs[row] for row in company]) for company in companies]
        order = torch.tensor([row for company in companies for row in company]).argsort()
        hidden_BH = torch.cat(hidden)[order.to(hidden[0].device)] if len(hidden) > 1 else hidden[0]
        bias = None if self.head.bias is None else self.head.bias.float()
        logits_B = F.linear(hidden_BH.float(), self.head.weight.float(), bias).squeeze(1)
        return logits_B + self.normalization.bias if self.gain_bias is None else self.gain_bias(logits_B)

    def _read(self, pairs: Sequence[PromptResponse]) -> Tensor:
        """(B, H) hidden states that the head reads, in one forward pass."""
        trunk, device = self.loaded.model.base_model, self.loaded.model.device
        pad, ends = self.loaded.pad_token_id, self.loaded.eos_token_ids
        layout = lay_out_pairs(pairs, self.readout, pad_token_id=pad, eos_token_ids=ends)
        tokens_BS, mask_BS, read_B = (part.to(device) for part in layout)
        if self._rules.beside != "padded" and bool(mask_BS.all()):
            inputs = plain_inputs(trunk, tokens_BS)
        else:
            inputs = padded_inputs(trunk, tokens_BS, mask_BS)
        return trunk(**inputs)[0][torch.arange(len(pairs), device=device), read_B]

    def train_gain_and_bias(self) -> None:
        """Make gain and bias separate parameters from now on (`normalization.trainable`)."""
        self.gain_bias = GainBias(1.0, self.normalization.bias, device=self.loaded.model.device)
        self.normalization = replace(self.normalization, bias=0.0)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that are trained, by name."""
        own = list(self.loaded.model.named_parameters())
        if self.gain_bias is not None:
            own += [(f"gain_bias.{name}", parameter) for name, parameter in self.gain_bias.named_parameters()]
        return [(name, parameter) for name, parameter in own if parameter.requires_grad]

    @torch.no_grad()
    def score(
        self,
        pairs: Sequence[PromptResponse],
        tokens_per_microbatch: int = TOKENS_PER_MICROBATCH,
        lanes: Lanes = ONE_LANE,
    ) -> list[float]:
        """Rewards without gradient, in the given order, computed in micro-batches by token count."""
        lengths = [len(prompt) + self.readout.width(response) for prompt, response in pairs]
        parts = microbatches_by_tokens(lengths, lanes.budget(sum(lengths), tokens_per_microbatch))
        costs = [sum(lengths[row] for row in rows) for rows in parts]
        self.check_common([pairs[row] for row in rows] for rows in parts)
        scored: list[list[float]] = lanes.map(
            parts, costs, lambda rows: self.scores([pairs[row] for row in rows]).tolist()
        )
        found = dict(zip(chain(*parts), chain(*scored), strict=True))
        return [found[row] for row in range(len(pairs))]

    @torch.no_grad()
    def normalise(self, measured: Sequence[float], *, scale: bool, measured_on: str) -> None:
        """Shift rewards so that those `measured` have mean 0 and, with `scale`, scale them to standard deviation 1.

        Raises ModelError if `scale` is asked for and all measured rewards are equal.
        """
        gain, mean = reward_normalisation(measured, scale=scale)
        if self.gain_bias is not None:
            self.gain_bias.gain.mul_(gain)
            self.gain_bias.bias.sub_(mean).mul_(gain)
            self.normalization = replace(self.normalization, measured_on=measured_on)
            return
        self.head.weight.mul_(gain)
        if self.head.bias is not None:
            self.head.bias.mul_(gain)
        old = self.normalization
        self.normalization = Normalization(old.gain * gain, (old.bias - mean) * gain, measured_on)

    def save(self, folder: Path) -> None:
        """Write the classifier (adapter merged in), tokenizer and normalisation, and with LoRA also the adapter.

        With slices of the weights every process of the team makes this call, and the first one writes."""
        self.loaded.model.config.pad_token_id = self.loaded.pad_token_id  # transformers finds the last token with it
        save_model(folder, self.loaded, self._saved_state(), self.adapter, self.shared)
        if self.shared is not None and not self.shared.lanes.keeps_state:
            return
        normalization = self.normalization if self.gain_bias is None else self.gain_bias.folded(self.normalization)
        content = {"reward": "logit + bias", **asdict(normalization), **asdict(self.readout)}
        (folder / REWARD_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def _saved_state(self) -> dict[str, Tensor] | None:
        """The state to save if it differs from the model's own: adapter merged in, trained gain folded in. Of slices
        the whole, in the first process."""
        if self.shared is not None:
            state = self.shared.collected(self.shared.tensors())
        elif self.adapter is None and self.gain_bias is None:
            return None
        else:
            state = dict(self.loaded.model.state_dict()) if self.adapter is None else self._merged_state(self.adapter)
        if self.gain_bias is not None and state:
            gain = self.gain_bias.gain.detach()
            for name, _ in self.head.named_parameters(prefix=self.head_name):
                state[name] = (state[name] * gain.to(state[name].device)).to(state[name].dtype)
        return state

    def _merged_state(self, adapter: Adapter) -> dict[str, Tensor]:
        prefix = self.loaded.model.base_model_prefix
        state = {f"{prefix}.{name}": value for name, value in adapter.merged_state().items()}
        state |= {f"{self.head_name}.{name}": value.detach() for name, value in self.head.state_dict().items()}
        return state


def score_head(model: PreTrainedModel) -> tuple[str, nn.Linear]:
    """Name and layer of the head: the only linear layer with a single output outside the base model."""
    base = model.base_model
    inside = {id(module) for module in base.modules()}
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == 1 and id(module) not in inside
    ]
    if len(found) != 1 or base is model:
        raise ModelError(
            f"{type(model).__name__} has {len(found)} linear heads with one output, but a reward model has exactly one",
            remedy="use an architecture whose sequence classifier is the language model with a linear head",
        )
    return found[0]


@torch.no_grad()
def init_score_head(head: nn.Linear, *, seed: int, std: float | None = None) -> None:
    """Weights from N(0, std), bias 0. The default std is 1/sqrt(d_model + 1) (https://arxiv.org/abs/1909.08593).
    Depends on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(head.weight.shape, generator=generator)
    head.weight.copy_(noise / math.sqrt(head.in_features + 1) if std is None else noise * std)
    if head.bias is not None:
        head.bias.zero_()


def new_reward_model(
    config: ModelConfig, readout: Readout, *, seed: int, head_init_std: float | None = None
) -> RewardModel:
    """A reward model to train, from a language model (with a new head) or from an earlier reward model (keeping its
    head and normalisation). With `config.lora` only adapters and head train.

    Raises ModelError like `load_model`, and for a model whose classifier has no scalar head.
    """
    loaded = load_model(config, seed=seed, head="score")
    fresh = config.from_scratch or NEW_HEAD in loaded.notes
    source = resolve_source(config.path, field="model.path")
    normalization = None if fresh else read_reward_file(find_reward_file(source, config.revision))[0]
    model = RewardModel(loaded, readout, normalization)
    if fresh:
        init_score_head(model.head, seed=seed, std=head_init_std)
    if config.lora is not None:
        model.adapter = Adapter(loaded.model.base_model, config.lora, seed=seed, task_type="FEATURE_EXTRACTION")
        model.head.requires_grad_(True)
    return model


def load_reward_model(config: ModelConfig, *, field: str = "model.path") -> RewardModel:
    """A trained reward model, frozen. Without `burnish_reward_model.json` it is read at the last token, with bias 0.

    Raises ModelError for a folder that does not hold a reward model.
    """
    source = check_reward_folder(config.path, field=field)
    loaded = load_model(config, head="score")
    if NEW_HEAD in loaded.notes:
        raise _no_reward_model(source, field, "its files have no weights for a score head")
    loaded.model.requires_grad_(False)
    normalization, readout = read_reward_file(find_reward_file(source, config.revision))
    return RewardModel(loaded, readout, normalization)


def check_reward_folder(path: str, *, field: str) -> str:
    """The folder or hub name. Raises ModelError if the folder's files show that it is not a reward model."""
    source = resolve_source(path, field=field)
    check_model_folder(source, needs_weights=True)
    file = Path(source) / "config.json"
    if not file.is_file():
        return source  # a hub name: the missing head is found on loading
    words = json.loads(file.read_text(encoding="utf-8"))
    architectures = words.get("architectures") or []
    if not any("ForSequenceClassification" in name for name in architectures):
        raise _no_reward_model(source, field, f"it is a {', '.join(architectures) or 'model of unknown kind'}")
    labels = len(words.get("id2label") or {0: "", 1: ""})
    if labels != 1:
        raise _no_reward_model(source, field, f"it classifies into {labels} labels, but a reward is one number")
    return source


def _no_reward_model(source: str, field: str, why: str) -> ModelError:
    hint = nearest_folder_hint(source)
    return ModelError(
        f"{field} {source!r} is not a reward model: {why}",
        remedy=f"train one with `burnish rm`, and name its folder (.../checkpoints/step-N/policy){hint}",
    )


def find_reward_file(source: str, revision: str | None) -> Path | None:
    """`burnish_reward_model.json` in a folder or on the hub; None if there is none. ModelError where that cannot be
    found out, because scores without it may be shifted."""
    if Path(source).is_dir():
        file = Path(source) / REWARD_FILE
        return file if file.is_file() else None
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        return Path(hf_hub_download(source, REWARD_FILE, revision=revision))
    except RemoteEntryNotFoundError:
        return None
    except OSError as error:  # the class of every error on the way to the hub
        if try_to_load_from_cache(source, REWARD_FILE, revision=revision) is _CACHED_NO_EXIST:
            return None
        raise ModelError(
            f"it is unknown whether the reward model {source!r} has a {REWARD_FILE}, which shifts its scores: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            remedy="start once with a connection to the hub, which is remembered, or name the model's folder",
        ) from error


def read_reward_file(file: Path | None) -> tuple[Normalization, Readout]:
    """Normalisation and read-out of a saved reward model, or the defaults without such a file."""
    if file is None:
        return Normalization(), Readout()
    try:
        words = json.loads(file.read_text(encoding="utf-8"))
        normalization = Normalization(float(words["gain"]), float(words["bias"]), str(words["measured_on"]))
        readout = Readout(words["score_at"], words["response_length"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} cannot be read: {error!r}", remedy="save the reward model again") from error
    return normalization, readout
