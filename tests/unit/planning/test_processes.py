"""The processes of a run: bytes by hand, and what a machine cannot do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig, RmConfig, RunConfig, SftConfig
from burnish.errors import ConfigError
from burnish.planning.machines import Machine
from burnish.planning.memory import PHASES, ParameterBytes, bytes_in, gradients_at_once, peak_bytes
from burnish.planning.model_facts import ModelFacts, RewardFacts
from burnish.planning.plan import Plan, seated
from burnish.planning.processes import BLOCK_BYTES, PROCESS_BYTES, PlannedProcess, needs_of_gpus, seats_of, sharding_of
from burnish.planning.rl import plan_rl
from burnish.planning.rl_processes import CONVERSATION_PROCESS_BYTES, REWARD_WORKER_BYTES, RlTable
from burnish.planning.shortages import refuse_impossible, seat_warnings
from burnish.planning.texts import SftTable

FACTS = ModelFacts(
    num_parameters=1_000_000,
    num_layers=2,
    hidden_size=10,
    intermediate_size=20,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_size=5,
    vocabulary_size=100,
    context_tokens=None,
)
M = 1_000_000
MACHINE = Machine(cores=8, threads=8, memory_bytes=64 << 30)
PPO: dict[str, Any] = {"algorithm": {"preset": "ppo", "kl_in": "loss", "kl_coef": 0.1}}
KL: dict[str, Any] = {"algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.1}}


def with_gpus(count: int) -> Machine:
    return replace(MACHINE, gpu_bytes=(80 << 30,) * count)


def rl(**sections: Any) -> RlConfig:
    fields = {"model": {"path": "m", "device": "cpu"}, "data": {"train": "a"}, "rewards": "math", "algorithm": "dapo"}
    return load_run_data({**fields, **sections}).config


def sft(**cluster: Any) -> SftConfig:
    return load_run_data({"model": "m", "data": {"train": "a"}, "cluster": cluster}, (), "sft").config


def rm(**cluster: Any) -> RmConfig:
    return load_run_data({"model": "m", "data": {"train": "a"}, "cluster": cluster}, (), "rm").config


def seats(config: RunConfig, machine: Machine = MACHINE, *rewards: RewardFacts) -> Sequence[PlannedProcess]:
    return seats_of(config, FACTS, machine, rewards)


def by_name(config: RunConfig, machine: Machine = MACHINE, *rewards: RewardFacts) -> dict[str, PlannedProcess]:
    return {seat.name: seat for seat in seats(config, machine, *rewards)}


def named(seat: PlannedProcess) -> dict[str, int]:
    return {item.name: item.num_bytes for item in (*seat.host, *seat.device)}


def planned(config: RlConfig, facts: ModelFacts | None = FACTS, *rewards: RewardFacts) -> Plan:
    return seated(plan_rl(config, facts=facts), config, facts, MACHINE, rewards)


def refusal(config: RunConfig, machine: Machine, facts: ModelFacts | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        refuse_impossible(config, seats(config, machine), machine, facts)
    return str(caught.value)


def accepted(config: RunConfig, machine: Machine, facts: ModelFacts | None = None) -> list[str]:
    """Warnings about what is not refused."""
    refuse_impossible(config, seats(config, machine), machine, facts)
    return list(seat_warnings(config, seats(config, machine), machine))


def test_every_process_is_named_with_what_it_holds() -> None:
    found = seats(rl(**PPO, cluster={"trainers": 2, "rollout_workers": 1, "threads": 3}))
    trained = ("policy", "optimizer", "reference", "separate critic")
    assert [(seat.name, seat.holds) for seat in found[:-1]] == [
        ("controller", ("the loop", "data")),
        ("trainer 0", trained),
        ("trainer 1", trained),
        ("rollout worker 0", ("local engine with a copy of the weights",)),
    ]
    assert found[-1].name == "2 reward workers"
    assert [seat.computes for seat in found] == ["3 threads"] * 4 + ["1 thread"]


def test_under_torchrun_each_process_is_a_rank() -> None:
    config = rl(cluster={"backend": "torchrun", "trainers": 2, "rollout_workers": 1})
    assert [(seat.name, seat.threads) for seat in seats(config)] == [  # eight cores for three
        ("rank 0: controller", 2),
        ("rank 0: trainer 0", 2),
        ("rank 1: trainer 1", 2),
        ("rank 2: rollout worker 0", 2),
        ("rank 0: 2 reward workers", 1),
    ]
    alone = seats(rl(cluster={"backend": "torchrun", "rollout_workers": 1}))[:2]
    assert [(seat.name, seat.threads) for seat in alone] == [("rank 0: controller", 4), ("rank 1: rollout worker 0", 4)]
    assert [line.because for line in planned(config).lines if line.name == "ranks of torchrun"] == [
        "on one node: torchrun --nproc-per-node 3 -m burnish ..."
    ]


def test_processes_that_may_be_on_several_nodes_are_not_compared_with_this_machine() -> None:
    small = Machine(cores=1, threads=1, memory_bytes=1 << 20)
    elsewhere = rl(cluster={"backend": "torchrun", "trainers": 2})
    assert accepted(elsewhere, small) == []
    numbered = rl(model={"path": "m", "device": "cuda:1"}, cluster={"backend": "torchrun", "trainers": 2})
    assert "model.device is cuda:1" in refusal(numbered, small)
    assert "need at least" in refusal(rl(cluster={"trainers": 2}), small)


def test_where_nobody_else_trains_the_controller_does() -> None:
    alone = seats(rl())[0]
    assert (alone.name, alone.threads) == ("controller", 8)
    assert alone.holds == ("the loop", "data", "policy", "optimizer", "local engine with the policy's weights")
    sampling = seats(rl(cluster={"rollout_workers": 3}))
    assert sampling[0].holds == ("the loop", "data", "policy", "optimizer")
    assert [seat.threads for seat in sampling] == [2, 2, 2, 2, 1]
    assert list(by_name(sft(trainers=2))) == ["controller", "trainer 0", "trainer 1"]
    assert [(seat.name, seat.holds) for seat in seats(rm(backend="processes"))] == [
        ("controller", ("the loop", "data")),
        ("trainer 0", ("reward model", "optimizer")),
    ]


def test_models_with_a_process_of_their_own_are_not_in_the_trainers() -> None:
    """In float32: the reference is 4 bytes a parameter. The critic has the weights that it begins with, its own, its
    gradients, and two moments."""
    config = rl(
        algorithm={"preset": "ppo", "kl_in": "reward", "kl_coef": 0.1},
        cluster={"trainers": 2, "own_process": ["reference", "critic"]},
    )
    found = by_name(config)
    assert list(found)[:5] == ["controller", "trainer 0", "trainer 1", "reference", "critic"]
    assert found["trainer 0"].holds == ("policy", "optimizer", "local engine with the policy's weights")
    assert not {"reference weights", "critic weights"} & named(found["trainer 0"]).keys()
    assert found["critic"].threads == 2
    critic = named(found["critic"])
    assert named(found["reference"])["reference weights"] == 4 * M
    names = ("policy weights, which it begins with", "critic weights", "critic gradients", "critic masters and moments")
    assert [critic[name] // M for name in names] == [4, 4, 4 * 2, 8]


def test_the_bytes_of_each_process_by_hand() -> None:
    config = rl(
        rollout={"prompts_per_step": 4, "group_size": 2, "max_prompt_tokens": 10, "max_response_tokens": 10},
        cluster={"trainers": 2, "rollout_workers": 2, "lanes": 4},
    )
    controller, first, second, worker, _, rewards = seats(config)
    assert named(controller) == {
        "Python and its libraries": PROCESS_BYTES,
        "weights in shared memory": 4 * M,
        "their next version, while it is written": 4 * M,
        "optimizer state, to be saved": 8 * M,
        "the message with the last of them": 8 * M,
        "buffer of checkpoints": BLOCK_BYTES,
        "saved policy": 4 * M,
    }
    assert controller.host_bytes == PROCESS_BYTES + 4 * M + 16 * M + BLOCK_BYTES  # while a checkpoint is written
    of_both = {
        "Python and its libraries": PROCESS_BYTES,
        "policy weights": 4 * M,
        "gradients": 10 * M,  # own sum, half of the total, total: 2.5 of 4 MB
        "exchanged at a time": 16 * M,
        "Adam moments": 8 * M,
        "activations": 40 * 2 * (80 + 10 + 60) * 4,  # 8 responses of 20 tokens on four lanes; two layers
        "log-probabilities": 4 * 4000 + 4 * (3 * 4000 + 3 * 40 * 10),
    }
    assert named(second) == of_both
    assert named(first) == of_both | {"optimizer state, sent to the controller": 8 * M}
    assert second.host_bytes == sum(of_both.values())  # the update
    assert first.host_bytes == second.host_bytes  # which takes more than writing a checkpoint: 10 MB of gradients
    assert named(worker) == {
        "Python and its libraries": PROCESS_BYTES,
        "weights": 4 * M,
        "weights laid out for decoding": 4 * M,
        "the next weights, while they are laid out": 4 * M,
        "key/value cache": 2 * 20 * (2 * 2 * 5 * 4),  # two of eight responses at a time
    }
    assert rewards.host_bytes == 2 * REWARD_WORKER_BYTES


def test_bytes_of_a_parameter_are_divided_by_what_is_sharded() -> None:
    float32, bfloat16 = ParameterBytes.of("float32"), ParameterBytes.of("bfloat16")
    assert (float32.weight, float32.gradient, float32.optimizer) == (4, 4, 8)
    assert (bfloat16.weight, bfloat16.gradient, bfloat16.optimizer) == (2, 4, 12)
    assert ParameterBytes.of("bfloat16", "whole", 4) == bfloat16
    assert ParameterBytes.of("bfloat16", "optimizer", 4) == ParameterBytes(2, 4, 1, 2)
    assert ParameterBytes.of("float32", "full", 4) == ParameterBytes(1, 1, 0, 2)
    assert ParameterBytes.of("bfloat16", "full", 4) == ParameterBytes(0, 1, 1, 2)  # the masters are the weights
    with_slices = seats(sft(trainers=4, sharding="optimizer"))[1]
    assert named(with_slices)["Adam moments"] == 2 * M
    sliced = {item.name: item.num_bytes for item in SftTable(sft(trainers=4), FACTS, None, 4, "optimizer").trained()}
    assert (sliced["policy weights"], sliced["Adam moments"]) == (4 * M, 2 * M)
    assert sliced["gradients"] == 5 * M  # the own sum, and a quarter of the total


def test_what_a_trainer_keeps_of_cut_weights() -> None:
    def sizes(**model: Any) -> dict[str, int]:
        fields = {"model": {"path": "m", "device": "cpu", **model}, "cluster": {"trainers": 4, "rollout_workers": 1}}
        config = rl(**fields, **KL)
        return {item.name: item.num_bytes for item in RlTable(config, FACTS, None, 4, "full").trained()}

    whole = sizes()
    assert (whole["policy weights"], whole["reference weights"], whole["Adam moments"]) == (M, M, 2 * M)
    narrow = sizes(dtype="bfloat16")
    assert "policy weights" not in narrow
    assert (narrow["master weights"], narrow["reference weights"]) == (M, M // 2)
    adapted = sizes(dtype="bfloat16", lora={"rank": 2})
    assert adapted["policy weights"] == M // 2  # a quarter of the frozen base, of two bytes each


@pytest.mark.parametrize(
    ("lanes", "trainers", "sharding", "held"),
    [
        (1, 1, "whole", 1),
        (4, 1, "whole", 3),  # log2(4) + 1
        (6, 1, "whole", 4),
        (2, 2, "whole", 2.5),
        (16, 2, "whole", 4),
        (2, 2, "optimizer", 1.5),
    ],
)
def test_gradients_at_once(lanes: int, trainers: int, sharding: Any, held: float) -> None:
    assert gradients_at_once(lanes, trainers, sharding) == held


def test_a_decoder_lays_out_only_the_head_of_weights_in_few_bits() -> None:
    def laid_out(**more: object) -> list[int]:
        found = map(named, seats(rl(model={"path": "m", "device": "cpu", "lora": {"rank": 2}, **more})))
        return [sizes["weights laid out for decoding"] for sizes in found if "weights laid out for decoding" in sizes]

    assert laid_out() == [4 * M]
    assert laid_out(quantization="nf4") == [4 * FACTS.vocabulary_size * FACTS.hidden_size]


def test_what_saving_copies() -> None:
    """The saved policy is loaded again after its first checkpoint, unless it is large: that is a phase of its own."""

    def in_checkpoint(config: RunConfig, machine: Machine = MACHINE) -> list[dict[str, int]]:
        """Of the processes with a model: what only a checkpoint needs."""
        items = ([*seat.host, *seat.device] for seat in seats(config, machine) if "reward" not in seat.name)
        return [{item.name: item.num_bytes for item in held if item.phases == ("checkpoint",)} for held in items]

    buffer = {"buffer of checkpoints": BLOCK_BYTES}
    weights, merged = {"weights, copied to be saved": 4 * M}, {"merged weights, to be saved": 4 * M}
    assert in_checkpoint(sft()) == [buffer]
    resting = {"optimizer state, copied before it rests": 8 * M}
    assert in_checkpoint(sft(offload=["optimizer"])) == [buffer | resting]
    assert in_checkpoint(rl(model="m"), with_gpus(2)) == [buffer | weights]
    assert in_checkpoint(rl(model={"path": "m", "device": "cpu", "lora": {"rank": 2}})) == [buffer | merged]
    state = {"optimizer state, to be saved": 8 * M, "the message with the last of them": 8 * M}
    sent = {"optimizer state, sent to the controller": 8 * M}
    critics = {"critic's optimizer state, to be saved": 8 * M}
    alone = {**PPO, "cluster": {"own_process": ["critic"], "trainers": 2, "offload": ["optimizer"]}}
    assert in_checkpoint(rl(**alone)) == [state | critics | buffer, sent | resting, {}, sent | resting]
    alone["cluster"] = {"own_process": ["critic"], "rollout_workers": 1}  # the controller trains the policy
    assert [*in_checkpoint(rl(**alone))[0]] == [*critics, "the message with the last of them", *buffer]
    collected = {"optimizer state, collected from slices": 8 * M}
    assert in_checkpoint(sft(trainers=2, sharding="whole")) == [state | buffer, sent, {}]
    assert in_checkpoint(sft(trainers=2, sharding="optimizer")) == [state | buffer, sent | collected, {}]
    large = replace(FACTS, num_parameters=6 << 30)
    for config, facts, found in ((sft(), FACTS, [4 * M]), (rm(), FACTS, []), (sft(trainers=2), large, [])):
        host = seats_of(config, facts, MACHINE)[0].host
        assert [item.num_bytes for item in host if item.phases == ("trial of the first checkpoint",)] == found
    assert in_checkpoint(sft(trainers=2, sharding="full")) == [state | buffer, weights | sent | collected, {}]


def test_versions_of_the_weights_for_batches_ahead_of_training() -> None:
    config = rl(cluster={"rollout_workers": 1}, max_staleness=2)
    sizes = named(seats(config)[0])
    assert (sizes["weights in shared memory"], sizes["later versions in shared memory"]) == (4 * M, 12 * M)


def test_an_engine_on_several_gpus_is_spread_over_them() -> None:
    rollout = {"engine": "vllm", "vllm": {"options": {"tensor_parallel_size": 2}}}
    config = rl(model="m", rollout=rollout, cluster={"trainers": 2, "rollout_workers": 2})
    first, second = (seat for seat in seats(config, with_gpus(6)) if "rollout worker" in seat.name)
    assert [first.computes, second.computes] == ["GPUs 2, 3, 2 threads", "GPUs 4, 5, 2 threads"]
    assert named(first)["weights in vLLM"] == 4 * M
    assert first.host_bytes == PROCESS_BYTES + 4 * M  # a copy, from which a lost vLLM is started again
    needed = needs_of_gpus([first, second])
    assert needed[2] == needed[3] == ("rollout worker 0", first.device_bytes)
    assert 2 * first.device_bytes == sum(item.num_bytes for item in first.device)
    assert accepted(config, with_gpus(6), FACTS) == []
    with pytest.raises(ConfigError, match=r"that is 6 GPUs, 2 for each rollout worker .* one for each other.* has 5"):
        refuse_impossible(config, seats(config, with_gpus(5)), with_gpus(5), FACTS)
    odd = replace(FACTS, num_attention_heads=3)
    assert "tensor_parallel_size is 2, but m has 3 attention heads" in refusal(config, with_gpus(6), odd)


def test_gpus_are_for_processes_with_a_model() -> None:
    found = seats(rl(model="m", cluster={"trainers": 2, "rollout_workers": 1}), with_gpus(3))
    assert [seat.gpu for seat in found] == [None, 0, 1, 2, None]
    on_gpu = {"weights", "key/value cache", "logits of decoding steps"}
    assert set(named(found[3])) == {"Python and its libraries"} | on_gpu
    assert found[3].host_bytes == PROCESS_BYTES
    assert found[1].computes == "GPU 0, 2 threads"


def test_more_gpus_than_there_are_are_refused() -> None:
    two, cluster = with_gpus(2), {"trainers": 2, "rollout_workers": 2}
    fields = "cluster.trainers is 2, cluster.rollout_workers is 2"
    text = f"{fields}: that is 4 GPUs, one for each process, but this machine has"
    config = rl(model="m", cluster=cluster)
    assert refusal(config, two).startswith(f"{text} 2\n")
    without = rl(model={"path": "m", "device": "cuda"}, cluster=cluster)
    assert refusal(without, MACHINE).startswith(f"{text} none\n")
    one_named = rl(model={"path": "m", "device": "cuda:1"}, cluster={"trainers": 2})
    assert "set model.device: cuda" in refusal(one_named, two)
    refuse_impossible(rl(cluster={"trainers": 4}), (), two)  # on CPUs
    refuse_impossible(config, (), MACHINE)  # `auto` without a GPU


@pytest.mark.parametrize("field", ["gpus_per_worker", "cpus_per_worker"])
@pytest.mark.parametrize("trainers", [1, 2])
def test_only_ray_gives_out_processors(field: str, trainers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = {field: 1, "trainers": trainers}
    assert f"cluster.{field} is set, but this run does not use Ray" in refusal(rl(cluster=cluster), MACHINE)
    refuse_impossible(rl(cluster={**cluster, "backend": "ray"}), (), MACHINE)


def test_too_little_memory_is_refused_with_the_numbers_of_each_process() -> None:
    config = sft(trainers=2, lanes=2, sharding="whole")
    certain = [PROCESS_BYTES + 16 * M, *[PROCESS_BYTES + 12 * M + 10 * M] * 2]
    assert [peak_bytes(seat.host, certain=True) for seat in seats(config)] == certain
    refuse_impossible(config, seats(config), Machine(8, 8, sum(certain)))
    text = refusal(config, Machine(8, 8, sum(certain) - 1))
    assert "cluster.trainers is 2: the processes of this run need at least 957.2 MiB of memory" in text
    assert "(controller 315.3 MiB, trainer 0 321.0 MiB, trainer 1 321.0 MiB)" in text
    assert "model.dtype: bfloat16" in text
    three = "(trainer 0 319.1 MiB, trainer 1 319.1 MiB, trainer 2 319.1 MiB, and 62 more)"
    assert three in refusal(sft(trainers=64, lanes=64, sharding="whole"), Machine(8, 8, 1))
    refuse_impossible(sft(), seats(sft()), Machine(8, 8, 1))  # one process may always try


def test_too_little_memory_of_a_gpu_is_refused() -> None:
    text = refusal(sft(trainers=2, sharding="whole"), Machine(8, 8, 64 << 30, (80 << 30, 15 * M)))
    assert text.startswith("trainer 1 needs at least 21.0 MiB of GPU 1, which has 14.3 MiB")


def test_more_processes_than_cores_is_only_said() -> None:
    machine = Machine(2, 2, 64 << 30)
    (warning,) = accepted(rl(cluster={"trainers": 2, "rollout_workers": 1}), machine)
    assert warning.startswith("cluster.trainers is 2, cluster.rollout_workers is 1: 3 processes share 2 cores")
    assert accepted(rl(), machine) == []
    (warning,) = accepted(rl(), Machine(2, 2, 300 << 20))
    assert "of memory, and this machine has 300.0 MiB" in warning


def test_the_plan_says_how_many_processes_and_how_much_they_need() -> None:
    config = rl(cluster={"trainers": 2, "rollout_workers": 1, "lanes": 4})
    plan = planned(config)
    lines = {line.name: line for line in plan.lines if line.topic == "processes"}
    assert (lines["with a model"].value, lines["lanes"].value) == ("3", "4")
    assert (lines["sharding"].value, lines["sharding"].because) == ("whole", "auto: the memory suffices for it")
    assert lines["host memory, at most"].because == "of all processes; this machine has 64.00 GiB"
    assert len(plan.seats) == 5
    assert "host memory, at most" not in {line.name for line in planned(config, None).lines}
    assert not [line for line in planned(rl(), None).lines if line.topic == "processes"]


def test_what_rests_counts_in_the_phases_that_need_it() -> None:
    def in_phases(*offload: str) -> dict[str, int]:
        config = rl(**PPO, cluster={"offload": list(offload)})
        items = [item for item in seats(config)[0].host if not item.at_most]
        return {phase: (bytes_in(phase, items) - PROCESS_BYTES) // M for phase in PHASES}

    copied = 8  # of the policy's moments, for the checkpoint, if they rest again
    awake = 4 + 8 + 4 + 4 + 8  # policy, its moments, reference, critic, its moments
    passes = ("update", "optimizer step", "critic update", "critic's optimizer step")  # with 4 of gradients
    assert in_phases() == {phase: awake + 4 * (phase in passes) for phase in PHASES}
    assert in_phases("optimizer", "reference", "critic") == {
        "sampling": 4,
        "scoring": 4,
        "log-probabilities": 4,
        "reference": 4 + 4,
        "teacher": 4,
        "values": 4 + 4,
        "update": 4 + 4,
        "optimizer step": 4 + 4 + 8,
        "critic update": 4 + 4 + 4,
        "critic's optimizer step": 4 + 4 + 4 + 8,
        "checkpoint": 4 + 8 + 4 + 8 + copied,
        "trial of the first checkpoint": 4,
    }
    only_critic = in_phases("critic")
    assert (only_critic["sampling"], only_critic["critic update"]) == (4 + 8 + 4, 4 + 8 + 4 + 4 + 4)


def test_a_vllm_that_sleeps_has_its_weights_on_the_gpu_only_while_it_samples() -> None:
    def in_vllm(**cluster: Any) -> tuple[list[tuple[str, ...]], list[str]]:
        seat = seats(rl(model="m", rollout={"engine": "vllm"}, cluster=cluster), with_gpus(1))[0]
        on_gpu = [item.phases for item in seat.device if item.name == "weights in vLLM"]
        return on_gpu, [item.name for item in seat.host if "vLLM" in item.name]

    assert in_vllm() == ([PHASES], [])
    (phases,), resting = in_vllm(offload=["rollout_engine"])
    assert phases == ("sampling",)
    assert len(resting) == 1


def test_what_a_gpu_gives_up_is_in_the_memory_of_the_host() -> None:
    seat = seats(rl(model="m", cluster={"offload": ["optimizer"], "rollout_workers": 1}), with_gpus(2))[0]
    at_rest = {item.name: (item.num_bytes, item.phases) for item in seat.host if "rest" in item.name}
    assert at_rest == {"Adam moments, at rest": (8 * M, PHASES)}


def test_the_plan_shows_the_memory_of_each_phase() -> None:
    plan = planned(rl(cluster={"trainers": 2, "offload": ["optimizer"]}))
    lines = {line.name: line for line in plan.lines if line.topic == "memory of trainer 0"}
    assert list(lines) == ["sampling", "log-probabilities", "update", "optimizer step", "checkpoint"]
    assert "Adam moments 7.6 MiB" in lines["optimizer step"].because
    assert "Adam moments" not in lines["update"].because
    assert lines["optimizer step"].value == "321.0 MiB"  # a process, weights, 2.5 gradients, moments


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (64 << 30, "whole"),
        (0, "whole"),  # just enough
        (-1, "optimizer"),
        (1 - (64 << 30), "optimizer"),  # not enough for anything
    ],
)
def test_sharding_that_is_left_to_the_plan(memory: int, expected: str) -> None:
    whole = sum(seat.host_bytes for seat in seats(sft(trainers=2, sharding="whole")))
    machine = Machine(8, 8, whole + memory if memory <= 0 else memory)
    assert sharding_of(sft(trainers=2), FACTS, machine).sharding == expected
    assert seats(sft(trainers=2), machine) == seats(sft(trainers=2, sharding=expected), machine)


def test_the_smallest_gpu_decides_about_sharding() -> None:
    config = sft(trainers=2)
    large, small = (replace(MACHINE, gpu_bytes=(1 << 30, second)) for second in (1 << 30, 23 * M))
    assert sharding_of(config, FACTS, large).sharding == "whole"
    assert sharding_of(config, FACTS, small).sharding == "optimizer"
    muon = config.optimization.model_copy(update={"optimizer": "muon"})
    assert sharding_of(config.model_copy(update={"optimization": muon}), FACTS, small).sharding == "whole"


def test_what_was_asked_for_is_kept_and_full_is_never_chosen() -> None:
    tiny = Machine(8, 8, 1)
    assert sharding_of(sft(trainers=2, sharding="full"), FACTS, tiny).sharding == "full"
    assert sharding_of(sft(trainers=2, sharding="whole"), FACTS, tiny).sharding == "whole"
    assert sharding_of(sft(trainers=1, sharding="optimizer"), FACTS, tiny).sharding == "whole"
    assert sharding_of(sft(trainers=2), None, tiny).sharding == "whole"
    sizes = named(seats(sft(trainers=2, sharding="full"))[1])
    assert (sizes["policy weights"], sizes["Adam moments"]) == (2 * M, 4 * M)


def test_a_ray_cluster_that_exists_is_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes have the memory and the GPUs for trainers and workers; the loop and the rewards stay here."""
    config = rl(model="m", cluster={"trainers": 4, "rollout_workers": 2, "backend": "ray"})
    small = Machine(2, 2, PROCESS_BYTES + 2 * REWARD_WORKER_BYTES + 40 * M, (1 << 30,))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "that is 6 GPUs" in refusal(config, small)
    monkeypatch.setenv("RAY_ADDRESS", "first:6379")
    assert [seat.name for seat in seats(config, small) if not seat.elsewhere] == ["controller", "2 reward workers"]
    assert accepted(config, small) == []
    assert sharding_of(config, FACTS, small).sharding == "whole"
    assert "need at least" in refusal(config, Machine(2, 2, PROCESS_BYTES))


