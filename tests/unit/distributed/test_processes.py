"""Roles in another process: what goes there and back, errors, deadlines, and the end of either side."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_in_roles import broken, roles, slow
from watching import runs, wait_for

from burnish.distributed import fork_server as fork_server_module
from burnish.distributed import peers, processes, server
from burnish.distributed.channel import pickled
from burnish.distributed.fork_server import ForkServer
from burnish.distributed.handles import RemotePolicy, TeamRole
from burnish.distributed.peers import ProcessRole, ProcessSpec, RoleLostError, Stop, TracebackElsewhereError
from burnish.distributed.processes import RoleProcess
from burnish.distributed.pulse import Pulse
from burnish.errors import BurnishError, DivergenceError, RolloutError
from burnish.types import Metric, Reduction

pytestmark = pytest.mark.slow


def adopts_orphans() -> bool:
    option = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(37, ctypes.byref(option)) == 0  # PR_GET_CHILD_SUBREAPER
    return bool(option.value)


Start = Callable[..., RoleProcess]


def started(name: str, build: Any = roles, *arguments: object, **settings: Any) -> RoleProcess:
    return RoleProcess(ProcessSpec(name, build, arguments), **settings)


@pytest.fixture(scope="module")
def start(fork_server: ForkServer) -> Start:
    return partial(started, fork_server=fork_server)


@pytest.fixture(scope="module")
def shared(start: Start) -> Iterator[RoleProcess]:
    with start("shared") as process:
        yield process


@pytest.fixture
def policy(shared: RoleProcess) -> ProcessRole:
    return shared.role("policy", seconds=30)


def test_values_go_there_and_back(policy: ProcessRole) -> None:
    metric = Metric(Reduction.MEAN, 1.5, 3)
    assert policy.ask("echo", {"a": (1, metric)}, twice=True) == ({"a": (1, metric)},) * 2
    assert policy.ask("version") == 3
    assert policy.ask("threads") == torch.get_num_threads()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(0.1, dtype=torch.float64),
        torch.arange(12, dtype=torch.float32).reshape(3, 4).T,
        torch.randn(1000)[10:13],
        torch.tensor([[True, False]]),
        torch.randn(3, 2).bfloat16(),
        torch.zeros(0, 5, dtype=torch.int64),
        torch.nn.Parameter(torch.randn(2)),
    ],
)
def test_tensors_arrive_bit_for_bit_and_without_gradient(policy: ProcessRole, tensor: torch.Tensor) -> None:
    found = policy.ask("echo", tensor)
    assert type(found) is torch.Tensor
    assert found.dtype is tensor.dtype
    assert torch.equal(found, tensor)
    assert not found.requires_grad
    assert found.untyped_storage().nbytes() == tensor.nbytes  # of a view its own numbers alone


def test_errors_keep_their_type_and_bring_their_traceback(policy: ProcessRole) -> None:
    with pytest.raises(DivergenceError, match="loss is nan\n  -> lower it") as caught:
        policy.ask("raises", "divergence")
    assert caught.value.remedy == "lower it"
    assert isinstance(caught.value.__cause__, TracebackElsewhereError)
    assert "in process 'shared':" in str(caught.value.__cause__)
    assert 'raise DivergenceError("loss is nan"' in str(caught.value.__cause__)


def test_errors_that_cannot_be_made_again_are_told(policy: ProcessRole) -> None:
    with pytest.raises(RuntimeError, match="Odd: one"):
        policy.ask("raises", "odd")
    with pytest.raises(EOFError):
        policy.ask("raises", "end of file")
    with pytest.raises((AttributeError, TypeError), match="lambda"):
        policy.ask("unpicklable")
    assert policy.ask("echo", 1) == 1


def test_what_cannot_be_sent_is_refused_and_the_process_goes_on(policy: ProcessRole) -> None:
    with pytest.raises(BurnishError, match=r"policy.echo: cannot be sent to process 'shared'.*\n.*package.module:name"):
        policy.ask("echo", lambda: None)
    assert policy.ask("echo", 2) == 2


def test_a_role_that_is_not_there(shared: RoleProcess) -> None:
    with pytest.raises(ValueError, match="has no role 'critic', only policy, engine"):
        shared.role("critic", seconds=1)


def sync(engine: ProcessRole, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    message = ("sync", engine.name, version)
    engine.process.ask(message, what="engine.sync", seconds=30, giving=server.buckets(tensors))


def test_weights_go_from_one_role_to_another(shared: RoleProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BUCKET_BYTES", 1)
    policy, engine = RemotePolicy(shared.role("policy", seconds=30)), shared.role("engine", seconds=30)
    weights = policy.publish()
    assert (weights.version, weights.module) == (3, None)
    found = dict(weights.tensors())
    sync(engine, 7, found.items())
    assert engine.ask("version") == 7
    taken = engine.ask("read")
    assert list(taken) == ["a", "b"]
    assert torch.equal(taken["a"], torch.arange(6.0))
    assert taken["b"].dtype is torch.bfloat16
    sync(engine, 12, found.items())
    with pytest.raises(BurnishError, match="no such tensor"):
        sync(engine, 13, found.items())
    assert engine.ask("version") == 12


def test_weights_of_a_version_that_is_gone_are_refused(shared: RoleProcess) -> None:
    with pytest.raises(RolloutError, match=r"version 2 of the weights of 'policy' .* at version 3 now"):
        shared.role("policy", seconds=30).read(2)


def test_whoever_fails_while_tensors_are_given_ends_the_process(start: Start) -> None:
    """It waits for tensors that do not come: no answer would belong to the next request."""

    def lost() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.zeros(2)
        raise RolloutError("the policy is gone")

    with start("sampler") as process:
        engine = process.role("engine", seconds=30)
        with pytest.raises(RolloutError, match="the policy is gone"):
            sync(engine, 1, lost())
        with pytest.raises(RoleLostError, match="has been ended"):
            engine.ask("version")


def test_a_process_that_dies_is_an_error_now_and_later(start: Start) -> None:
    with start("trainer") as process:
        role = process.role("policy", seconds=60)
        with pytest.raises(RoleLostError, match=r"policy.dies: process 'trainer' ended .*SIGKILL"):
            role.ask("dies")
        with pytest.raises(RoleLostError, match=r"policy.version: process 'trainer' ended \(killed by SIGKILL\)"):
            role.ask("version")


def test_whoever_waits_for_one_that_another_thread_ends_is_told(start: Start) -> None:
    """Its descriptors are closed by the one who waits at them: the system may give their numbers to others."""
    process = start("one")
    with ThreadPoolExecutor(1) as waiting:
        asked = waiting.submit(process.role("policy", seconds=30).ask, "sleeps")
        wait_for(lambda: "sleeps" in process.standing)
        process.kill()
        assert str(asked.exception()).startswith("policy.sleeps: process 'one' has been ended")
    assert (process.fileno(), process._pulse.descriptor) == (-1, -1)


def test_a_process_that_does_not_answer_is_killed_and_says_where_it_was(
    start: Start, tmp_path: Path, gone: Callable[..., bool]
) -> None:
    with start("rollout worker 3", stacks=tmp_path) as process:
        with pytest.raises(RoleLostError, match=r"policy.sleeps: .* did not answer within 0.2 seconds and was killed"):
            process.role("policy", seconds=0.2).ask("sleeps")
        assert gone(process.pid)
        assert "in sleeps" in (tmp_path / "rollout-worker-3.txt").read_text()


def test_a_process_that_runs_models_is_at_work_however_long_it_takes(start: Start) -> None:
    with start("trainer") as process:
        process.role("policy", seconds=1.0).ask("trains", 40)


def test_one_that_waits_for_another_need_not_work(start: Start) -> None:
    with (
        start("trainer 0", environment={"WORKS": "no"}) as first,
        start("trainer 1", environment={"WORKS": "yes"}) as second,
    ):
        TeamRole(first, "policy", 1.0, (second,)).ask("trains_or_waits")


def test_a_process_that_is_stopped_does_not_hang_a_large_request(start: Start) -> None:
    """It reads nothing, so that sending must have its deadline too."""
    with start("trainer") as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(RoleLostError, match=r"did not read within 0.5 seconds"):
            process.role("policy", seconds=0.5).ask("echo", torch.zeros(10_000_000))


@pytest.mark.parametrize("has_beaten", [True, False])
def test_a_process_that_is_stopped_gives_no_sign_of_life(
    start: Start, monkeypatch: pytest.MonkeyPatch, gone: Callable[..., bool], has_beaten: bool
) -> None:
    monkeypatch.setattr(peers, "SILENT_SECONDS", 2.0)
    if not has_beaten:
        monkeypatch.setattr(Pulse, "read", lambda self: (0, 0))
    with start("trainer") as process:
        stop = threading.Timer(1.0 if has_beaten else 0.0, os.kill, (process.pid, signal.SIGSTOP))
        stop.start()
        with pytest.raises(RoleLostError, match=r"policy.sleeps: .* has given no sign of life for 2 seconds and was"):
            process.role("policy", seconds=60).ask("sleeps")
        stop.join()
        assert gone(process.pid)


def test_a_process_that_is_stopped_before_it_can_beat_is_noticed(
    monkeypatch: pytest.MonkeyPatch, gone: Callable[..., bool]
) -> None:
    """While it still imports. One that takes its time is left alone: the others of this file take longer."""
    begun: list[int] = []
    seat, start = ProcessSpec("trainer", roles, ()), processes.start_interpreter

    def stopped(*arguments: Any, **named: Any) -> Any:
        process = start(*arguments, **named)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGSTOP)
        begun.append(process.pid)
        return process

    monkeypatch.setattr(processes, "start_interpreter", stopped)
    monkeypatch.setattr(peers, "SILENT_SECONDS", 1.5)
    with pytest.raises(RoleLostError, match=r"start: process 'trainer' has given no sign of life for 1.5 seconds"):
        RoleProcess(seat, seconds=30)
    monkeypatch.setattr(fork_server_module, "start_interpreter", stopped)
    monkeypatch.setattr(fork_server_module, "SILENT_SECONDS", 1.5)
    with (
        ForkServer() as fork_server,
        pytest.raises(RoleLostError, match=r"start: process 'trainer': its fork server has given no sign of life"),
    ):
        RoleProcess(seat, seconds=30, fork_server=fork_server)
    assert all(gone(pid) for pid in begun)


def test_one_that_dies_ends_those_that_worked_with_it(
    start: Start, monkeypatch: pytest.MonkeyPatch, gone: Callable[..., bool]
) -> None:
    monkeypatch.setattr(peers, "GRACE_SECONDS", 0.5)
    with start("trainer 0") as first, start("trainer 1") as second:
        kill = threading.Timer(0.5, os.kill, (second.pid, signal.SIGKILL))
        kill.start()
        with pytest.raises(
            RoleLostError, match=r"policy.sleeps: process 'trainer 1' ended \(killed by SIGKILL\)"
        ) as lost:
            TeamRole(first, "policy", 60, (second,)).ask("sleeps")
        kill.join()
        assert lost.value.process == "trainer 1"
        assert gone(first.pid)


def test_one_that_answers_soon_after_another_is_waited_for_however_long_both_took(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "GRACE_SECONDS", 4.0)
    with (
        start("trainer 0", environment={"DELAY": "5"}) as first,
        start("trainer 1", environment={"DELAY": "5.2"}) as second,
    ):
        team = TeamRole(first, "policy", 60, (second,), cuts_weights=True)
        with pytest.raises(DivergenceError, match="loss is nan after 5"):
            team.ask("diverges_late")
        assert team.ask("echo", 1) == 1  # so that the run can still be saved


def test_weights_go_from_process_to_process_through_memory(policy: ProcessRole, shared: RoleProcess) -> None:
    weights = policy.share(3)
    engine = shared.role("engine", seconds=30)
    engine.load(weights)
    assert {name: tensor.tolist() for name, tensor in engine.ask("read").items()} == {
        "a": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "b": [[1.0, 1.0], [1.0, 1.0]],
    }
    descriptors = len(os.listdir(f"/proc/{shared.pid}/fd"))
    for _ in range(20):
        engine.load(weights)
        engine.ask("read")
    assert len(os.listdir(f"/proc/{shared.pid}/fd")) <= descriptors + 1  # no version is kept
    engine.adopt("policy")
    assert engine.ask("version") == 3
    weights.close()


def test_one_that_is_gone_before_a_request_leaves_no_answer_behind(start: Start) -> None:
    """The first of two is asked, the second cannot be: the first one's answer must not pass for that of another
    request."""
    with start("trainer 0") as first, start("trainer 1") as second:
        os.kill(second.pid, signal.SIGKILL)
        wait_for(lambda: not runs(second.pid))
        team = TeamRole(first, "policy", 30, (second,))
        with pytest.raises(RoleLostError, match="'trainer 1' ended"):
            team.ask("echo", "one")
        with pytest.raises(RoleLostError, match="'trainer 0' has been ended"):
            team.ask_one("echo", "two")


def test_a_start_that_fails_or_takes_too_long(start: Start) -> None:
    with pytest.raises(BurnishError, match="there is no model"):
        start("trainer", broken)
    with pytest.raises(RoleLostError, match="start: process 'trainer' did not answer within 1 seconds"):
        start("trainer", slow, seconds=1)


def test_requests_of_two_threads_take_turns(policy: ProcessRole) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda number: policy.ask("echo", number), range(200)))
    assert answers == list(range(200))


def test_forks_of_a_server_have_their_own_variables_and_need_it_no_more(gone: Callable[..., bool]) -> None:
    with ForkServer() as fork_server:
        start = partial(started, fork_server=fork_server)
        first = start("first", environment={"DELAY": "0.1"})
        interpreter = fork_server._process
        assert interpreter is not None
        interpreter.end()
        second = start("second")  # by another one
    assert gone(interpreter.pid)
    with first, second:
        with pytest.raises(DivergenceError, match=r"loss is nan after 0.1"):
            first.role("policy", seconds=30).ask("diverges_late")
        with pytest.raises(KeyError, match="DELAY"):
            second.role("policy", seconds=30).ask("diverges_late")
    assert not adopts_orphans()


def test_it_says_what_it_has_been_asked_for(start: Start) -> None:
    with start("trainer") as process:
        assert process.standing == "idle"
        request = pickled(("call", "policy", "version", (), {}))
        process.post(request, what="policy.version", seconds=30)
        assert process.standing.startswith("policy.version, ")
        assert process.take(what="policy.version", seconds=30) == ("done", 3)
        assert process.standing == "idle"
        *_, span = process.take_spans()
        assert (span.process, span.work, process.take_spans()) == ("trainer", "policy.version", [])
        assert span.began < span.ended
    assert process.standing == "lost"


def test_closing_leaves_the_roles_and_ends_the_process(start: Start, tmp_path: Path, gone: Callable[..., bool]) -> None:
    process = start("trainer", roles, tmp_path / "left")
    process.close()
    process.close()
    assert (tmp_path / "left").read_text() == "left"
    assert gone(process.pid)


def test_a_request_that_can_be_stopped_is_stopped_at_any_time(policy: ProcessRole) -> None:
    """Before it is made, while it is worked on, and after its end, when nobody is there to be stopped."""
    with Stop() as stop:
        stop.call()
        assert policy.generate_until("until it is stopped", stop=stop)[0] == ["until it is stopped"]
    with Stop() as stop:
        timer = threading.Timer(0.2, stop.call)
        timer.start()
        policy.generate_until("until it is stopped", stop=stop)
        timer.join()
    stop.call()


def test_a_stop_that_comes_too_late_stops_nothing_else(policy: ProcessRole) -> None:
    """The process has answered already, and reads it before the next request."""
    for _ in range(20):
        with Stop() as stop:
            stop.call()
            policy.generate_until("answers at once", stop=stop)
        assert policy.ask("echo", 5) == 5
