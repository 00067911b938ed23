"""Places in batches of a run with `cluster.window`, on their way to a step: see `burnish.trainers.rl.supply_window`."""

from __future__ import annotations

from dataclasses import dataclass, field

from burnish.trainers.rl.stored_batches import group_to_text
from burnish.types import RolloutGroup


@dataclass(slots=True)
class Place:
    """A place in a batch, and what is sampled for it. Places are numbered from 0, `prompts_per_step` to a step."""

    number: int
    positions: list[int]
    """Where in the data its prompts are, the newest last."""
    groups: list[RolloutGroup] = field(default_factory=list)
    """Of its prompts; all before the last one were without signal. While it is sampled, the newest prompt has none."""

    def to_state(self) -> dict[str, object]:
        """The place for a checkpoint, without its prompts, which follow from their positions."""
        return {"positions": self.positions, "groups": [group_to_text(group) for group in self.groups]}


@dataclass(slots=True)
class OpenPlaces:
    """Places on their way from the data to a step, by number, and which of them the next step may have."""

    window: int
    asked: int = 0
    """All places below were opened."""
    drawn: int = 0
    """All prompts below this position in the data were drawn."""
    oldest: int = 0
    """All places below were taken."""
    overtaken_by: set[int] = field(default_factory=set)
    """Places above `oldest` that were taken."""
    begun: dict[int, Place] = field(default_factory=dict)
    finished: dict[int, Place] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many were opened and not taken."""
        return self.asked - self.oldest - len(self.overtaken_by)

    def begin(self) -> Place:
        """Open the next place, with the next prompt."""
        place = self.begun[self.asked] = Place(self.asked, [self._draw()])
        self.asked += 1
        return place

    def refill(self, place: Place) -> None:
        """Draw another prompt for a place whose group is without signal."""
        place.positions.append(self._draw())

    def finish(self, place: Place) -> None:
        """From now on the place may be taken."""
        self.finished[place.number] = self.begun.pop(place.number)

    def take(self) -> Place | None:
        """The oldest finished place, unless as many have overtaken an older one as may."""
        number = min(self.finished, default=None)
        if number is None or (number > self.oldest and len(self.overtaken_by) >= self.window - 1):
            return None
        self.overtaken_by.add(number)
        while self.oldest in self.overtaken_by:
            self.overtaken_by.remove(self.oldest)
            self.oldest += 1
        return self.finished.pop(number)

    def give_back(self, place: Place) -> None:
        """Undo `take`."""
        number = place.number
        if number < self.oldest:
            self.overtaken_by.update(range(number + 1, self.oldest))
            self.oldest = number
        else:
            self.overtaken_by.remove(number)
        self.finished[number] = place

    def _draw(self) -> int:
        self.drawn += 1
        return self.drawn - 1
