"""Plans for machines that are not here: descriptions, memory and time by hand, and the smallest change that fits."""

from pathlib import Path
from typing import Any

import pytest

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.planning.fitting import COLUMNS, Fitting, kind_of, memory_tables
from burnish.planning.machines import USABLE, Machine, Speed, described_machine
from burnish.planning.memory import PHASES
from burnish.planning.model_facts import ModelFacts, facts_by_name, known, known_models
from burnish.planning.processes import PROCESS_BYTES, seats_of
from burnish.planning.rl import RlTimes
from burnish.planning.shortages import shortages
from burnish.planning.timing import forward_operations

GIB = 2**30


def facts(name: str) -> ModelFacts:
    found = facts_by_name(name)
    assert found is not None
    return found


def rl(*words: str, **sections: Any) -> RlConfig:
    data = {
        "model": {"path": "Qwen/Qwen2.5-0.5B", "dtype": "bfloat16"},
        "data": {"train": "a"},
        "rewards": "math",
        "algorithm": {"preset": "dapo"},
        "rollout": {"prompts_per_step": 8, "group_size": 8, "max_prompt_tokens": 512, "max_response_tokens": 512},
        **sections,
    }
    return load_run_data(data, words).config


def fit_of(name: str, on: str, **sections: Any) -> tuple[str, ...] | None:
    """Words of the smallest change; () if it fits as it is, None if nothing is found."""
    fit = Fitting(lambda words: rl(*words, **sections), facts(name), described_machine(on)).search(rl(**sections))
    return () if fit.fits else fit.words or None


# Sizes: (hidden, layers, query width, key width, feed-forward, vocabulary, matrices of embeddings).
QWEN = {
    "Qwen/Qwen2.5-0.5B": (896, 24, 14 * 64, 2 * 64, 4864, 151_936, 1),
    "Qwen/Qwen2.5-1.5B": (1536, 28, 12 * 128, 2 * 128, 8960, 151_936, 1),
    "Qwen/Qwen2.5-7B": (3584, 28, 28 * 128, 4 * 128, 18_944, 152_064, 2),
    "Qwen/Qwen2.5-32B": (5120, 64, 40 * 128, 8 * 128, 27_648, 152_064, 2),
}
PUBLISHED = {"0.5B": 494_032_768, "1.5B": 1_543_714_304, "7B": 7_615_616_512, "32B": 32_763_876_352}


@pytest.mark.parametrize("name", QWEN)
def test_parameters_are_the_sum_of_all_matrices_biases_and_norms(name: str) -> None:
    h, layers, q, k, f, v, matrices = QWEN[name]
    layer = (h * q + q) + 2 * (h * k + k) + q * h + 3 * h * f + 2 * h
    assert facts(name).num_parameters == layers * layer + matrices * v * h + h == PUBLISHED[name.rpartition("-")[2]]
    assert facts(name).body == layers * layer


def test_every_known_model_has_its_published_number_of_parameters() -> None:
    entries = known()["models"]
    assert len(entries) >= 40
    counted = {entry["names"][0]: facts(entry["names"][0]).num_parameters for entry in entries}
    assert counted == {entry["names"][0]: entry["parameters"] for entry in entries}
    assert len(known_models()) == sum(len(entry["names"]) for entry in entries)  # no name twice


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-30B-A3B", 3.35), ("mistralai/Mixtral-8x7B-v0.1", 12.88), ("openai/gpt-oss-20b", 3.61)],
)
def test_of_experts_those_work_that_a_token_chooses(name: str, billions: float) -> None:
    """The published numbers of active parameters, which count embedding and head."""
    found = facts(name)
    head = found.vocabulary_size * found.hidden_size
    assert pytest.approx(1e9 * billions, rel=0.01) in (found.body + head, found.body + 2 * head)


def test_names_are_known_whatever_their_case_and_others_are_not() -> None:
    assert facts_by_name("qwen/qwen2.5-7b-instruct") == facts("Qwen/Qwen2.5-7B")
    assert facts_by_name("somebody/else") is None


