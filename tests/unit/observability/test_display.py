"""The terminal: live table, plain lines, plots."""

import io
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from burnish.cli.demo_result import plot_curve
from burnish.observability.alarms import Alarm
from burnish.observability.console import COLUMNS, Display, duration, fitting, number_text, plain_line


def plain(**options: int) -> tuple[Display, Console, Mock]:
    """A display elsewhere than on a terminal, and its clock."""
    clock = Mock(return_value=0.0)
    console = Console(file=io.StringIO(), force_terminal=False, width=60)
    return Display(console, 10, clock=clock, **options), console, clock


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def output(console: Console) -> str:
    return console.file.getvalue()


def test_elsewhere_than_on_a_terminal_a_step_is_one_line() -> None:
    display, console, clock = plain(start_step=4)
    with display:
        clock.return_value = 6.0
        speeds = {"throughput/generate_tokens_per_second": 4321.0, "throughput/response_tokens_per_second": 1234.0}
        display.update(6, {"reward/mean": 0.5, "policy/grad_norm": 2.0, **speeds})
    assert output(console) == "step 6/10  reward 0.500  tok/s 1.2k  12s left\n"


def test_a_verbose_line_has_every_column_and_each_speed() -> None:
    row = {"reward/mean": 0.5, "policy/grad_norm": 2.0, "throughput/update_tokens_per_second": 12.0}
    assert plain_line(1, 2, row, None, verbose=True) == "step 1/2  reward 0.500  grad 2  tok/s update 12"


def test_a_line_has_at_most_160_characters() -> None:
    of_others = {"train/loss", "eval/loss", "eval/token_accuracy", "preference/margin"}
    row = {metric: -123.456 for _, metric, _ in COLUMNS if metric not in of_others}
    row |= dict.fromkeys(("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high"), 0.999)
    line = plain_line(99_999, 100_000, row | {"throughput/response_tokens_per_second": 123_456.0}, 360_000)
    assert len(line) <= 160
    assert "accuracy 99.9%  length" in line  # without its interval, for which there is no room


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [(-0.00004, ".3f", "0.000"), (1e-9, ".3g", "0"), (-1e-9, ".1%", "0.0%"), (-0.25, ".3g", "-0.25")],
)
def test_a_number_below_its_rounding_reads_zero(value: float, spec: str, text: str) -> None:
    assert number_text(value, spec) == text


def test_a_sum_over_tokens_has_their_rounding_and_a_small_one_of_few_tokens_is_shown() -> None:
    lines = [plain_line(1, 2, {"kl/reference": 2e-5, "rollout/response_tokens_mean": n}, None) for n in (32.0, 4.0)]
    assert [line.split()[-1] for line in lines] == ["0", "2e-05"]


def test_plain_every_keeps_evaluations_and_the_last_step() -> None:
    display, console, _ = plain(plain_every=4)
    with display:
        for step in range(1, 11):
            display.update(step, {"eval/reward_mean": 1.0} if step == 3 else {"reward/mean": 0.0})
    assert [line.split()[1] for line in output(console).splitlines()] == ["3/10", "4/10", "8/10", "10/10"]


def test_an_alarm_shows_brackets_as_they_are() -> None:
    display, console, _ = plain()
    display.alarm(Alarm("reward constant", "all [bold]0", "prompts", 3))
    assert output(console) == "ALARM step 3: reward constant: all [bold]0\n  -> prompts\n"


def test_a_terminal_gets_a_table_with_the_phase() -> None:
    console = terminal()
    with Display(console, 10, title="grpo") as display:
        display.phase("generate")
        display.update(1, {"reward/mean": 0.25, "kl/reference": 0.125})
    text = output(console)
    for piece in ("grpo · step 0/10 · generate", "reward", "0.250", "KL", "0.125", "step 1/10"):
        assert piece in text


def test_a_narrow_terminal_gets_the_first_columns_whole() -> None:
    rows = [["step", "reward", "in mathematics"], ["1", "0.250", "0.500"]]
    assert fitting(rows, 28) == rows  # 4 + 2 + 6 + 2 + 14
    assert fitting(rows, 27) == [["step", "reward"], ["1", "0.250"]]
    assert fitting(rows, 3) == [["step"], ["1"]]


def process(name: str, standing: str) -> Any:
    """A process with nothing done."""
    return SimpleNamespace(name=name, standing=standing, take_spans=list)


def test_a_terminal_shows_what_other_processes_do() -> None:
    doing = dict.fromkeys(("trainer 0", "trainer 1"), "policy.update, 3 s") | {"rollout worker 0": "version 7, idle"}
    console = terminal()
    with Display(console, 10, processes=lambda: [process(*item) for item in doing.items()]) as display:
        display.phase("update")
        assert "lost" not in output(console)
        doing["rollout worker 0"] = "lost"
        display.phase("wait")
    text = output(console)
    for line in ("trainer 0, trainer 1: policy.update, 3 s", "rollout worker 0: version 7, idle"):
        assert line in text
    assert "rollout worker 0: lost" in text
    assert "trainer 0" not in text.splitlines()[-1], "at the end they are gone"


def test_a_terminal_follows_other_processes_without_being_asked() -> None:
    seen, doing = threading.Event(), ["idle"]

    def processes() -> list[Any]:
        if doing[0] == "asked":
            seen.set()
        return [process("critic", doing[0])]

    with Display(terminal(), 10, processes=processes):
        doing[0] = "asked"
        assert seen.wait(60)


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12s"), (200, "3m 20s"), (7500, "2h 05m"), (59.6, "1m 00s")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_rising_line_goes_from_bottom_left_to_top_right() -> None:
    lines = plot_curve([0, 10], [0.0, 1.0], title="t", width=10, height=4).splitlines()
    assert lines[0] == "t"
    assert lines[1].startswith("  1 ┤")
    assert lines[4].startswith("  0 ┤")
    grid = [line.split("┤")[-1].split("│")[-1] for line in lines[1:5]]
    assert grid[3][0] == "▁"
    assert grid[0][-1] == grid[3][-1] == "█"
    assert grid[0][0] == " "
    assert lines[-1].split() == ["0", "step", "10"]


def test_a_constant_curve() -> None:
    assert "3.3" in plot_curve([1, 2], [3.0, 3.0], title="t")


def test_parts_of_the_reward_and_pass_at_k_have_columns() -> None:
    row = {"reward/mean": 0.5, "reward/part/brief": 0.1, "reward/part/right": 0.4}
    line = plain_line(3, 9, {**row, "eval/pass@16": 0.75, "eval/pass@2": 0.5}, None, verbose=True)
    assert line == "step 3/9  reward 0.500  brief 0.100  right 0.400  pass@2 50.0%  pass@16 75.0%"
    whole = {"reward/mean": 0.5, "reward/part/right": 0.5}
    assert "right" not in plain_line(3, 9, whole, None, verbose=True)  # the sum itself


def test_a_line_has_room_for_the_interval_of_the_accuracy() -> None:
    row = {"eval/accuracy": 0.5, "eval/accuracy_low": 0.25, "eval/accuracy_high": 0.75}
    assert plain_line(3, 9, row, None) == "step 3/9  accuracy 50.0% (25.0% to 75.0%)"