def test_a_single_trainer_of_ray_is_not_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    names = list(by_name(rl(cluster={"rollout_workers": 1, "backend": "ray"})))
    assert names == ["controller", "trainer 0", "rollout worker 0", "2 reward workers"]


JUDGE = RewardFacts(
    label="learned",
    facts=replace(FACTS, num_parameters=3 * M, num_layers=3, hidden_size=8, intermediate_size=16, head_size=4),
    width=2,
    device="auto",
    tokens_per_microbatch=100,
)
WEIGHTS, PASSES = "weights of reward 'learned'", "passes of reward 'learned'"
PASS_BYTES = 100 * (8 * 8 + 2 * 4 + 3 * 16) * 2
"""A hundred of a step's 160 tokens at a time, one layer's numbers of each."""


def judged(**sections: Any) -> RlConfig:
    rollout = {"prompts_per_step": 4, "group_size": 2, "max_prompt_tokens": 10, "max_response_tokens": 10}
    return rl(**{"rewards": {"name": "model:rm", "label": "learned"}, "rollout": rollout, **sections})


def test_reward_models_are_in_the_process_of_the_command() -> None:
    for config in (judged(), judged(cluster={"trainers": 2})):
        without, seat = seats(config)[0], seats(config, MACHINE, JUDGE)[0]
        assert seat.holds[-1] == "reward model"
        added = {name: size for name, size in named(seat).items() if name not in named(without)}
        assert added == {WEIGHTS: 6 * M, PASSES: PASS_BYTES}
    two = judged(rewards=[{"name": "model:a", "label": "a"}, {"name": "model:b", "label": "b"}, "length"])
    assert seats_of(two, None, MACHINE)[0].holds[-1] == "2 reward models"


