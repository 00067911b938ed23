"""Choice of a decoder for a model: the first whose logits equal the model's over each sequence alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from burnish.errors import ModelError, RolloutError
from burnish.forward.boundaries import Boundaries
from burnish.forward.kernel_layers import FAMILIES
from burnish.forward.row_rules import is_near, plain_inputs, row_rules, takes
from burnish.rollouts.local.decoders import Decoder, ModelDecoder
from burnish.rollouts.local.plain_decoders import EqualLengthDecoder, TextDecoder, Tokens, WholeTextDecoder
from burnish.rollouts.local.prefill import Prefiller
from burnish.types import PreTrainedModel

TRIED_UP_TO = 8_192
"""Longest boundary that the trial tests, in tokens. A run that crosses a longer one does not use a shared cache."""

_CONTINUED, _CONTINUED_BY_STATE = 4, 20
"""Tokens that the trial decodes after each prompt: more for caches that the model makes itself, because errors in a
recurrent state add up from token to token."""
_PAST = 5

MakeAnyDecoder = Callable[["PreTrainedModel", int], Decoder | TextDecoder]
"""Takes the model and a number of places."""


@dataclass(frozen=True, slots=True)
class DecoderCandidate:
    """A way to decode. make: makes a decoder for a model. note: for the user."""

    make: MakeAnyDecoder
    note: str | None = None


def choose_way(model: PreTrainedModel, attention: str, reach: int) -> DecoderCandidate:
    """The fastest way that gives the model's own logits, for sequences of up to `reach` tokens.

    The trial decodes rows of several lengths, some longer than boundaries of the config that the run can cross. Models
    of Llama's architecture that cross none need no trial. Raises RolloutError if no way works for the model.
    """
    crossed = Boundaries.of(model.config).crossed_by(reach)
    shared = partial(ModelDecoder, attention=attention)
    if model.config.model_type in FAMILIES and not crossed:
        return DecoderCandidate(shared)
    try:
        beside = row_rules(model).beside
    except ModelError as error:
        raise RolloutError(error.message, remedy=error.remedy) from error
    is_tried = max(crossed, default=0) <= TRIED_UP_TO
    if is_tried and beside == "padded" and Trial.of(model, reach, _CONTINUED).passes(shared):
        return DecoderCandidate(shared)
    kind, trial = model.config.model_type, Trial.of(model, reach, _CONTINUED_BY_STATE)
    if trial.passes(EqualLengthDecoder):
        return DecoderCandidate(
            EqualLengthDecoder,
            f"sampling is slower than for most models: this {kind} model can only decode responses to prompts of equal "
            "length together",
        )
    if trial.passes(WholeTextDecoder):
        return DecoderCandidate(
            WholeTextDecoder,
            f"sampling is much slower than for most models: this {kind} model reads the whole sequence again for every "
            "token",
        )
    raise RolloutError(
        f"the local engine cannot sample from this {kind} model: no way of decoding gives the log-probabilities that "
        "the model gives for the whole sequence",
        remedy="use a model of another architecture, or another engine in rollout.engine",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Sequences whose last tokens are decoded, and the model's own logits after these: (R, tokens, vocabulary)."""

    model: PreTrainedModel
    texts: list[Tokens]
    logits_RSV: Tensor

    @staticmethod
    def of(model: PreTrainedModel, reach: int, continued: int) -> Trial:
        """Two rows that share a prompt, and others up to the boundaries that sequences of `reach` tokens can cross.
        `continued` tokens of each are decoded."""
        lengths = _trial_lengths(Boundaries.of(model.config), reach, continued)
        continued = min(continued, *lengths)
        vocabulary = model.get_input_embeddings().weight.shape[0]
        generator = torch.Generator().manual_seed(0)
        texts = torch.randint(0, vocabulary, (len(lengths), max(lengths)), generator=generator).tolist()
        shared = lengths[0] - continued + 1
        texts[1][:shared] = texts[0][:shared]
        return Trial.on(model, [tuple(text[:length]) for text, length in zip(texts, lengths, strict=True)], continued)

    @staticmethod
    @torch.no_grad()
    def on(model: PreTrainedModel, texts: list[Tokens], continued: int) -> Trial:
        """`continued` tokens of each of these sequences are decoded."""
        return Trial(model, texts, torch.stack([_own_logits(model, text, continued) for text in texts]))

    def passes(self, make: MakeAnyDecoder) -> bool:
        """Return whether the decoder works and agrees with the model, or non-finite weights prove nothing: sampling
        reports them."""
        try:
            return self.agrees(make) or not bool(self.logits_RSV.isfinite().all())
        except Exception:  # noqa: BLE001  boundary to a foreign model: if this way fails, another one is tried
            return False

    @torch.no_grad()
    def agrees(self, make: MakeAnyDecoder) -> bool:
        """Return whether the decoder's logits equal the model's own in each row, up to rounding. Raises what the
        decoder raises."""
        found_RSV = self._decoded(make(self.model, len(self.texts)))
        return all(is_near(found, own) for found, own in zip(found_RSV, self.logits_RSV, strict=True))

    def _decoded(self, decoder: Decoder | TextDecoder) -> Tensor:
        continued = self.logits_RSV.shape[1]
        prompts = [text[: len(text) - continued + 1] for text in self.texts]
        device = next(self.model.parameters()).device
        order = join(decoder, prompts, Prefiller(self.model, pad_token_id=0))
        given = torch.tensor([self.texts[row][-continued:] for row in order], device=device)
        positions = torch.tensor([len(prompts[row]) - 1 for row in order], device=device)
        steps = [decoder.logits(given[:, step], positions + step) for step in range(continued)]
        return torch.stack(steps, dim=1)[torch.tensor(order).argsort()]


