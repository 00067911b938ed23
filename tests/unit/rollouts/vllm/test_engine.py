"""The vLLM engine with a worker that only speaks its protocol, and the real one as far as it gets without vLLM."""

import copy
import importlib.util
import json
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from burnish.config.schema_data import LoraConfig
from burnish.config.schema_rollout import VllmConfig
from burnish.errors import ConfigError, ModelError, RolloutError
from burnish.models.lora import Adapter, saved_adapter
from burnish.models.weights import Weights, named_tensors
from burnish.rollouts.engine import Sampling
from burnish.rollouts.stop import StopConditions
from burnish.rollouts.vllm import process as vllm_process
from burnish.rollouts.vllm.engine import VllmEngine, sampling_parameters
from burnish.rollouts.vllm.process import SCRIPT, EngineProcess, has_vllm, worker_environment
from burnish.types import FinishReason, RolloutRequest

FAKE = Path(__file__).with_name("fake_worker.py")
REQUESTS = [RolloutRequest.of("data/7", 4, (5, 9, 2), (0, 1)), RolloutRequest.of("data/1", 2, (8,), (3,))]
ONE = [RolloutRequest.of("data/7", 4, (5, 9, 2), (0,))]
SAMPLING = Sampling(6, temperature=0.9)

Make = Callable[..., VllmEngine]


@pytest.fixture
def make(llama: Any, tokenizer: Any, tmp_path: Path) -> Iterator[Make]:
    """Engines on the fake worker, closed at the end; keyword arguments are those of VllmConfig, `fake` what it does."""
    with ExitStack() as stack:

        def build(model: Any = llama, script: Path = FAKE, fake: Any = None, rests: bool = False, **given: Any) -> Any:
            engine = VllmEngine(
                model,
                tokenizer=tokenizer,
                eos_token_ids=[1],
                pad_token_id=0,
                context_length=32,
                max_batch_rows=4,
                settings=VllmConfig(**{"options": {"fake": fake} if fake else {}, **given}),
                log=tmp_path / "run" / "vllm.log",
                rests=rests,
                script=script,
            )
            return stack.enter_context(engine)

        yield build


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "run" / "vllm.log").read_text(encoding="utf-8")


