"""A user's engine says what it is by its traits alone: what it is given, what is planned for it, what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildRl, trained

from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.planning.machines import Machine
from burnish.planning.memory import PHASES
from burnish.planning.model_facts import read_model_facts
from burnish.planning.processes import seats_of
from burnish.planning.rl import plan_rl
from burnish.planning.shortages import refuse_impossible, seat_warnings
from burnish.trainers.cluster import train_rl
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.setup.preflight import check_settings

ENGINE = """
import copy

from burnish.config.engines import EngineTraits
from burnish.models.weights import Weights
from burnish.rollouts.engine import RestingEngine
from burnish.rollouts.local.engine import LocalEngine


class Toy(LocalEngine, RestingEngine):
    # Samples from a copy of the model, and notes what it is asked.
    traits = EngineTraits(
        label="the toy", copies=True, sleeps="anywhere", lowest_temperature=0.5, log="toy.log",
        reserved={"seed": "each response has its own"}, gpus_option="gpus", gpu_share=0.4, share_options=("share",),
        memory={"buffers of the toy": 1 << 20},
    )

    def __init__(self, model, *, log, mark="", **arguments):
        super().__init__(copy.deepcopy(model), **arguments)
        self._log, self._mark = log, mark
        self.notes = ("the toy is made",)

    def note(self, text):
        with self._log.open("a") as log:
            log.write(f"{self._mark}{text}\\n")

    def sync(self, weights):
        super().sync(Weights(weights.version, weights.tensors))
        self.note(f"weights {weights.version}")

    def generate_until(self, requests, sampling, **given):
        self.note(f"sample until {sampling.stop} with {self.version}")
        return super().generate_until(requests, sampling, **given)

    def rest(self):
        self.note("sleep")


class Deaf(Toy):
    traits = EngineTraits(label="the deaf one", takes_stop_texts=False)


class Sleepless(LocalEngine):
    traits = EngineTraits(sleeps="anywhere")


class Odd(LocalEngine):
    traits = {"copies": True}
"""


@pytest.fixture
def toy(tiny_run: BuildRl, tmp_path: Path) -> Callable[..., RlConfig]:
    """A run with one of these engines; overrides as on the command line."""
    (tmp_path / "toys.py").write_text(ENGINE)

    def build(*overrides: str, name: str = "Toy") -> RlConfig:
        return tiny_run(f"rollout.engine={tmp_path}/toys.py:{name}", *overrides)

    return build


@pytest.mark.slow
def test_it_gets_weights_stop_texts_options_a_log_and_sleep(toy: Callable[..., RlConfig], tmp_path: Path) -> None:
    overrides = ("steps=2", "rollout.stop=['7']", "rollout.engine_options.mark='> '")
    sleeping = toy(*overrides, "cluster.offload=[rollout_engine]")
    console = Console(record=True, width=200)
    train_rl(sleeping, console=console)
    log = (tmp_path / "run" / "toy.log").read_text().splitlines()
    sampled = "> sample until ('7',) with "
    assert log == [f"{sampled}0", "> sleep", "> weights 1", f"{sampled}1", "> sleep"]
    assert "the toy is made" in console.export_text()
    trained(toy(*overrides, f"output={tmp_path}/awake"))
    assert "> sleep" not in (tmp_path / "awake" / "toy.log").read_text()


def test_its_memory_and_its_gpus_are_planned(toy: Callable[..., RlConfig], tiny_model: Path) -> None:
    facts, machine = read_model_facts(Path(tiny_model)), Machine(8, 8, 64 << 30, (80 << 30,) * 4)
    assert facts is not None

    def in_phases(*overrides: str) -> dict[str, tuple[str, ...]]:
        (seat, *_) = seats_of(toy(*overrides), facts, machine)
        return {item.name: item.phases for item in seat.device if "the toy" in item.name}

    assert in_phases() == dict.fromkeys(("weights in the toy", "buffers of the toy"), PHASES)
    sleeping = in_phases("cluster.offload=[rollout_engine]")
    assert sleeping == dict.fromkeys(("weights in the toy", "buffers of the toy"), ("sampling",))
    (policy, *_) = plan_rl(toy(), facts=facts).models
    assert policy.because.endswith("toys.py:Toy engine samples from a second copy")
    beside = [*seat_warnings(toy(), (), machine)]
    assert any(
        f"the toy reserves 40% of its GPU ({32:.2f} GiB" in text and "engine_options.share" in text for text in beside
    )
    on_two = toy("cluster.rollout_workers=1", "rollout.engine_options.gpus=2")
    *_, worker = (seat for seat in seats_of(on_two, facts, machine) if seat.name == "rollout worker 0")
    assert (worker.gpu, worker.num_gpus) == (1, 2)
    with pytest.raises(ConfigError, match=r"engine_options.gpus is 3, but .* attention heads"):
        refuse_impossible(toy("cluster.rollout_workers=1", "rollout.engine_options.gpus=3"), (), machine, facts)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("Toy", "rollout.temperature=0.4", "rollout.temperature is 0.4, but the toy samples at 0.5 or above"),
        ("Toy", "rollout.engine_options.seed=3", "rollout.engine_options.seed is set, but each response has its own"),
        ("Toy", "rollout.engine_options.log=3", "rollout.engine_options.log is set, but it is given to every engine"),
        ("Toy", "rollout.engine_options.gpus=2", "but without rollout workers the toy shares the single GPU"),
        ("Deaf", "rollout.stop=[x]", "rollout.stop is set, but the deaf one takes no stop texts"),
        ("Deaf", "cluster.offload=[rollout_engine]", "names rollout_engine, but .*:Deaf', which cannot sleep"),
        ("Sleepless", "", "whose traits have sleeps, but it is not a RestingEngine"),
        ("Odd", "", "whose `traits` are {'copies': True}"),
    ],
)
def test_what_its_traits_exclude_is_refused(toy: Callable[..., RlConfig], name: str, words: str, message: str) -> None:
    config = toy(*words.split(), name=name)
    with pytest.raises(ConfigError, match=message):
        check_settings(config, resolve_algorithm(config.algorithm))


def test_options_are_for_an_engine_of_ones_own(tiny_run: BuildRl) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.engine_options is set, but rollout.engine is 'local'"):
        tiny_run("rollout.engine_options.share=0.3")


def test_nothing_else_is_refused_and_what_it_can_do_is_allowed(toy: Callable[..., Any]) -> None:
    config = toy("cluster.offload=[rollout_engine]", "rollout.stop=[x]", "rollout.engine_options={share: 0.3}")
    check_settings(config, resolve_algorithm(config.algorithm))
    ahead = toy("partial=true", "max_staleness=1", "cluster.rollout_workers=1")  # it is a StoppableEngine
    check_settings(ahead, resolve_algorithm(ahead.algorithm))
