"""A run on several processes has the numbers of the same run on one, to the last bit, whatever happens to a process."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from runs import BuildPairs, BuildRl, BuildSft, Run, after_step, lines_of, rows_of, trace, trained, write_lines
from safetensors.torch import load_file
from torch import Tensor

from burnish.checkpointing.encoding import read_state
from burnish.distributed.processes import RoleProcess
from burnish.trainers.outer_loop import STATE_NAME

pytestmark = pytest.mark.slow


WITH_KL = {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05}
PPO = {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05, "top_entropy": 0.5}
ONCE = {"learning_rate": 1e-3}
TWICE = {**ONCE, "minibatches": 2}
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": WITH_KL, "optimization": {**TWICE, "epochs": 2}},
    "dapo": {"algorithm": "dapo", "optimization": TWICE},
    "ppo": {"algorithm": PPO, "critic": {**ONCE, "kind": "separate", "warmup_steps": 1}, "optimization": TWICE},
    "ppo shared": {"algorithm": PPO, "critic": {**ONCE, "kind": "shared"}, "optimization": TWICE},
    "remax": {"algorithm": "remax", "optimization": ONCE},
    "lora": {"algorithm": WITH_KL, "optimization": ONCE},
    "few bits": {"algorithm": WITH_KL, "optimization": ONCE},
    "bfloat16": {"optimization": ONCE},
}
WORDS = {
    "lora": ("model.lora.rank=4",),
    "few bits": ("model.lora.rank=4", "model.quantization=nf4"),
    "bfloat16": ("model.dtype=bfloat16",),
}


def most_by_hand(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """The cases, all of which but the kept ones are left to `make test-matrix`."""
    return [case if case in kept else by_hand(case) for case in cases]


def by_hand(case: Any) -> Any:
    """A case, or a tuple of what one consists of."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.matrix)


@pytest.fixture
def run(tiny_run: BuildRl, tmp_path: Path) -> Run:
    """Trains in `tmp_path/NAME` with four lanes and returns the folder."""

    def train(name: str, case: str, *overrides: str, steps: int = 4, workers: int = 0, **cluster: Any) -> Path:
        config = tiny_run(
            f"output={tmp_path}/{name}",
            *overrides,
            *WORDS.get(case, ()),
            steps=steps,
            checkpoint={"every_steps": 2},
            cluster={"lanes": 4, "rollout_workers": workers, "threads": 1, **cluster},
            **CASES[case],
        )
        return trained(config)

    return train


