"""What the commands that train do in a process of torchrun's."""

from pathlib import Path

import pytest

from burnish.cli import main
from burnish.config.torchrun import TorchrunRank
from burnish.distributed import rank_server


def as_rank(number: int, monkeypatch: pytest.MonkeyPatch, *, restarts: int = 0) -> None:
    here = TorchrunRank(number, 2, number, 2, 0, "localhost", 1, True, restarts)
    monkeypatch.setattr(TorchrunRank, "here", lambda: here)


@pytest.mark.parametrize("command", ["rl", "sft", "rm"])
def test_other_ranks_serve_and_read_nothing(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []
    monkeypatch.setattr(rank_server, "serve_rank", lambda here: served.append(here.rank))
    as_rank(1, monkeypatch)
    assert main([command, "no-such-file.yaml"]) == 0
    assert served == [1]
    as_rank(0, monkeypatch)
    assert main([command, "no-such-file.yaml"]) == 2
    assert served == [1]


def test_a_restart_does_not_start_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    as_rank(0, monkeypatch, restarts=1)
    assert main(["rl", "no-such-file.yaml", "--fresh"]) == 2
    assert "--fresh with torchrun --max-restarts 1 would start over at every restart" in capfd.readouterr().err