def test_reward_models_with_a_process_of_their_own() -> None:
    alone = judged(cluster={"trainers": 2, "rollout_workers": 1, "own_process": ["reward_model", "reference"]}, **KL)
    found = by_name(alone, MACHINE, JUDGE)
    names = ["controller", "trainer 0", "trainer 1", "reward model", "reference", "rollout worker 0"]
    assert list(found)[:-1] == names
    controller, own = found["controller"], found["reward model"]
    assert (controller.holds, own.holds) == (("the loop", "data"), ("reward model",))
    assert named(own) == {"Python and its libraries": PROCESS_BYTES, WEIGHTS: 6 * M, PASSES: PASS_BYTES}
    assert own.host_bytes == PROCESS_BYTES + 6 * M + PASS_BYTES
    assert WEIGHTS not in named(controller)
    assert alone.cluster.num_processes == 5
    assert {WEIGHTS, PASSES} <= {item.name for item in planned(alone, FACTS, JUDGE).memory}
    ranks = by_name(judged(cluster={"backend": "torchrun", "own_process": ["reward_model"]}), MACHINE, JUDGE)
    assert list(ranks)[:3] == ["rank 0: controller", "rank 0: trainer 0", "rank 1: reward model"]


def test_reward_models_that_rest_count_while_they_score() -> None:
    def needed(**sections: Any) -> list[int]:
        before, after = (seats(judged(**sections), MACHINE, *rewards)[0].host for rewards in ((), (JUDGE,)))
        return [bytes_in(phase, after) - bytes_in(phase, before) for phase in ("sampling", "scoring", "update")]

    assert needed() == needed(cluster={"trainers": 2}) == [6 * M, 6 * M + PASS_BYTES, 6 * M]
    assert needed(cluster={"offload": ["reward_model"]}) == [0, 6 * M + PASS_BYTES, 0]
    ahead = {"cluster": {"offload": ["reward_model"], "rollout_workers": 1}}
    assert needed(**ahead) == [0, 6 * M + PASS_BYTES, 0]
    assert needed(**ahead, max_staleness=1) == [6 * M + PASS_BYTES] * 3  # it scores while the policy learns


