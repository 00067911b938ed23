"""How processes of torchrun meet, and requests to one that was not started here: all of it in threads of this one."""

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stand_in_roles import broken, roles
from watching import wait_for

from burnish import __version__
from burnish.config.torchrun import TorchrunRank
from burnish.distributed import rank_store, ranks
from burnish.distributed.launching import LocalLauncher, ProcessSpec
from burnish.distributed.network import Lines, connect
from burnish.distributed.nodes import expected_here, versions_here, words_here
from burnish.distributed.peers import RoleLostError
from burnish.distributed.pulse import Pulse
from burnish.distributed.rank_server import RankChannel, live_with
from burnish.distributed.rank_store import RankReply, RankStore
from burnish.distributed.ranks import RankLauncher, RankPeer, refuse_other_versions, refuse_other_words
from burnish.distributed.server import MemoryGate, serve
from burnish.errors import BurnishError, ConfigError, DivergenceError, ModelError

TOKEN = bytes(range(32))
SECONDS = 60.0


def here(rank: int, *, size: int = 2, node: int = 0) -> TorchrunRank:
    return TorchrunRank(rank, size, 0, 1, node, "localhost", 1, True, 0)


class Rank:
    """A rank other than the first, in a thread. `ended`: how it has taken the end of its connection."""

    def __init__(self, store: Any, node: int) -> None:
        self.ended: list[bool] = []
        self.lines: Lines | None = None
        self._there = RankStore(here(1, node=node), store)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        self.lines = self._there.await_call()
        pulse, channel = Pulse.new(), RankChannel(self.lines.requests)
        arguments = (self.lines.beats, pulse, channel, self.ended.append)
        self.beating = threading.Thread(target=live_with, args=arguments, daemon=True)
        self.beating.start()
        while channel.open:
            serve(channel, pulse, MemoryGate(channel))
        channel.close()

    def hang_up(self) -> None:
        """As if its process had ended."""
        assert self.lines is not None
        for stream in self.lines:
            with contextlib.suppress(OSError):
                stream.shutdown(2)


Met = tuple[RankPeer, Rank]


@pytest.fixture(params=["near", "far"])
def met(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Met]:
    """The controller's side and the other side, on one machine or as if on two."""
    monkeypatch.setattr(ranks, "NOTICE_SECONDS", 0.1)
    store = dist.HashStore()  # type: ignore[attr-defined]
    rank = Rank(store, node=0 if request.param == "near" else 1)
    answers = RankStore(here(0), store).call(TOKEN)
    peer = RankPeer(1, answers[1], TOKEN)
    assert peer.near == (request.param == "near")
    yield peer, rank
    peer.kill()
    rank.beating.join(SECONDS)


def seated(peer: RankPeer, folder: Path, build: Callable[..., Any] = roles) -> RankPeer:
    launcher = RankLauncher({"trainer 1": peer}, LocalLauncher(1, folder), 1, None)
    assert launcher.start(ProcessSpec("trainer 1", build, ())) is peer
    return peer


@pytest.fixture
def trainer(met: Met, tmp_path: Path) -> Met:
    seated(met[0], tmp_path)
    return met


def test_a_rank_answers_until_it_is_dismissed(met: Met, tmp_path: Path) -> None:
    peer, rank = met
    assert peer.problems(expected_here((), folder=None)) == []
    lacking = expected_here(("nowhere.py:loss",), folder=None)
    assert [line[:9] for line in peer.problems(lacking)] == ["rank 1 on"]
    policy = seated(peer, tmp_path).role("policy", seconds=SECONDS)
    assert policy.ask("echo", {"a": (1, "b")}) == {"a": (1, "b")}
    with pytest.raises(DivergenceError, match="loss is nan"):
        policy.ask("raises", "divergence")
    assert not peer.is_lost
    peer.close()
    rank.thread.join(SECONDS)
    rank.beating.join(SECONDS)
    assert rank.ended == [True]
    assert not peer.is_lost  # it was meant to end


def test_weights_come_and_go(trainer: Met) -> None:
    peer, _ = trainer
    policy, engine = peer.role("policy", seconds=SECONDS), peer.role("engine", seconds=SECONDS)
    shared = policy.share(3)
    assert shared.layout.version == 3
    engine.load(shared)
    assert engine.ask("read")["a"].tolist() == [0, 1, 2, 3, 4, 5]
    assert engine.ask("read")["b"].dtype == torch.bfloat16


