"""Batches of comparisons and rated responses: one row for each response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from burnish.data.preference_tokens import PreferenceExample
from burnish.forward.batch import Batch
from burnish.trainers.preferences.reference import KeptReference, Text
from burnish.trainers.rl.batching import padded


@dataclass(frozen=True, slots=True)
class PairedResponse:
    """A response with its prompt, the number of its pair, and whether it is the better (or a good) one."""

    text: Text
    pair: int
    preferred: bool
    weight: float


def responses_of(examples: Sequence[PreferenceExample]) -> list[PairedResponse]:
    """Responses of the examples. The best of several candidates makes a pair with each of the others."""
    found: list[PairedResponse] = []
    pair = 0
    for example in examples:
        texts = [(example.prompt_tokens, response) for response in example.responses_tokens]
        if example.good is not None:
            found.append(PairedResponse(texts[0], pair, example.good, example.weight))
            pair += 1
            continue
        for number, text in enumerate(texts):
            if number != example.best:
                found.append(PairedResponse(texts[example.best], pair, True, example.weight))
                found.append(PairedResponse(text, pair, False, example.weight))
                pair += 1
    return found


def mismatched(examples: Sequence[PreferenceExample]) -> list[Text]:
    """One text for each example: its prompt, with the first response of the next example that has another prompt."""
    if not examples:
        return []
    found: list[Text] = []
    other = following = examples[0]
    for example in (*reversed(examples), *reversed(examples)):  # only the second round knows what follows the last one
        if following.prompt_tokens != example.prompt_tokens:
            other = following
        found.append((example.prompt_tokens, other.responses_tokens[other.best]))
        following = example
    return found[len(examples) :][::-1]


def build_batch(
    responses: Sequence[PairedResponse], reference: KeptReference | None, *, pad_token_id: int, in_pairs: bool = True
) -> Batch:
    """One row for each response. All of its tokens are trained; without a reference `ref_logprobs` stays None."""
    batch, known = Batch.of_texts([one.text for one in responses], pad_token_id=pad_token_id), None
    pairs, weights = torch.tensor([one.pair for one in responses]), torch.tensor([one.weight for one in responses])
    if reference is not None:
        known = padded([reference.of(one.text) for one in responses], 0.0, torch.float32)
    return batch.replace(
        group_ids=pairs,
        pairs=pairs if in_pairs else None,
        preferred=torch.tensor([one.preferred for one in responses]),
        weights=weights.float()[:, None].expand(batch.response_tokens.shape),
        ref_logprobs=known,
    )


def plain_batch(texts: Sequence[Text], reference: KeptReference | None, *, pad_token_id: int) -> Batch:
    """A batch of texts that are only scored."""
    rows = [PairedResponse(text, number, True, 1.0) for number, text in enumerate(texts)]
    return build_batch(rows, reference, pad_token_id=pad_token_id, in_pairs=False)