def join(decoder: Decoder | TextDecoder, prompts: Sequence[Tokens], prefiller: Prefiller) -> list[int]:
    """Add rows with these prompts. Returns their numbers in the order in which they were added."""
    if isinstance(decoder, TextDecoder):
        decoder.join_texts(prompts)
        return list(range(len(prompts)))
    order: list[int] = []
    for chunk in prefiller.prefill(prompts, keep=None):
        decoder.join([len(prompts[row]) for row in chunk.rows], chunk.prompts, chunk.sources)
        order += chunk.rows
    return order


@torch.no_grad()
def goes_on_alike(model: PreTrainedModel, make: MakeAnyDecoder) -> bool:
    """Return whether two rows of one prompt that leave a decoder, and go on with further tokens, have the model's own
    logits. The model is in evaluation mode. False for decoders that read texts, and if weights are not finite."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    random = torch.randint(0, vocabulary, (2, 16), generator=torch.Generator().manual_seed(0))
    random[1, :5] = random[0, :5]
    texts = [tuple(random[0].tolist()), tuple(random[1, :11].tolist())]
    device = next(model.parameters()).device
    none = torch.empty(0, dtype=torch.int64, device=device)
    decoder = make(model, len(texts))
    if isinstance(decoder, TextDecoder):
        return False
    try:
        join(decoder, [text[:5] for text in texts], Prefiller(model, pad_token_id=0))
        for position in range(4, 7):
            decoder.logits(random[:, position].to(device), torch.tensor([position] * 2, device=device))
        kept = [decoder.kept(row, text[:7]) for row, text in enumerate(texts)]
        decoder.move(none, none, 0)
        ordered = [texts[row] for row in decoder.go_on(kept, texts)]
        last = torch.tensor([[text[-1], len(text) - 1] for text in ordered], device=device)
        found_RV = decoder.logits(last[:, 0], last[:, 1])
    except Exception:  # noqa: BLE001 boundary to a foreign model: if it cannot do this, everything is read again
        return False
    return all(is_near(found, _own_logits(model, text, 1)[0]) for found, text in zip(found_RV, ordered, strict=True))


def _own_logits(model: PreTrainedModel, text: Tokens, continued: int) -> Tensor:
    inputs = plain_inputs(model, torch.tensor([text], device=next(model.parameters()).device))
    if takes(model, "logits_to_keep"):
        inputs["logits_to_keep"] = continued
    return model(**inputs).logits[0, -continued:]


def _trial_lengths(boundaries: Boundaries, reach: int, continued: int) -> list[int]:
    """Choose the lengths of the trial's sequences: short ones, one beyond every tested boundary, and some that cross a
    boundary while being decoded."""
    near = [boundary for boundary in boundaries.crossed_by(reach) if boundary <= TRIED_UP_TO]
    over = [boundary + continued // 2 for boundary in near] + ([max(near) + _PAST + continued] if near else [])
    limits = [limit for limit in (boundaries.context, boundaries.rotation, boundaries.stretch) if limit is not None]
    return [min(length, reach, *limits) for length in [continued + 5, continued + 5, 3 * continued // 2 + 9, *over]]