def test_roles_that_cannot_be_built_are_an_answer(met: Met, tmp_path: Path) -> None:
    peer, rank = met
    with pytest.raises(ModelError, match="there is no model"):
        seated(peer, tmp_path, broken)
    assert not peer.is_lost
    assert rank.thread.is_alive()
    peer.close()
    rank.beating.join(SECONDS)
    assert rank.ended == [True]


def test_a_lost_rank_is_named_with_its_role(trainer: Met) -> None:
    peer, rank = trainer
    policy = peer.role("policy", seconds=SECONDS)
    rank.hang_up()
    wait_for(lambda: peer.is_lost)
    assert "the run ends: rank 1 (trainer 1) on" in str(peer.loss())
    with pytest.raises(RoleLostError, match=r"policy.echo: rank 1 \(trainer 1\) on .* has ended(?s:.*)--max-restarts"):
        policy.ask("echo", 1)


def test_others_say_who_was_lost_first(trainer: Met) -> None:
    peer, rank = trainer
    policy = peer.role("policy", seconds=SECONDS)
    peer.abandon(peer.title)
    with pytest.raises(RoleLostError, match=r"was ended, because rank 1 \(trainer 1\) on .* is lost"):
        policy.ask("echo", 1)
    peer.kill()
    rank.beating.join(SECONDS)
    assert rank.ended == [False]


@pytest.mark.slow
def test_one_that_stalls_says_where(trainer: Met, tmp_path: Path) -> None:
    with pytest.raises(RoleLostError, match=r"rank 1 \(trainer 1\) did not answer within 0.5 seconds and was killed"):
        trainer[0].role("policy", seconds=0.5).ask("sleeps")
    file = tmp_path / "trainer-1.txt"
    wait_for(lambda: file.exists() and "in sleeps" in file.read_text())


def test_a_call_of_before_a_restart_is_not_the_last() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    stale = {"session": bytes(32).hex(), "node": 1, "address": "127.0.0.1"}
    store.set("burnish/call", json.dumps(stale))
    rank = Rank(store, node=0)
    wait_for(lambda: store.check([f"burnish/{stale['session']}/1"]))
    peer = RankPeer(1, RankStore(here(0), store).call(TOKEN)[1], TOKEN)
    assert peer.near
    peer.close()
    rank.beating.join(SECONDS)
    assert rank.ended == [True]


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_store, "MEETING_SECONDS", 0.2)
    store = dist.HashStore()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"ranks that have not come within 0.2 seconds: 1, 2"):
        RankStore(here(0, size=3), store).call(TOKEN)
    with pytest.raises(BurnishError, match=r"rank 1: rank 0 has not come within 0.2 seconds"):
        RankStore(here(1), store).await_call()  # it has called, and does not connect


def test_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_store, "MEETING_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"rank 1: torchrun's store at localhost:1 cannot be reached"):
        RankStore.joined(here(1))


def test_nobody_else_may_connect(met: Met) -> None:
    """Whoever waits lets in who knows the secret, and only once."""
    peer, _ = met
    peer.problems(expected_here((), folder=None))  # it has been let in
    with pytest.raises(OSError, match="refused"):
        connect(peer.address, bytes(32), seconds=5)


def test_other_versions_are_refused_by_rank() -> None:
    same = RankReply(host="a", address="x", versions=versions_here(), words=words_here())
    refuse_other_versions({1: same})
    other = RankReply(host="b", address="x", versions={**versions_here(), "Burnish": "0.0.1"}, words=words_here())
    with pytest.raises(ConfigError, match=rf"rank 2 on b: Burnish is 0.0.1, and {__version__} at rank 0(?s:.*)install"):
        refuse_other_versions({1: same, 2: other})


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("rl HERE steps=3", ""),
        ("rl SAME steps=3", ""),  # another path of the same file
        ("rl HERE steps=4", "rank 1 on b: steps=4 is where rank 0 has steps=3"),
        ("rl HERE", "rank 1 on b: nothing is where rank 0 has steps=3"),
        ("rl HERE steps=3 --fresh", "rank 1 on b: --fresh is where rank 0 has nothing"),
        ("rl OTHER steps=3", r"rank 1 on b: the content of \S+ differs from rank 0's"),
        ("sft HERE steps=3", "rank 1 on b: sft is where rank 0 has rl"),
    ],
)
def test_a_node_that_was_started_otherwise_is_refused(
    words: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("HERE", "steps: 1"), ("SAME", "steps: 1"), ("OTHER", "steps: 2")):
        (tmp_path / name).write_text(text)

    def asked(text: str) -> list[tuple[str, str]]:
        words = [str(tmp_path / word) if word.isupper() else word for word in text.split()]
        monkeypatch.setattr(sys, "argv", ["burnish", *words])
        return words_here()

    there = RankReply(host="b", address="x", versions={}, words=asked(words))
    asked("rl HERE steps=3")
    with pytest.raises(ConfigError, match=line) if line else contextlib.nullcontext():
        refuse_other_words({1: there})