@pytest.fixture
def hit(started: list[RoleProcess], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Kills, or stops, a process by name after step 3, once. Gives all processes of that name, as they are started."""

    def ready(name: str, number: signal.Signals = signal.SIGKILL) -> Callable[[], list[RoleProcess]]:
        def found() -> list[RoleProcess]:
            return [process for process in started if process.name == name]

        after_step(monkeypatch, 3, lambda: os.kill(found()[0].pid, number))
        return found

    return ready


@pytest.mark.parametrize(
    ("case", "own", "trainers", "workers"),
    most_by_hand(
        [("ppo", ["reference", "critic"], 1, 0), ("ppo", ["critic"], 2, 1), ("grpo", ["reference"], 1, 1)],
        ("ppo", ["critic"], 2, 1),
    ),
)
def test_models_with_a_process_of_their_own_have_the_same_numbers(
    case: str, own: list[str], trainers: int, workers: int, run: Run, started: list[RoleProcess]
) -> None:
    """Weights and optimizer of the critic among them. Going on in one process changes nothing either."""
    found = trace(run("own", case, f"cluster.own_process={json.dumps(own)}", trainers=trainers, workers=workers))
    assert set(own) <= {process.name for process in started}
    assert found == trace(run("one", case))
    assert trace(run("own", case, steps=6)) == trace(run("one", case, steps=6))


@pytest.mark.matrix
def test_no_number_of_rollout_workers_changes_a_token_of_sixty_thousand(run: Run) -> None:
    """Nor a log-probability, over 20 steps of training."""
    words = ("cluster.lanes=6", "rollout.prompts_per_step=24", "rollout.group_size=6", "rollout.max_response_tokens=22")
    words += ("rollout.ignore_eos=true", "logging.record_rollouts=true", "checkpoint.every_steps=20")
    expected = trace(run("none", "grpo", *words, steps=20))
    assert sum(row["rollout/response_tokens_mean"] for row in expected.metrics) * 24 * 6 >= 60_000
    for workers in (1, 2, 3):
        assert trace(run(f"workers-{workers}", "grpo", *words, workers=workers, steps=20)) == expected


@pytest.mark.matrix
def test_a_lost_critic_costs_time_only(run: Run, hit: Callable[..., Any]) -> None:
    """It is killed after step 3; all processes start again from the checkpoint of step 2."""
    expected, critics = trace(run("one", "ppo")), hit("critic")
    assert trace(run("hit", "ppo", "cluster.own_process=critic")) == expected
    assert len(critics()) == 2


LEARNED: dict[str, tuple[str, ...]] = {
    "sft": (),
    "sft lora": ("model.lora.rank=4",),
    "sft bfloat16": ("model.dtype=bfloat16",),
    "sft noisy": ("neftune_alpha=5",),
    "sft sharded": ("cluster.sharding=optimizer",),
    "rm sharded": ("cluster.sharding=optimizer",),
    "sft checkpointing": ("model.gradient_checkpointing=true",),
    "rm": (),
    "rm of policy": ("normalization.kind=gain_bias", "normalization.responses=8"),
    "rm trainable": ("normalization.kind=gain_bias", "normalization.responses=8", "normalization.trainable=true"),
    "rm lora": ("model.lora.rank=4",),
}


@pytest.fixture
def learn(tiny_sft: BuildSft, tiny_pairs: BuildPairs, tiny_task: Path, tmp_path: Path) -> Run:
    """Fine-tunes a policy or a reward model in `tmp_path/NAME` with four lanes, and returns the folder."""

    def train(name: str, case: str, *overrides: str, steps: int = 4) -> Path:
        words = (*LEARNED[case], f"output={tmp_path}/{name}", f"steps={steps}", "cluster.threads=1", *overrides)
        if case.startswith("sft"):
            return trained(tiny_sft(*words))
        rows, held_out = (
            [
                {"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"][::-1] + "7"}
                for row in lines_of(tiny_task / f"{split}.jsonl")
            ]
            for split in ("train", "eval")
        )
        write_lines(tmp_path / "held_out.jsonl", held_out)
        fields = {
            "data": {"train": str(tmp_path / "pairs.jsonl"), "eval": str(tmp_path / "held_out.jsonl")},
            "optimization": {"learning_rate": 1e-2, "comparisons_per_batch": 16},
            "evaluation": {"every_steps": 2},
            "checkpoint": {"every_steps": 2},
        }
        return trained(tiny_pairs("rm", rows, *words, **fields))

    return train


def test_two_trainers_of_a_reward_model_are_one(learn: Run) -> None:
    """Metrics, held-out accuracy, weights and optimizer; a supervised run is in the slow tests."""
    two = trace(learn("two", "rm", "cluster.trainers=2"))
    one = trace(learn("one", "rm", "cluster.lanes=2"))
    assert two == one
    assert "eval/accuracy" in two.metrics[-1]


@pytest.mark.parametrize("case", most_by_hand(LEARNED, "sft lora"))
def test_no_number_of_trainers_changes_a_bit_of_given_data(case: str, learn: Run) -> None:
    expected = trace(learn("one", case, "cluster.lanes=4"))
    for trainers in (2, 4) if case in ("sft", "rm") else (2,):
        found = trace(learn(f"trainers-{trainers}", case, "cluster.lanes=4", f"cluster.trainers={trainers}"))
        assert found == expected, trainers
    if "cluster.sharding=optimizer" not in LEARNED[case]:  # which the two trainers have been, then
        sliced = ("cluster.lanes=4", "cluster.trainers=2", "cluster.sharding=optimizer")
        assert trace(learn("sliced", case, *sliced)) == expected


@pytest.mark.parametrize("case", most_by_hand(["sft", "rm"], "rm"))
def test_one_trainer_in_its_own_process_is_a_run_without_the_section(case: str, learn: Run) -> None:
    expected = trace(learn("plain", case))
    assert trace(learn("one lane", case, "cluster.lanes=1")) == expected
    assert trace(learn("elsewhere", case, "cluster.backend=processes")) == expected


@pytest.mark.matrix
@pytest.mark.parametrize("case", ["sft", "rm of policy"])
def test_a_run_on_given_data_goes_on_after_a_lost_trainer_and_on_another_number(
    case: str, learn: Run, hit: Callable[..., Any]
) -> None:
    """One of two trainers is killed after step 3; both start again from the checkpoint of step 2. Then the run goes
    on with one trainer, and the undisturbed one with four."""
    words = ("cluster.lanes=4", "optimization.schedule=constant")
    expected, trainers = trace(learn("one", case, *words, steps=5)), hit("trainer 1")
    assert trace(learn("hit", case, *words, "cluster.trainers=2", steps=5)) == expected
    assert len(trainers()) == 2
    longer = trace(learn("one", case, *words, "cluster.trainers=4", steps=7))
    assert trace(learn("hit", case, *words, steps=7)) == longer


def test_a_lost_rollout_worker_changes_nothing(run: Run, killed_while_sampling: list[int]) -> None:
    """The same tokens and log-probabilities with two workers, one of which is killed while it samples."""
    expected = trace(run("one", "grpo"))
    found = trace(run("killed", "grpo", workers=2))
    assert killed_while_sampling
    for row in found.metrics:
        row.pop("rollout/lost_workers", None)
    assert found == expected


@pytest.mark.parametrize("case", most_by_hand(CASES, "ppo", "bfloat16"))
def test_no_number_of_trainers_changes_a_bit(case: str, run: Run) -> None:
    expected = trace(run("one", case))
    for trainers in {"grpo": (2, 4), "ppo": (4,)}.get(case, (2,)):
        assert trace(run(f"trainers-{trainers}", case, trainers=trainers)) == expected, trainers


@pytest.mark.parametrize("case", most_by_hand(CASES, "ppo shared"))
def test_no_slice_changes_a_bit(case: str, run: Run) -> None:
    expected = trace(run("one", case))
    for trainers in (1, 2, 4) if case in ("grpo", "ppo", "bfloat16") else (2,):
        found = trace(run(f"trainers-{trainers}", case, trainers=trainers, sharding="optimizer"))
        assert found == expected, trainers


@pytest.mark.matrix_cases("1-whole-4-optimizer-bfloat16")
@pytest.mark.parametrize("case", most_by_hand(["ppo", "lora", "bfloat16"], "bfloat16"))
@pytest.mark.parametrize(
    ("first", "second"),
    [((2, "optimizer"), (1, "whole")), ((1, "whole"), (4, "optimizer")), by_hand(((4, "optimizer"), (2, "whole")))],
    ids=lambda sharding: f"{sharding[0]}-{sharding[1]}",
)
def test_a_run_continues_with_another_sharding(
    first: tuple[int, str], second: tuple[int, str], case: str, run: Run
) -> None:
    expected = trace(run("one", case, steps=6))
    run("changed", case, trainers=first[0], sharding=first[1], steps=3)
    assert trace(run("changed", case, trainers=second[0], sharding=second[1], steps=6)) == expected


@pytest.mark.parametrize(("trainers", "workers"), most_by_hand([(1, 1), (1, 3), (2, 2)], (2, 2)))
def test_no_number_of_rollout_workers_changes_a_bit(trainers: int, workers: int, run: Run) -> None:
    assert trace(run("several", "grpo", trainers=trainers, workers=workers)) == trace(run("one", "grpo"))


def test_rollout_workers_sample_with_the_rounded_weights(run: Run) -> None:
    """From the first step, when they have what they loaded, and after updates, with adapters merged in."""
    folder = run("few", "few bits", "model.device=cpu", trainers=1, workers=1, steps=3)
    rows = rows_of(folder)
    assert len(rows) == 3
    assert max(row["rollout/logprob_diff_max"] for row in rows) < 1e-4


@pytest.mark.parametrize("trainers", most_by_hand([1, 4], 1))
def test_a_run_continues_on_another_number_of_trainers(trainers: int, run: Run) -> None:
    expected = trace(run("one", "grpo", steps=6))
    run("changed", "grpo", trainers=2, steps=3)
    assert trace(run("changed", "grpo", trainers=trainers, steps=6)) == expected


@pytest.mark.matrix_cases("killed*")
@pytest.mark.parametrize(
    ("number", "sharding"),
    [(signal.SIGKILL, "whole"), (signal.SIGSTOP, "whole"), (signal.SIGKILL, "optimizer")],
    ids=["killed", "stopped", "killed with slices"],
)
def test_a_lost_trainer_costs_time_only(
    number: signal.Signals, sharding: str, run: Run, hit: Callable[..., Any]
) -> None:
    """One of two trainers is killed, or stopped, in step 4; all start again from the checkpoint of step 2."""
    expected, trainers = trace(run("one", "grpo", steps=6)), hit("trainer 1", number)
    begun = time.monotonic()
    assert trace(run("hit", "grpo", trainers=2, steps=6, sharding=sharding)) == expected
    assert len(trainers()) == 2, f"trainers were not started again ({time.monotonic() - begun:.0f} s)"


def weights_of(run: Path) -> dict[str, Tensor]:
    """The policy's weights in the newest checkpoint."""
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / "policy" / "model.safetensors")