def checksums(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    return {name: zlib.crc32(tensor.detach().numpy().tobytes()) for name, tensor in tensors}


def kill(engine: VllmEngine) -> None:
    assert engine._worker.process is not None
    os.kill(engine._worker.process.pid, signal.SIGKILL)


def pushed(tmp_path: Path) -> list[list[Any]]:
    """[name, dtype, shape, checksum] of each tensor that the worker got, in order."""
    return [json.loads(line) for line in log_of(tmp_path).splitlines() if line.startswith("[") and "float" in line]


def test_rollouts_come_in_order_with_text_and_version(make: Make, tokenizer: Any) -> None:
    rollouts = make().generate(REQUESTS, SAMPLING, seed=0, step=1)
    order = [("data/7", 4, 0), ("data/7", 4, 1), ("data/1", 2, 3)]
    assert [(r.prompt_id, r.group_id, r.sample_index) for r in rollouts] == order
    assert {len(r.response_tokens) for r in rollouts} == {6}
    assert {r.finish_reason for r in rollouts} == {FinishReason.LENGTH}
    assert {r.policy_version for r in rollouts} == {0}
    assert rollouts[0].response == tokenizer.decode(list(rollouts[0].response_tokens))
    assert rollouts[0].response_tokens != rollouts[1].response_tokens


def test_the_worker_gets_no_weights_on_disk_and_all_of_them_by_memory(
    make: Make, llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_process, "CHUNK_BYTES", 5000)
    make().generate(ONE, SAMPLING, seed=0, step=0)
    assert "config.json" in log_of(tmp_path)
    assert "safetensors" not in log_of(tmp_path)
    assert log_of(tmp_path).count("chunk\n") > 5
    sums = checksums(llama.state_dict().items())
    expected = [[name, "float32", [*tensor.shape], sums[name]] for name, tensor in llama.state_dict().items()]
    assert pushed(tmp_path) == expected


def test_bfloat16_weights_travel_bit_for_bit(make: Make, llama: Any, tmp_path: Path) -> None:
    make(llama.to(torch.bfloat16)).generate(ONE, SAMPLING, seed=0, step=0)
    sums = checksums((name, tensor.view(torch.int16)) for name, tensor in named_tensors(llama))
    assert [(dtype, crc) for _, dtype, _, crc in pushed(tmp_path)] == [("bfloat16", crc) for crc in sums.values()]


def test_sync_pushes_the_new_weights_and_their_version(make: Make, llama: Any) -> None:
    engine = make()
    first = engine.generate(ONE, SAMPLING, seed=0, step=0)
    with torch.no_grad():
        llama.model.embed_tokens.weight[0, 0] = 0.25
    engine.sync(Weights.of(llama, 3))
    second = engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert first[0].rollout_logprobs != second[0].rollout_logprobs == (-0.25,) * 6
    assert second[0].policy_version == 3


def test_a_worker_that_dies_is_started_again_with_the_same_weights(make: Make, llama: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        llama.model.embed_tokens.weight[0, 0] = 0.5
    engine = make(fake={"does": "die", "marker": str(tmp_path / "died")})
    engine.sync(Weights.of(llama, 2))
    (rollout,) = engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert (rollout.policy_version, rollout.rollout_logprobs[0]) == (2, -0.5)
    assert engine.take_metrics()["rollout/engine_restarts"].result() == 1
    assert engine.take_metrics()["rollout/engine_restarts"].result() == 0
    assert "the worker ended (killed by SIGKILL) during generate; starting another" in log_of(tmp_path)


def test_a_worker_killed_between_calls_is_replaced_by_the_next_one(make: Make, llama: Any) -> None:
    engine = make()
    first = engine.generate(REQUESTS, SAMPLING, seed=0, step=0)
    kill(engine)
    engine.sync(Weights.of(llama, 1))
    second = engine.generate(REQUESTS, SAMPLING, seed=0, step=0)
    assert [r.response_tokens for r in first] == [r.response_tokens for r in second]
    assert {r.policy_version for r in second} == {1}
    assert engine.take_metrics()["rollout/engine_restarts"].result() == 1


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("die", "ended \\(killed by SIGKILL\\)\n    .*\n(.*\n)*    out of luck"),
        ("hang", "did not answer 'generate' within 0.5 seconds"),
        ("garbage", "it sent an answer that is not a message"),
        ("fail", "failed with ValueError: no memory left"),
    ],
)
def test_a_worker_that_is_lost_twice_is_an_error(make: Make, tmp_path: Path, does: str, message: str) -> None:
    engine = make(fake={"does": does}, call_timeout_seconds=0.5 if does == "hang" else 30.0)
    with pytest.raises(RolloutError, match=message) as caught:
        engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert "lost twice" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_worker_with_other_weights_refuses(make: Make) -> None:
    engine = make(fake={"does": "refuse"})
    with pytest.raises(RolloutError, match="refuses 'generate': another version"):
        engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert engine.take_metrics()["rollout/engine_restarts"].result() == 0


def test_a_restart_does_not_take_weights_of_another_version(make: Make, llama: Any) -> None:
    engine = make()
    engine.sync(Weights(4, Mock(side_effect=RolloutError("the policy is at version 5 by now")), llama))
    with pytest.raises(RolloutError, match="at version 5"):
        engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert engine._worker.process is None


def test_weights_of_another_process_outlast_it(make: Make, llama: Any) -> None:
    """A rollout worker closes what it got as soon as `sync` returns; vLLM starts, and starts again, later."""
    there = {name: tensor.clone().fill_(0.5) for name, tensor in named_tensors(llama)}
    engine = make()
    engine.sync(Weights(3, lambda: iter(there.items())))
    there.clear()
    for _ in range(2):
        (rollout,) = engine.generate(ONE, SAMPLING, seed=0, step=0)
        assert (rollout.policy_version, rollout.rollout_logprobs[0]) == (3, -0.5)
        kill(engine)


@torch.no_grad()
def test_a_model_with_adapters_takes_those_of_another_process(make: Make, llama: Any) -> None:
    there = copy.deepcopy(llama)
    Adapter(llama, LoraConfig(rank=2))
    engine = make()
    for parameter in Adapter(there, LoraConfig(rank=2)).parameters().values():
        parameter.normal_()
    engine.sync(Weights(3, lambda: iter(saved_adapter(there).items())))
    for (_, ours), (_, theirs) in zip(named_tensors(llama), named_tensors(there), strict=True):
        assert torch.equal(ours, theirs)
    lacking = dict(list(saved_adapter(there).items())[1:])
    with pytest.raises(ModelError, match=r"the weights lack base_model\.model\."):
        engine.sync(Weights(4, lambda: iter(lacking.items())))