@pytest.mark.parametrize(
    ("text", "nodes", "cards", "gigabytes"),
    [
        ("8xH100-80GB", 1, 8, 80),
        ("2x8xH100-80GB", 2, 16, 80),
        ("2x24GB", 1, 2, 24),
        ("h100", 1, 1, 80),
        ("4xA100-40GB", 1, 4, 40),
    ],
)
def test_machines_in_short(text: str, nodes: int, cards: int, gigabytes: int) -> None:
    machine = described_machine(text)
    assert (machine.nodes, len(machine.gpu_bytes)) == (nodes, cards)
    assert set(machine.gpu_bytes) == {round(USABLE * gigabytes * GIB)}
    assert (machine.speed is None) == (text == "2x24GB")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8", "describes no machine"),
        ("8xH100-80GB!", "describes no machine"),
        ("8xH1000", "'H1000' is not known"),
        ("0x24GB", "from 1 to"),
        ("3x0GB", "'0GB' is not known"),
        ("2x2x2x24GB", "'2x24GB' is not known"),
        ("999999999xH100", "from 1 to"),
        ("nowhere.yaml", "--on: the file nowhere.yaml does not exist"),
    ],
)
def test_what_describes_no_machine(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        described_machine(text)


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("nodes: 2\ncards: 4\ncard: A100-80GB\nmemory_gb: 512\ntraining_share: 0.5\nprice: 1.5\n")
    machine = described_machine(str(file))
    assert (machine.nodes, len(machine.gpu_bytes), machine.memory_bytes, machine.price) == (2, 8, 512 * GIB, 1.5)
    assert machine.speed is not None
    assert machine.speed.operations == pytest.approx(0.5 * 312e12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("card: H1000", "is not known"),
        ("cards: 2", "its cards have no memory"),
        ("crads: 2", "machine.yaml:1: crads is not a known key"),
        ("cards: two\ncard: L4", "machine.yaml:1: cards is 'two'"),
        ("card: L4\ntraining_share: 35", "training_share is 35"),
        ("card: L4\ntflops: -1", "tflops is -1"),
        ("card: 80", "card is 80"),
        ("nodes: 2\ncards: 0", "without cards"),
        ("- 8", "describes no machine"),
        ("", "describes no machine"),
    ],
)
def test_what_a_file_of_a_machine_may_not_say(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        described_machine(str(file))


@pytest.mark.parametrize("name", QWEN)
@pytest.mark.parametrize(("on", "trainers"), [("1xH100-80GB", 1), ("8xH100-80GB", 8), ("8x8xH100-80GB", 64)])
def test_the_table_of_a_trainer_by_hand(name: str, on: str, trainers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 weights, everything else that lasts sliced over the trainers."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = {"trainers": trainers, "sharding": "optimizer", "backend": "ray"} if trainers > 1 else {}
    config, machine = rl(cluster=cluster), described_machine(on)
    tables = memory_tables(seats_of(config, facts(name), machine), machine)
    process = f"trainer {trainers - 1}" if trainers > 1 else "controller"
    last = next(table for table in tables if table.on == "a card" and process in table.processes[-1])
    rows = {row.kind: dict(zip(COLUMNS, row.num_bytes, strict=True)) for row in last.rows}
    p = PUBLISHED[name.rpartition("-")[2]]
    h, layers, _, k, f, v, _ = QWEN[name]
    assert rows["weights"]["rollout"] == 2 * p
    assert rows["masters"]["checkpoint"] == round(4 * p / trainers)
    assert rows["Adam"]["update"] == round(8 * p / trainers)
    whole = 4 * p if trainers == 1 else round(4 * p * (1 + 1 / trainers))
    exchanged = 0 if trainers == 1 else 16 * 2**22
    assert rows["gradients"] == {"rollout": 0, "log-probs": 0, "update": whole + exchanged, "checkpoint": 0}
    tokens = 1024 if trainers == 64 else 2048  # the budget, or the one response that a lane has
    assert rows["activations"]["update"] == tokens * layers * (8 * h + 2 * k + 3 * f) * 2
    responses = 64 // trainers
    cache, drawing = responses * 1024 * 2 * layers * k * 2, 32 * responses * v
    held = cache if cache + drawing <= GIB else 0  # with what decoding steps need besides it
    assert rows["KV cache"] == {"rollout": cache, "log-probs": held, "update": held, "checkpoint": held}
    assert rows["logits"]["checkpoint"] == (drawing if held else 0)
    together = rows["weights"]["update"] + rows["masters"]["update"] + rows["Adam"]["update"] + whole + exchanged
    assert last.peak[2] == together + held + rows["activations"]["update"] + rows["logits"]["update"]
    assert last.there == round(USABLE * 80 * GIB)
    assert (max(last.peak) <= last.there) == (p < 4e9 or (p < 8e9 and trainers > 1))


def test_columns_have_every_phase_and_lines_their_kind() -> None:
    assert {phase for phases in COLUMNS.values() for phase in phases} == set(PHASES)
    algorithm, cluster = {"preset": "ppo", "kl_in": "loss", "kl_coef": 0.1}, {"trainers": 2, "rollout_workers": 1}
    seats = seats_of(rl(algorithm=algorithm, cluster=cluster), facts("Qwen/Qwen2.5-0.5B"), described_machine("4x80GB"))
    kinds = {item.name: kind_of(item) for seat in seats for item in seat.device}
    assert "other" not in kinds.values()
    assert (kinds["critic masters and moments"], kinds["master weights"]) == ("Adam", "masters")
    assert (kinds["reference weights"], kinds["critic gradients"]) == ("weights", "gradients")


def test_what_is_lacking_is_said_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    small = facts("Qwen/Qwen2.5-0.5B")

    def lacking(on: str, *words: str, **cluster: Any) -> list[str]:
        config, machine = rl(*words, cluster=cluster), described_machine(on)
        return [str(one) for one in shortages(config, seats_of(config, small, machine), machine)]

    file = tmp_path / "cpu.yaml"
    file.write_text("cards: 0\ncores: 64\n")
    assert lacking(str(file), "model.device=cuda") == ["cards: 1 are needed, and there are 0"]
    judged = rl("model.device=cuda:5", "rewards=[{name: model:m, options: {device: cuda:2}}]")
    said = [str(one).partition(":")[2] for one in shortages(judged, (), described_machine("2x24GB"))]
    assert said == ["5): 6 are needed, and there are 2", "2): 3 are needed, and there are 2"]
    assert lacking("2x24GB", trainers=4) == ["cards: 4 are needed, and there are 2"]
    nodes = "cards of one node (cluster.backend): 4 are needed, and there are 2"
    assert lacking("2x2x24GB", trainers=4, backend="processes") == [nodes]
    assert lacking("2x2x24GB", trainers=4, backend="ray") == []
    assert lacking("1x8GB") == ["card 0 (controller): needs 11.94 GiB of 7.60 GiB"]


def test_the_memory_of_nodes_is_compared_where_it_is_stated(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("cards: 2\ncard: H100\nmemory_gb: 0.5\n")
    config, machine = rl(cluster={"rollout_workers": 1}), described_machine(str(file))
    (short,) = shortages(config, seats_of(config, facts("Qwen/Qwen2.5-0.5B"), machine), machine)
    assert short.place == "memory of node 0"
    assert short.needed > 2 * PROCESS_BYTES


SLICED_OVER_FOUR = "cluster.trainers=4 cluster.lanes=4 cluster.sharding=optimizer"


@pytest.mark.parametrize(
    ("on", "sections", "words"),
    [
        ("1x24GB", {}, ""),
        ("1x24GB", {"optimization": {"tokens_per_microbatch": 32_768}}, "optimization.tokens_per_microbatch=8192"),
        ("1x11GB", {"optimization": {"tokens_per_microbatch": 512}}, "model.gradient_checkpointing=true"),
        ("4x8GB", {}, f"optimization.tokens_per_microbatch=1024 {SLICED_OVER_FOUR}"),
        ("1x5GB", {}, "model.lora.rank=16"),
        ("2x12GB", {"cluster": {"trainers": 4}}, "cluster.trainers=2 cluster.lanes=4"),
        ("1x1GB", {}, None),
    ],
)
def test_the_smallest_change_that_fits(on: str, sections: dict[str, Any], words: str | None) -> None:
    assert fit_of("Qwen/Qwen2.5-0.5B", on, **sections) == (None if words is None else tuple(words.split()))


def test_adapters_on_few_bits_fit_where_all_weights_do_not() -> None:
    """The reference is then the policy itself, so that it cannot rest as the one of all weights could."""
    sections = {"algorithm": {"preset": "grpo", "kl_coef": 0.1}, "optimization": {"tokens_per_microbatch": 16_384}}
    words = fit_of("Qwen/Qwen2.5-7B", "2x24GB", **sections)
    assert words is not None
    assert {"model.lora.rank=16", "model.quantization=nf4", "optimization.tokens_per_microbatch=2048"} <= set(words)
    assert not any("reference" in word for word in words)


SPEED = Speed(
    operations=1e12, decoding_operations=1e12, decoding_bytes=1e9, source="test", link_bytes=1e9, network_bytes=1e8
)
TINY = ModelFacts(
    num_parameters=1_200, num_layers=2, hidden_size=10, intermediate_size=20, num_attention_heads=2,
    num_key_value_heads=1, head_size=5, vocabulary_size=20, context_tokens=None,
)  # fmt: skip


def machine(cards: int = 1, nodes: int = 1) -> Machine:
    return Machine(8, 8, None, (80 * GIB,) * cards, nodes, "x", is_here=False, speed=SPEED)


def seconds_of(times: RlTimes) -> dict[str, float]:
    return {phase.phase: phase.seconds for phase in times.phases()}


def test_the_operations_of_a_forward_pass() -> None:
    # body 1,200 - 20 x 10 = 1,000; head 200 for each scored token; 4 x 2 layers x 10 for each token seen
    assert forward_operations(TINY, tokens=7, scored=3, seen=70) == 2 * (7 * 1000 + 3 * 200) + 80 * 70


def test_the_phases_of_a_step_by_hand() -> None:
    config = rl(rollout={"prompts_per_step": 2, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 8})
    times = RlTimes(config, TINY, machine(), SPEED, RlTimes.assumed(config, 4, 4))
    found = seconds_of(times)
    # Eight responses of four tokens; the longest is taken to have eight: eight steps of four rows on average.
    read = (1_000 + 200 + 2 * 2 * 1 * 5 * 4 * 6) * 2
    prefill = forward_operations(TINY, 8, 0, 8 * 4) / 1e12
    assert found["rollout"] == pytest.approx(prefill + 8 * read / 1e9)
    # Two prompts once, and all responses.
    assert found["update"] == pytest.approx(3 * forward_operations(TINY, 8 + 32, 32, 40 * 4) / 1e12)
    assert found["optimizer"] == pytest.approx(28 * 1_200 / 1e9)
    assert set(found) == {"rollout", "update", "optimizer"}
    time = times.of_run(3600, price=2.0)
    assert time.tokens_per_second == pytest.approx(64 / sum(found.values()))
    assert time.cost == pytest.approx(2 * sum(found.values()))


@pytest.mark.parametrize(
    ("sections", "passes"),
    [
        ({}, 3),
        ({"model": {"path": "m", "gradient_checkpointing": True}}, 4),
        ({"model": {"path": "m", "lora": {"rank": 1}}}, 2),
        ({"optimization": {"epochs": 2}}, 6),
        ({"cluster": {"trainers": 2}}, 1.5),
    ],
)
def test_how_many_passes_an_update_takes(sections: dict[str, Any], passes: float) -> None:
    config = rl(**sections)
    found = seconds_of(RlTimes(config, TINY, machine(2), SPEED, RlTimes.assumed(config, 4, 4)))
    tokens = 8 * 4 + 64 * 4
    assert found["update"] == pytest.approx(passes * forward_operations(TINY, tokens, 256, tokens * 4) / 1e12)
    assert ("log-probs" in found) == ("optimization" in sections)  # the old ones, where several updates follow


def test_exchanges_go_over_the_network_between_nodes() -> None:
    config = rl(cluster={"trainers": 4, "backend": "ray"})
    assumed = RlTimes.assumed(config, 4, 4)
    near, far = (seconds_of(RlTimes(config, TINY, machine(4, nodes), SPEED, assumed)) for nodes in (1, 2))
    assert near["exchange"] == pytest.approx(8 * 0.75 * 1_200 / 1e9)
    assert far["exchange"] == pytest.approx(10 * near["exchange"])


def test_sampling_aside_counts_where_it_takes_longer() -> None:
    config = rl(cluster={"rollout_workers": 1}, max_staleness=1)
    times = RlTimes(config, TINY, machine(2), SPEED, RlTimes.assumed(config, 4, 400))
    seconds = seconds_of(times)
    assert times.of_run(1).step_seconds == pytest.approx(seconds["push"] + seconds["rollout"])