def furthest(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest difference of two models' weights."""
    assert left.keys() == right.keys()
    return max(float((left[name].float() - right[name].float()).abs().max()) for name in left)


@pytest.mark.parametrize(
    ("case", "trainers"),
    most_by_hand(product(["sft", "sft lora", "rm", "rm lora", "rm trainable"], [2, 3]), ("rm lora", 2)),
)
def test_full_sharding_of_given_data(case: str, trainers: int, learn: Run) -> None:
    """Three steps, one more on another number of processes, and one more with `whole`: always close to one process."""
    words = ("cluster.lanes=6", "optimization.schedule=constant")
    three, four, five = (weights_of(learn("one", case, *words, steps=steps)) for steps in (3, 4, 5))
    cut = (*words, "cluster.sharding=full")
    found = weights_of(learn("full", case, *cut, f"cluster.trainers={trainers}", steps=3))
    assert furthest(found, three) < 0.05 * furthest(three, four)
    found = weights_of(learn("full", case, *cut, f"cluster.trainers={5 - trainers}", steps=4))
    assert furthest(found, four) < 0.05 * furthest(three, four)
    found = weights_of(learn("full", case, *words, steps=5))
    assert furthest(found, five) < 0.05 * furthest(four, five)


def trained_of(run: Path) -> dict[str, Tensor]:
    """What the optimizers of policy and critic move, in the newest checkpoint: weights, or their float32 masters."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    found: dict[str, Tensor] = {}
    for role, state in read_state(newest, STATE_NAME).items():
        if role in ("policy", "critic"):
            weights = [load_file(file) for file in sorted((newest / role).glob("*.safetensors"))]
            for moved in [masters] if (masters := state["optimizer"]["masters"]) else weights:
                found |= {f"{role}.{name}": tensor for name, tensor in moved.items()}
    return found


@pytest.mark.matrix_cases("bfloat16-words3-own3")
@pytest.mark.parametrize(
    ("case", "words", "own"),
    [
        by_hand(("grpo", (), ())),
        by_hand(("grpo", ("model.gradient_checkpointing=true",), ())),
        by_hand(("lora", (), ())),
        ("bfloat16", (), ()),
        by_hand(("ppo", ("critic.warmup_steps=0",), ())),
        ("ppo", ("critic.warmup_steps=0",), ("cluster.own_process=critic",)),
        by_hand(("ppo shared", (), ())),
    ],
)
def test_full_sharding_is_one_process_up_to_rounding(
    case: str, words: tuple[str, ...], own: tuple[str, ...], run: Run
) -> None:
    """Two steps, and then one more with `whole`."""
    two = run("two", case, *words, steps=2)
    before, middle = trained_of(run("begun", case, *words, steps=1)), trained_of(two)
    full = run("full", case, *words, *own, steps=2, trainers=2, workers=1, sharding="full")
    assert furthest(trained_of(full), middle) < 0.05 * furthest(middle, before)
    after, last = (trained_of(run(name, case, *words, steps=3)) for name in ("two", "full"))
    assert furthest(last, after) < 0.05 * furthest(middle, before)