@pytest.mark.slow
@torch.no_grad()
def test_only_what_has_changed_is_pushed_if_that_is_little(make: Make, llama: Any, fake_vllm: Path) -> None:
    """With all weights that vLLM joins with those that changed, and to the last bit."""
    engine = make(script=SCRIPT)
    layer = llama.model.layers[1]

    def pushed(*changed: torch.Tensor) -> float:
        for number, weight in enumerate(changed):
            weight.view(torch.int32)[0] += 1 + number  # the smallest change of a float
        engine.sync(Weights.of(llama, engine.version + 1))
        engine.generate(ONE, SAMPLING, seed=0, step=0)
        assert json.loads(Path(f"{fake_vllm}.weights").read_text()) == checksums(llama.state_dict().items())
        return engine.take_metrics()["rollout/pushed_megabytes"].result() * 1e6

    size = {name: part.numel() * 4 for name, part in llama.state_dict().items()}
    attention = sum(size[name] for name in size if "layers.1.self_attn" in name)
    assert pushed() == sum(size.values())
    assert pushed() == 0
    assert pushed(layer.self_attn.v_proj.weight, llama.model.norm.weight) == attention + size["model.norm.weight"]
    assert pushed(llama.lm_head.weight) == size["lm_head.weight"]
    kill(engine)
    assert pushed(llama.lm_head.weight) == sum(size.values())
    assert pushed(llama.lm_head.weight) == size["lm_head.weight"]
    assert pushed(*llama.parameters()) == sum(size.values())
    assert pushed(llama.lm_head.weight) == sum(size.values())  # digests are not worth their time any more


@pytest.mark.slow
def test_each_gpu_of_an_engine_gets_the_weights(make: Make, llama: Any, fake_vllm: Path) -> None:
    engine = make(script=SCRIPT, options={"tensor_parallel_size": 2})
    engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert fake_vllm.read_text().splitlines() == ["build on 2", "push", "generate"]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("vllm_has", ["adapters", "none", "partial"])
def test_of_a_lora_policy_only_the_adapter_is_pushed_where_vllm_agrees(
    make: Make, llama: Any, tmp_path: Path, fake_vllm: Path, monkeypatch: pytest.MonkeyPatch, vllm_has: str
) -> None:
    monkeypatch.setenv("FAKE_VLLM_LORA", vllm_has)
    adapter = Adapter(llama, LoraConfig(rank=4, alpha=12.0))
    engine = make(script=SCRIPT)
    engine.generate(ONE, SAMPLING, seed=0, step=0)
    start = fake_vllm.read_text().splitlines()
    trial = ["build enable_lora", *("push", "score") * 2, "adapter", "score"]
    merging = ["build", "push"]
    expected = {"adapters": [*trial, "push", "adapter"], "none": merging, "partial": [*trial, *merging]}
    assert start[:-1] == expected[vllm_has]
    engine.take_metrics()
    for version in (1, 2):
        for parameter in adapter.parameters().values():
            parameter.normal_()
        engine.sync(Weights.of(llama, version))
        assert engine.generate(ONE, SAMPLING, seed=0, step=0)[0].policy_version == version
    megabytes = engine.take_metrics()["rollout/pushed_megabytes"].result()
    if vllm_has == "adapters":
        assert fake_vllm.read_text().splitlines()[len(start) :] == ["adapter", "generate with adapter"] * 2
        assert megabytes * 1e6 == 2 * sum(parameter.nbytes for parameter in adapter.parameters().values())
        return
    assert fake_vllm.read_text().splitlines()[len(start) :] == ["push", "generate"] * 2
    reason = {"none": "does not support LoRA", "partial": "in a trial its log-probabilities were"}[vllm_has]
    assert "burnish: adapters are merged into the weights" in log_of(tmp_path)
    assert reason in log_of(tmp_path)
    assert json.loads(Path(f"{fake_vllm}.weights").read_text()) == checksums(named_tensors(llama))