def test_reward_models_on_gpus() -> None:
    """With a process of their own they have the GPU of that process; in the controller, the one that they name."""
    machine = with_gpus(4)
    own = judged(model="m", cluster={"trainers": 2, "rollout_workers": 1, "own_process": ["reward_model"]})
    found = by_name(own, machine, JUDGE)
    assert [found[name].gpu for name in ("trainer 1", "reward model", "rollout worker 0")] == [1, 2, 3]
    assert {item.name for item in found["reward model"].device} == {WEIGHTS, PASSES}
    on_cpu = by_name(own, machine, replace(JUDGE, device="cpu"))["reward model"]
    assert on_cpu.device == ()
    assert WEIGHTS in named(on_cpu)
    inline = judged(model="m")
    first, second, _ = seats(inline, machine, replace(JUDGE, device="cuda:1"))
    assert (second.name, second.gpu, second.holds) == ("controller on GPU 1", 1, ("reward model",))
    assert named(second) == {WEIGHTS: 6 * M, PASSES: PASS_BYTES}
    assert WEIGHTS not in named(first)
    same = seats(inline, machine, JUDGE)
    assert (len(same), WEIGHTS in {item.name for item in same[0].device}) == (2, True)


def test_a_gpu_that_two_processes_share_has_to_have_room_for_both() -> None:
    config = judged(model="m", cluster={"trainers": 2})
    found = by_name(config, with_gpus(2), JUDGE)
    machine = replace(MACHINE, gpu_bytes=(found["trainer 0"].device_bytes + M, 80 << 30))
    (warning,) = seat_warnings(config, list(found.values()), machine)
    assert warning.startswith("controller and trainer 0 may need")