def watched(peer: RankPeer, loop: Callable[[ranks._LossWatch], object]) -> None:
    with ranks._LossWatch([peer]) as watch:
        loop(watch)


def test_the_loop_is_told_wherever_it_is(trainer: Met) -> None:
    peer, rank = trainer

    def asks_nobody(watch: ranks._LossWatch) -> None:
        rank.hang_up()
        time.sleep(SECONDS)
        pytest.fail("the error came when it ended")

    with pytest.raises(RoleLostError, match=r"the run ends: rank 1 \(trainer 1\)"):
        watched(peer, asks_nobody)
    with pytest.raises(RoleLostError, match=r"the run ends: rank 1 \(trainer 1\)"):
        watched(peer, lambda watch: None)  # handlers are back as they were; a loop that stops in peace has not noticed


def test_a_loop_that_has_noticed_by_itself_may_save_in_peace(trainer: Met) -> None:
    peer, rank = trainer
    noticed = RoleLostError("policy.update: rank 1 has ended", remedy="", process="trainer 1")

    def saves(watch: ranks._LossWatch) -> None:
        try:
            raise noticed
        except RoleLostError:
            with contextlib.suppress(ValueError):  # what saving does with errors of its own
                rank.hang_up()
                watch._thread.join(SECONDS)  # it has sent the signal when it ends
                raise ValueError from None
            assert watch._error is not None
            raise

    with pytest.raises(RoleLostError) as raised:
        watched(peer, saves)
    assert raised.value is noticed


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The SIGTERMs that reach whoever handled them before a run."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    yield came
    signal.signal(signal.SIGTERM, before)


def test_torchruns_sigterm_does_not_end_a_run_before_it_has_named_the_lost_rank(trainer: Met, told: list[int]) -> None:
    """torchrun sends one to all ranks, at a time of its own: here while the loop is being left, and after that."""
    lost = RoleLostError("policy.update: rank 1 has ended", remedy="", process="trainer 1")

    def is_left(watch: ranks._LossWatch, *, signals: int) -> None:
        try:
            raise lost
        finally:
            for _ in range(signals):
                signal.raise_signal(signal.SIGTERM)

    for inside in (0, 1, 2):  # only the first one has no effect, inside or outside
        told.clear()
        with pytest.raises(RoleLostError):
            watched(trainer[0], partial(is_left, signals=inside))
        assert len(told) == max(0, inside - 1)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert len(told) == inside + 1


def test_a_sigterm_without_a_loss_is_for_whoever_handled_it(trainer: Met, told: list[int]) -> None:
    peer, _ = trainer
    watched(peer, lambda watch: signal.raise_signal(signal.SIGTERM))
    assert told == [signal.SIGTERM]
    watched(peer, lambda watch: None)
    signal.raise_signal(signal.SIGTERM)
    assert len(told) == 2


def test_a_run_does_not_outlive_torchrun(trainer: Met, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, rank = trainer
    policy = peer.role("policy", seconds=SECONDS)

    def is_left_alone(watch: ranks._LossWatch) -> None:
        monkeypatch.setattr("os.getppid", lambda: 1)
        time.sleep(SECONDS)

    with pytest.raises(RoleLostError, match="the run ends: torchrun has ended"):
        watched(peer, is_left_alone)
    with pytest.raises(RoleLostError, match="was ended, because torchrun is lost"):
        policy.ask("echo", 1)
    peer.kill()
    rank.beating.join(SECONDS)
    assert rank.ended == [False]
