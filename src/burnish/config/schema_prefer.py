"""The run file of `burnish prefer`: its sections, and the combinations of fields that cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from burnish.config import names
from burnish.config.checks import check_training, is_function_name
from burnish.config.checks_rm import held_out_twice
from burnish.config.problems import Problem
from burnish.config.schema_rm import ComparedFields, RmOptimizationConfig
from burnish.config.section import Count, NamedPlace, Passes, PathText, Section, as_list, refuse, shorthand
from burnish.errors import suggestion

START = "start"
"""Value of `reference`: the model that the run starts from."""
ALSO_CALLED = {"dpo": "sigmoid", "cdpo": "sigmoid, with label_smoothing", "rdpo": "robust", "slic": "hinge"}
"""Names of methods whose loss has another name here."""


class PairLossConfig(Section):
    """A loss on pairs of responses or, for `kto`, on rated responses. Several losses are added up with their
    weights."""

    name: PathText
    """Built-in name (`burnish algorithms`), `path/to/file.py:function` or `package.module:function`."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of this loss in the sum."""
    options: dict[str, float | str] = Field(default_factory=dict)
    """Parameters of this loss, by name (docs/algorithms.md), for example `{gamma: 1.0}`. They override fields of the
    run file that several losses share, such as `beta`."""


class PreferOptimizationConfig(RmOptimizationConfig):
    """Optimizer, learning rate and batches of a policy that learns from preferences."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate. Adapters (`model.lora`) need about ten times as much."""
    comparisons_per_batch: Count = 32
    """Rows of the data (comparisons, or rated responses) in one optimizer step."""
    epochs: Passes = 1
    """Passes over the data."""


class PreferConfig(ComparedFields):
    """Run file of `burnish prefer`, which trains a policy on preferences between responses, without sampling any."""

    kind: ClassVar[str] = "prefer"

    losses: Annotated[tuple[Annotated[PairLossConfig, shorthand("name")], ...], BeforeValidator(as_list)] = ()
    """Losses: a name (`sigmoid` is DPO), a section, or a list of them."""
    beta: Annotated[float, Field(gt=0)] | None = None
    """Strength of the pull towards the reference, for every loss with a `beta`. `null`: each loss's own default."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    """Assumed probability that a label is flipped, for every loss that takes it. `null`: 0."""
    divergence: Literal["reverse_kl", "forward_kl", "js", "alpha"] | None = None
    """Divergence from the reference (https://arxiv.org/abs/2309.16240), for every loss that takes it. `null`:
    `reverse_kl`."""
    length_normalised: bool = False
    """Divide each response's log-probability by its number of tokens before any loss sees it."""
    reference: PathText = START
    """Frozen model to compare the policy with: `start` (the model that the run starts from), a folder, or a run
    (`runs/sft@best`). Its log-probabilities are computed once, before the first step, and kept in the run's folder."""
    ties: Literal["error", "drop"] = "error"
    """Handling of rows whose `tie` is true: refused, or left out."""
    optimization: PreferOptimizationConfig = PreferOptimizationConfig()

    @property
    def rates_responses(self) -> bool:
        """True if each response is good or bad by itself (`kto`), instead of better or worse than another one."""
        return any(loss.name == names.RATED_LOSS for loss in self.losses)

    @property
    def shared_options(self) -> dict[str, float | str | None]:
        """Options for each loss that has them; None leaves a loss its own default."""
        return {"beta": self.beta, "label_smoothing": self.label_smoothing, "divergence": self.divergence}

    @property
    def texts_each(self) -> int:
        """The best of several candidates makes a pair with each other one, and is read with each."""
        return 1 if self.rates_responses else 2 * ((self.candidates or 2) - 1)

    def missing(self) -> Iterator[Problem]:
        if not self.losses:
            yield Problem("losses", "is empty", "name one, for example `losses: sigmoid` for DPO")

    def named_places(self) -> Iterator[NamedPlace]:
        yield from super().named_places()
        if self.reference != START:
            yield NamedPlace("reference", self.reference, "model", "weights")
        for number, loss in enumerate(self.losses):
            if is_function_name(loss.name):
                yield NamedPlace(f"losses.{number}.name", loss.name, "code")

    @model_validator(mode="after")
    def _consistent(self) -> PreferConfig:
        problems = [*_known(self), *_used(self), *held_out_twice(self), *check_training(self)]
        if self.data.query is not None:
            problems.append(Problem("data.query", "is set, but comparisons have their own prompts", "remove it"))
        alone = [loss.name for loss in self.losses if loss.name in (names.RATED_LOSS, *names.REORDERING_LOSSES)]
        if alone and len(self.losses) > 1:
            message = f"names {alone[0]}, which makes other pairs of the responses, or none, beside another loss"
            problems.append(Problem("losses", message, "keep one of the two"))
        refuse(problems)
        return self


def _known(config: PreferConfig) -> Iterator[Problem]:
    """Refuse losses that do not exist, or are named twice."""
    seen = set()
    for number, loss in enumerate(config.losses):
        if loss.name not in names.PAIR_LOSSES and not is_function_name(loss.name):
            remedy = suggestion(loss.name, names.PAIR_LOSSES) + ", or path/to/file.py:function"
            if loss.name in ALSO_CALLED:
                remedy = f"write {ALSO_CALLED[loss.name]}"
            yield Problem(f"losses.{number}.name", f"is {loss.name!r}, which is not a loss on preferences", remedy)
        if loss.name in seen:
            yield Problem(f"losses.{number}.name", f"names {loss.name} twice", "keep one of the two")
        seen.add(loss.name)


def _used(config: PreferConfig) -> Iterator[Problem]:
    """Refuse shared settings that none of the losses takes."""
    if any(loss.name not in names.PAIR_LOSSES for loss in config.losses):
        return  # parameters of a function are known when it is loaded; `_known` refuses the rest
    taken = {option for loss in config.losses for option in {*names.PAIR_LOSSES[loss.name]} - loss.options.keys()}
    losses = " and ".join(loss.name for loss in config.losses)
    for field, value in config.shared_options.items():
        if losses and value is not None and field not in taken:
            yield Problem(field, f"is set, but {losses} does not take it, or sets its own", "remove it")
    for number, loss in enumerate(config.losses):
        diverges = "divergence" in names.PAIR_LOSSES[loss.name] and "alpha" in loss.options
        if diverges and loss.options.get("divergence", config.divergence) != "alpha":
            message, remedy = "is set, but the divergence is not alpha", "set divergence: alpha, or remove it"
            yield Problem(f"losses.{number}.options.alpha", message, remedy)
    if config.reference != START and not any(loss.name in names.REFERENCE_LOSSES for loss in config.losses):
        message = "is set, but none of the losses compares the policy with a reference"
        yield Problem("reference", message, "remove it")