@pytest.mark.parametrize(
    ("does", "tokens", "message"),
    [("nan", 1, "log-probability nan at response token 0"), ("short", 6, "returned 1 tokens and 1 log-prob.*up to 6")],
)
def test_samples_that_cannot_be_are_refused(make: Make, does: str, tokens: int, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        make(fake={"does": does}).generate(ONE, Sampling(tokens), seed=0, step=0)


def test_arguments_that_vllm_does_not_take_end_the_start(make: Make) -> None:
    with pytest.raises(RolloutError, match=r"cannot start in .*TypeError: unexpected keyword") as caught:
        make(fake={"does": "no build"}).generate(ONE, SAMPLING, seed=0, step=0)
    assert "rollout.vllm" in str(caught.value)


def test_an_interpreter_that_is_not_there(make: Make) -> None:
    with pytest.raises(RolloutError, match="cannot start no/such/python"):
        make(python="no/such/python").generate(ONE, SAMPLING, seed=0, step=0)
    with pytest.raises(OSError, match="no/such/python"):
        has_vllm("no/such/python")


@pytest.mark.slow
def test_a_worker_sleeps_between_calls_and_wakes_in_two_parts(make: Make, llama: Any, fake_vllm: Path) -> None:
    """With the real worker, on a vLLM that refuses any other order."""
    engine = make(script=SCRIPT, rests=True)
    engine.rest()  # nobody to send to sleep yet
    engine.generate(ONE, SAMPLING, seed=0, step=0)
    engine.generate(ONE, SAMPLING, seed=0, step=0)
    engine.rest()
    engine.rest()
    engine.sync(Weights.of(llama, 1))
    assert engine.generate(ONE, SAMPLING, seed=0, step=1)[0].policy_version == 1
    engine.rest()
    engine.generate(ONE, SAMPLING, seed=0, step=2)  # an evaluation, say
    engine.rest()
    engine.sync(Weights.of(llama, 2))
    engine.rest()  # nothing was sampled
    calls = [
        *("build enable_sleep_mode", "push", "generate", "generate", "sleep 1"),
        *("wake weights", "push", "wake kv_cache", "generate", "sleep 1"),
        *("wake weights kv_cache", "generate", "sleep 1"),
        *("wake weights", "push", "wake kv_cache", "sleep 1"),
    ]
    assert fake_vllm.read_text().splitlines() == calls
    spent = engine.take_metrics()
    assert spent["time/engine_sleep_seconds"].result() > 0
    assert spent["rollout/engine_restarts"].result() == 0


@pytest.mark.slow
def test_an_engine_that_does_not_rest_stays_awake(make: Make, fake_vllm: Path) -> None:
    engine = make(script=SCRIPT)
    engine.generate(ONE, SAMPLING, seed=0, step=0)
    engine.rest()
    assert fake_vllm.read_text().splitlines() == ["build", "push", "generate"]
    assert "time/engine_sleep_seconds" not in engine.take_metrics()


def test_a_vllm_that_cannot_sleep_is_refused(make: Make, fake_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VLLM_PLATFORM", "cpu")
    engine = make(script=SCRIPT, rests=True)
    told = r"rollout_engine, but vLLM 0\.0\.fake of .* cannot sleep.*on a CPU"
    with pytest.raises(ConfigError, match=told) as caught:
        engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert "remove rollout_engine from cluster.offload" in str(caught.value)
    assert engine._worker.process is None


@pytest.mark.slow
def test_the_real_worker_refuses_what_its_sleep_does_not_allow(make: Make, llama: Any, fake_vllm: Path) -> None:
    engine = make(script=SCRIPT, rests=True)
    engine.generate(ONE, SAMPLING, seed=0, step=0)
    engine.rest()
    engine._worker.asleep = ()  # as if it had forgotten
    with pytest.raises(RolloutError, match="refuses 'generate': weights and kv_cache are asleep"):
        engine.generate(ONE, SAMPLING, seed=0, step=0)
    with pytest.raises(RolloutError, match="refuses 'chunk': the weights are asleep"):
        engine.sync(Weights.of(llama, 1))


@pytest.mark.parametrize("during", ["sleep", "wake"])
@pytest.mark.parametrize(("does", "message"), [("die", "ended (killed by SIGKILL)"), ("hang", "within 0.5 seconds"),
                                               ("fail", "failed with ValueError")])  # fmt: skip
def test_a_worker_lost_over_its_sleep_is_replaced_by_an_awake_one(
    make: Make, llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str, does: str, message: str
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "sleeps")
    engine = make(fake={"does": does, "during": during, "marker": str(tmp_path / "lost")}, rests=True)
    patient = engine._worker.settings
    first = engine.generate(ONE, SAMPLING, seed=0, step=0)
    if during == "wake":
        engine.rest()
    if does == "hang":
        engine._worker.settings = patient.model_copy(update={"start_timeout_seconds": 0.5})
    if during == "wake":
        engine.sync(Weights.of(llama, 0))
    else:
        engine.rest()
    engine._worker.settings = patient
    assert engine.generate(ONE, SAMPLING, seed=0, step=0) == first
    assert engine.take_metrics()["rollout/engine_restarts"].result() == 1
    assert message in log_of(tmp_path)
    engine.rest()
    assert engine._worker.asleep == ("weights", "kv_cache")


def test_closing_ends_the_worker(make: Make, gone: Callable[..., bool]) -> None:
    engine = make()
    engine.generate(ONE, SAMPLING, seed=0, step=0)
    assert engine._worker.process is not None
    pid = engine._worker.process.pid
    engine.close()
    engine.close()
    assert gone(pid)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed beside burnish")
def test_the_real_worker_says_when_there_is_no_vllm(make: Make) -> None:
    assert not has_vllm(sys.executable)
    with pytest.raises(RolloutError, match="No module named 'vllm'"):
        make(script=SCRIPT).generate(ONE, SAMPLING, seed=0, step=0)


def test_the_real_worker_leaves_when_its_engine_does(tmp_path: Path) -> None:
    worker = EngineProcess(sys.executable, tmp_path / "log")
    worker._socket.close()
    assert worker._process.status(20.0) == 0
    worker.kill()


def test_another_interpreter_does_not_get_our_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert "PYTHONPATH" not in worker_environment("/other/python")
    assert worker_environment(sys.executable)["PYTHONPATH"] == "somewhere"
    assert worker_environment("/other/python")["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_sampling_in_the_words_of_vllm(tokenizer: Any) -> None:
    drawn = Sampling(6, temperature=0.9, top_k=5, min_p=0.1, stop_token_ids=(7,))
    assert sampling_parameters(drawn, StopConditions.of(drawn, [1], tokenizer)) == {
        "stop_token_ids": [1, 7],
        "ignore_eos": True,
        "logprobs": 0,
        "skip_special_tokens": False,
        "detokenize": False,
        "temperature": 0.9,
        "top_k": 5,
        "top_p": 1.0,
        "min_p": 0.1,
    }
    greedy = Sampling(6, temperature=0.9, stop=("!!",), greedy=True, ignore_eos=True)
    asked = sampling_parameters(greedy, StopConditions.of(greedy, [1], tokenizer))
    assert asked["temperature"] == 0.0
    assert asked["extra_args"] == {"burnish_temperature": 0.9}
    assert (asked["stop"], asked["include_stop_str_in_output"], asked["stop_token_ids"]) == (["!!"], True, [])


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(4, top_p=0.9, min_p=0.1), "vLLM applies min_p first"),
        (Sampling(4, temperature=0.001), "vLLM samples at 0.01 or above"),
        (Sampling(4, temperature=-1.0), "temperature"),
        (Sampling(31, ignore_eos=True), "room for 29 more"),
    ],
)
def test_what_vllm_would_read_differently_is_refused(make: Make, sampling: Sampling, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        make().generate(ONE, sampling, seed=0, step=0)


def test_a_response_is_cut_at_the_token_that_completes_a_stop_text(make: Make, tokenizer: Any) -> None:
    engine = make()
    (whole,) = engine.generate(ONE, SAMPLING, seed=0, step=0)
    stop = whole.response[2:4]
    (cut,) = engine.generate(ONE, Sampling(6, temperature=0.9, stop=(stop,)), seed=0, step=0)
    assert cut.response == whole.response[: whole.response.index(stop) + 2]
    assert cut.finish_reason is FinishReason.STOP
    assert len(cut.rollout_logprobs) == len(cut.response_tokens)