def test_memory_of_reward_models_is_unknown_with_that_of_the_policy() -> None:
    plan = planned(judged(cluster={"own_process": ["reward_model"]}), None, JUDGE)
    assert plan.memory == ()
    assert "host memory, at most" not in {line.name for line in plan.lines}
    assert WEIGHTS not in named(seats(judged(), MACHINE, replace(JUDGE, facts=None))[0])


def test_processes_of_conversations_are_counted() -> None:
    """4 prompts x 8 responses at most, or as many as may be open; tools that others serve need none."""
    rollout = {"prompts_per_step": 4, "group_size": 8}
    for conversation, name in (
        ({"environment": "a.py:B"}, "32 conversation processes"),
        ({"environment": "a.py:B", "max_open": 5}, "5 conversation processes"),
        ({"tools": "calculator", "max_open": 1}, "1 conversation process"),
        ({"agent": "a.py:b"}, "32 conversation processes"),
    ):
        seat = seats(rl(rollout=rollout, conversation=conversation))[-1]
        assert seat.name == name
        assert named(seat) == {"processes": int(name.split()[0]) * CONVERSATION_PROCESS_BYTES}
    for conversation in (None, {"tools": "python"}):
        assert "reward worker" in seats(rl(rollout=rollout, conversation=conversation))[-1].name


def test_kept_conversations_are_counted_where_they_are_kept() -> None:
    """2 layers x 2 x 5 numbers x 4 bytes a token; 12 responses of 30 tokens."""
    rollout = {"prompts_per_step": 3, "group_size": 4, "max_prompt_tokens": 10, "max_response_tokens": 20}
    talk = {"tools": "calculator"}
    for longest, num_bytes in ((20, 12 * 30 * 2 * 2 * 5 * 4), (1 << 21, 1 << 30)):
        config = rl(rollout={**rollout, "max_response_tokens": longest}, conversation=talk)
        assert named(seats(config)[0])["kept conversations"] == num_bytes
    for other in ({}, {"conversation": talk, "cluster": {"rollout_workers": 1}}):
        assert not any("kept conversations" in named(seat) for seat in seats(rl(rollout=rollout, **other)))
