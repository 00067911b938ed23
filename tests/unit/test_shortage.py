"""What a machine has no more of is one line, whichever library says so."""

import errno
from unittest.mock import Mock

import pytest

from burnish import cli
from burnish.outside.shortage import naming_shortages, shortage


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RuntimeError("can't start new thread"), "no more threads or processes"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "no more threads or processes"),
        (OSError(errno.EMFILE, "Too many open files"), "no more files or connections"),
        (RuntimeError("gloo: [socket.cc:100] Too many open files"), "no more files or connections"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory ran out"),
        (MemoryError(), "memory ran out"),
    ],
)
def test_what_runs_out_is_named_and_ends_the_command_with_two(
    error: Exception, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = shortage(error)
    assert named is not None
    assert named.message.startswith(what)
    assert named.remedy

    monkeypatch.setattr("burnish.cli.app.build_app", lambda: Mock(side_effect=error))
    assert cli.main(["plan"]) == 2
    said = capsys.readouterr().err
    assert f"error: {what}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(errno.ENOENT, "no such file"), ValueError("x")])
def test_other_errors_are_left_alone(error: Exception) -> None:
    assert shortage(error) is None
    with pytest.raises(type(error)) as raised, naming_shortages():
        raise error
    assert raised.value is error
