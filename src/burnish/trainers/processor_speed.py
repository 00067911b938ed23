"""The speed of a processor, from the time and the amount of work of fast-path trials.

The trials come from `burnish.forward.probe` (a forward and backward pass through the first layers) and
`burnish.rollouts.local.kernel_trial` (a step of some rows with the first layers and the head). Their best rounds are
kept (`burnish.forward.verdicts`), so the rates hold for an otherwise idle machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.forward.race import RaceResult, tokens_for
from burnish.forward.verdicts import Key
from burnish.planning.model_facts import ModelFacts, facts_of

MEMORY_BYTES = 1e10
"""Assumed bytes a second of a processor's memory, and between its processes."""
OVERHEADS = (1.2e-3, 1e-5, 2e-2, 0.1)
"""Seconds of a decoding step, of each of its rows, of a micro-batch, and of rewards and logging of a step, whatever the
model's size: measured with models of 0.1 to 1 million parameters on a 2-core machine."""
_SIZE = re.compile(r"(\w+) (\d+)(?:, |$)")
_TRAINED_TOKENS, _FEWEST_TOKENS, _PARTS = 512, 64, 31
_WIDE = 4_000_000
_DECODED_ROWS, _DECODED_CONTEXT = 32, 128


@dataclass(frozen=True, slots=True)
class KeptTrial:
    """A kept trial: its path, the sizes of its model and its operations a second."""

    path: str
    facts: ModelFacts
    rate: float

    @staticmethod
    def of(kept: tuple[Key, RaceResult]) -> KeptTrial | None:
        """Read a kept trial; None if it is not of a model's training passes or decoding steps."""
        key, outcome = kept
        path, shape = str(key.get("path")), str(key.get("shape"))
        facts = facts_of({name: int(number) for name, number in _SIZE.findall(shape)})
        if facts is None or path not in _WORK:
            return None
        return KeptTrial(path, facts, _WORK[path](facts) / outcome.seconds[outcome.winner])

    def likeness(self, facts: ModelFacts) -> str:
        """Describe the model of the trial in words."""
        same = self._distance(facts) == 0
        return "a model of these sizes" if same else f"a model of hidden size {self.facts.hidden_size:,}"

    def _distance(self, facts: ModelFacts) -> float:
        """Distance between the sizes of a layer, as the absolute log of their ratio."""
        one, other = (found.body / found.num_layers for found in (self.facts, facts))
        return abs(math.log(one / other))


def nearest_trial(trials: Sequence[KeptTrial], facts: ModelFacts) -> KeptTrial | None:
    """The trial of the model whose layers are most alike, the fastest of several; None if there is none."""
    return min(trials, key=lambda trial: (trial._distance(facts), -trial.rate), default=None)


def _operations_of_pass(facts: ModelFacts) -> float:
    """Operations of a forward and backward pass through one or two layers, as in `keep_faster_layers`."""
    layer = facts.body // facts.num_layers
    layers = 1 if layer > _WIDE else 2
    size = tokens_for(layers * layer, wanted=_TRAINED_TOKENS, fewest=_FEWEST_TOKENS) // 32
    return 6.0 * layers * layer * _PARTS * size


def _operations_of_step(facts: ModelFacts) -> float:
    """Operations of a decoding step, as in `burnish.rollouts.local.kernel_trial.TimedStep`."""
    layer, head = facts.body / facts.num_layers, facts.vocabulary_size * facts.hidden_size
    layers = max(2, min(facts.num_layers, -(-head // layer)))
    width = facts.num_attention_heads * facts.head_size
    return _DECODED_ROWS * (2 * (layers * layer + head) + 4 * layers * width * _DECODED_CONTEXT)


_WORK = {"training passes": _operations_of_pass, "decoding": _operations_of_step}
