"""Runs that a program starts: equal to those of the command line, resumable, and theirs to watch and to stop."""

import errno
import json
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import BuildRl, lines_of, run_file, trace, write_lines
from transformers import AutoModelForCausalLM, AutoTokenizer

import burnish
from burnish.api.policy import _prompt
from burnish.cli import main
from burnish.errors import BurnishError
from burnish.types import Message

Fields = dict[str, Any]
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs without an `output` make their folders here."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def fields(tiny_run: BuildRl) -> Fields:
    """The tiny task as the fields of a run file, without `output`."""
    config = tiny_run().model_dump(mode="json", exclude_unset=True)
    return {name: value for name, value in config.items() if name != "output"}


@pytest.fixture
def rows(tiny_task: Path) -> Rows:
    return {name: lines_of(tiny_task / f"{name}.jsonl") for name in ("train", "eval")}


def _digits(scale: float) -> Callable[[str, str], float]:
    def digits(response: str, answer: str) -> float:
        return sum(a == b for a, b in zip(response, answer, strict=False)) / scale

    return digits


@pytest.mark.slow
def test_everything_in_memory_gives_the_numbers_of_the_command_line(
    fields: Fields, tiny_run: BuildRl, rows: Rows, tiny_model: Path, tmp_path: Path
) -> None:
    """Rows in a file, a list and a data set; the reward in a file and a closure; the model in a folder and loaded."""
    from datasets import Dataset

    assert main(["rl", run_file(tiny_run())]) == 0
    expected = trace(tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    rewards = [_digits(2)]
    listed = burnish.train({**fields, "model": model, "data": rows, "rewards": rewards}, quiet=True)
    tables = {name: Dataset.from_list(part) for name, part in rows.items()}
    tabled = burnish.train(fields, data=tables, quiet=True)
    assert trace(listed.output) == expected
    assert trace(tabled.output) == expected
    assert (listed.output, tabled.output) == (Path("runs/rl-001"), Path("runs/rl-002"))


@pytest.mark.slow
def test_a_run_file_and_a_typed_configuration(tiny_run: BuildRl, tmp_path: Path) -> None:
    by_file = burnish.train(run_file(tiny_run()), output=str(tmp_path / "file"), steps=2, quiet=True)
    typed = burnish.train(tiny_run("steps=2"), output=str(tmp_path / "typed"), quiet=True)
    assert by_file.step == typed.step == 2
    assert trace(by_file.output) == trace(typed.output)
    assert by_file.config.model_dump(exclude={"output"}) == typed.config.model_dump(exclude={"output"})


@pytest.mark.slow
def test_the_same_call_goes_on_and_another_is_refused(fields: Fields, rows: Rows) -> None:
    given = {**fields, "data": rows["train"], "rewards": _digits(2)}
    whole = burnish.train(given, output="whole", quiet=True)
    burnish.train(given, output="parts", steps=1, quiet=True)
    assert trace(burnish.train(given, output="parts", quiet=True).output) == trace(whole.output)
    for change in ({"data": rows["eval"]}, {"rewards": _digits(3)}):
        with pytest.raises(BurnishError, match="different inputs from those of this call"):
            burnish.train({**given, **change}, output="parts", steps=4, quiet=True)
    prints = json.loads((Path("parts/checkpoints/step-000003/fingerprints.json")).read_text())["files"]
    assert {"rewards.0: digits.txt", "data.train.0: train.jsonl"} <= set(prints)
    accepted = burnish.train({**given, "rewards": _digits(3)}, output="parts", steps=4, accept_changes=True, quiet=True)
    assert accepted.step == 4
    fresh = burnish.train({**given, "rewards": _digits(3)}, output="parts", steps=1, fresh=True, quiet=True)
    assert fresh.step == 1
    assert Path("parts.old-1").is_dir()


@pytest.mark.slow
def test_the_command_line_says_what_it_lacks_and_reports_and_evaluates_the_rest(
    fields: Fields, rows: Rows, tiny_task: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = burnish.train({**fields, "data": rows, "rewards": lambda response: len(response)}, steps=1, quiet=True)
    assert main(["rl", str(run.output / "config.yaml"), "steps=2"]) == 2
    assert "'python:lambda' is a function of the Python program" in " ".join(capsys.readouterr().err.split())
    assert main(["report", str(run.output)]) == 0
    assert main(["eval", str(run.output), f"rewards={tiny_task}/reward.py:digits"]) == 0
    moved = run.output.rename("moved")  # its own inputs move with it
    assert main(["eval", str(moved), f"rewards={tiny_task}/reward.py:digits"]) == 0


def test_errors_are_those_of_a_run_file_and_leave_no_folder(fields: Fields) -> None:
    with pytest.raises(BurnishError, match=r"2 problems in burnish\.train"):
        burnish.train({**fields, "steps": 0, "seed": -1})
    with pytest.raises(BurnishError, match=r"'gprpo' is not known\n.*grpo"):
        burnish.train({**fields, "algorithm": "gprpo"})
    with pytest.raises(BurnishError, match="asks for 'colour'"):
        burnish.train({**fields, "rewards": lambda response, colour: 1.0}, quiet=True)
    with pytest.raises(BurnishError, match=r"burnish\.train got a int"):
        burnish.train(3)  # type: ignore[arg-type]
    assert list(Path("runs").iterdir()) == []


@pytest.mark.slow
def test_what_a_run_says(fields: Fields, rows: Rows, tmp_path: Path) -> None:
    run = burnish.train({**fields, "data": rows}, evaluation={"every_steps": 2}, output="run", quiet=True)
    assert (run.step, run.stopped, [kept.step for kept in run.checkpoints]) == (3, False, [3])
    assert list(run.metrics["reward/mean"].index) == [1, 2, 3]
    assert len(run.rollouts(2)) == 16
    first = run.rollouts()[0]
    assert isinstance(first, burnish.Rollout)
    assert (first.step, first.domain, len(first.token_texts)) == (3, "train", len(first.response_tokens))
    assert "background:rgba" in first._repr_html_()
    assert {rollout.domain for rollout in run.rollouts(2, evaluation=True)} == {"eval"}
    for step in (9, True, "2"):
        with pytest.raises(BurnishError, match=f"no rollouts of step {step!r}"):
            run.rollouts(step)  # type: ignore[arg-type]
    assert run.report() == Path("run/report.html")
    assert "finished at step 3" in repr(run)
    assert "<svg" in run._repr_html_()
    with pytest.raises(BurnishError, match="not being trained"):
        run.stop()
    again = burnish.load_run("run@best:eval/reward_mean")
    assert again.policy.folder.name == "policy"
    with pytest.raises(BurnishError, match="is not a run"):
        burnish.load_run(tmp_path)


@pytest.mark.slow
def test_a_policy_answers_and_can_be_copied(fields: Fields) -> None:
    run = burnish.train(fields, steps=1, output="run", quiet=True)
    greedy = run.policy.generate("1+1=", max_response_tokens=4, greedy=True)
    assert greedy == run.policy.generate("1+1=", max_response_tokens=4, greedy=True)
    assert len(greedy.tokens) == len(greedy.logprobs) == len(greedy.token_ids) <= 4
    assert all(value <= 0 for value in greedy.logprobs)
    sampled = {run.policy.generate("1+1=", max_response_tokens=4, seed=seed).text for seed in range(8)}
    assert len(sampled) > 1
    copied = burnish.Policy(run.policy.save("copy"))
    assert copied.generate("1+1=", max_response_tokens=4, greedy=True) == greedy
    with pytest.raises(BurnishError, match="already exists"):
        run.policy.save("copy")
    with pytest.raises(BurnishError, match="no chat template"):
        copied.generate([{"role": "user", "content": "1+1="}])


@pytest.mark.slow
def test_a_function_sees_each_step_and_can_stop_the_run(fields: Fields) -> None:
    seen: list[tuple[int, int]] = []

    def on_step(run: burnish.Run, metrics: Mapping[str, float]) -> None:
        seen.append((run.step, len(metrics) > 10))
        if run.step == 2:
            run.stop()

    run = burnish.train(fields, output="run", on_step=on_step, quiet=True)
    assert seen == [(1, True), (2, True)]
    assert (run.step, run.stopped, [kept.step for kept in run.checkpoints]) == (2, True, [2])
    whole = burnish.train(fields, output="whole", quiet=True)
    assert trace(burnish.train(fields, output="run", quiet=True).output) == trace(whole.output)


@pytest.mark.slow
def test_what_it_raises_ends_the_run_with_the_step_saved(fields: Fields) -> None:
    def on_step(run: burnish.Run, metrics: Mapping[str, float]) -> None:
        if run.step == 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        burnish.train(fields, output="run", on_step=on_step, quiet=True)
    assert [kept.step for kept in burnish.load_run("run").checkpoints] == [2]
    whole = burnish.train(fields, output="whole", quiet=True)
    assert trace(burnish.train(fields, output="run", quiet=True).output) == trace(whole.output)


@pytest.mark.slow
def test_outside_of_the_main_thread_signals_are_left_alone(fields: Fields) -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def on_step(run: burnish.Run, metrics: Mapping[str, float]) -> None:
        found.append(signal.getsignal(signal.SIGINT))
        run.stop()

    thread = threading.Thread(target=lambda: burnish.train(fields, output="run", on_step=on_step, quiet=True))
    thread.start()
    thread.join()
    assert found == [before]
    assert burnish.load_run("run").stopped


@pytest.mark.slow
def test_a_copy_that_fails_leaves_nothing(fields: Fields, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = burnish.train(fields, steps=1, output="run", quiet=True).policy
    (tmp_path / "mounted").mkdir()
    copy = shutil.copytree

    def full(source: Path, target: Path, **named: Any) -> None:
        target.mkdir(exist_ok=True)
        shutil.copy(source / "config.json", target)
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("new", "mounted"):
        monkeypatch.setattr(shutil, "copytree", full)
        with pytest.raises(BurnishError, match="No space left on device"):
            policy.save(tmp_path / name)
        monkeypatch.setattr(shutil, "copytree", copy)
        assert (policy.save(tmp_path / name) / "model.safetensors").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_checkpoint_is_not_read_whole_for_each_answer(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    find = burnish.api.run.find_checkpoint

    def counted(*given: Any, **named: Any) -> Any:
        looked.append(given)
        return find(*given, **named)

    monkeypatch.setattr("burnish.api.run.find_checkpoint", counted)
    run = burnish.train(fields, steps=1, output="run", quiet=True)
    assert run.policy is run.policy
    assert len(looked) == 1
    first = run.weights
    burnish.train(fields, steps=2, output="run", quiet=True)
    assert run.weights != first
    (run.weights / "model.safetensors").write_bytes(b"torn")
    assert run.weights == first


@pytest.mark.slow
def test_runs_follow_on_runs(fields: Fields, tiny_sft: Any) -> None:
    first = burnish.sft(tiny_sft("steps=2"), output="sft", quiet=True)
    second = burnish.train({**fields, "model": first}, steps=1, output="rl", quiet=True)
    assert second.config.model.path == str(first.weights)
    assert first.stopped is False


@pytest.mark.slow
def test_an_evaluation_leaves_the_inputs_of_a_run_alone(fields: Fields, rows: Rows) -> None:
    """Also where it is given the fields of the run instead of the run, and other rows."""
    given = {**fields, "output": "run", "data": rows}
    burnish.train(given, steps=1, quiet=True)
    before = {path: path.read_bytes() for path in Path("run/inputs").rglob("*") if path.is_file()}
    found = burnish.evaluate(given, given["data"]["eval"][:5], quiet=True)
    assert len(found.rollouts) == 5
    assert {path: path.read_bytes() for path in Path("run/inputs").rglob("*") if path.is_file()} == before
    burnish.train(given, steps=2, quiet=True)


@pytest.mark.slow
def test_a_run_with_inputs_goes_on_where_its_folder_is_now(fields: Fields, rows: Rows) -> None:
    given = {**fields, "data": rows["train"]}
    burnish.train(given, output="run", steps=1, quiet=True)
    Path("run").rename("other")
    assert burnish.train(given, output="other", steps=2, quiet=True).step == 2
    assert burnish.train(given, output=str(Path("other").resolve()), steps=3, quiet=True).step == 3
    shutil.copytree("other", "copy")
    assert burnish.train("copy/config.yaml", output="copy", steps=4, quiet=True).step == 4


@pytest.mark.slow
def test_a_checkpoint_is_used_with_the_template_that_it_holds(fields: Fields, tmp_path: Path) -> None:
    """Whatever has become of the file that the run file names. One that is given now counts."""
    template = tmp_path / "own.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    named = {"model.chat_template": str(template)}
    burnish.train(fields, output="run", steps=1, quiet=True, **named)
    template.unlink()
    said = burnish.load_run("run").policy.generate([{"role": "user", "content": "1+1="}], max_response_tokens=4)
    assert said == burnish.load_run("run").policy.generate("1+1=", max_response_tokens=4)
    assert main(["eval", "run"]) == 0
    expected = json.loads(Path("run/eval/001/metrics.json").read_text())
    assert burnish.evaluate("run", quiet=True).metrics == expected
    with pytest.raises(BurnishError, match=r"own\.jinja"):
        burnish.evaluate("run", quiet=True, **named)
    assert main(["eval", "run", f"model.chat_template={template}"]) == 2


@pytest.mark.slow
def test_evaluating(fields: Fields, rows: Rows) -> None:
    run = burnish.train({**fields, "data": rows}, steps=1, output="run", evaluation={"every_steps": 1}, quiet=True)
    found = burnish.evaluate(run, quiet=True)
    assert found["eval/reward_mean"] == run.metrics["eval/reward_mean"].iloc[-1]
    assert (found.folder, len(found.rollouts)) == (Path("run/eval/001"), 20)
    assert "eval/reward_mean" in repr(found)
    some = burnish.evaluate("run@1", rows["eval"][:5], lambda response: len(response), quiet=True)
    assert len(some.rollouts) == 5
    assert some["eval/reward_mean"] > 0
    short: dict[str, Any] = {"rollout": {"max_response_tokens": 4}, "quiet": True}
    alone = burnish.evaluate(run.weights, rows["eval"], _digits(2), **short)
    assert alone.folder == Path("runs/eval-001/eval/001")
    assert alone.metrics.keys() == found.metrics.keys()
    write_lines(Path("held_out.jsonl"), rows["eval"][:5])
    named = burnish.evaluate(str(run.weights), "held_out.jsonl", _digits(2), **short)
    assert len(named.rollouts) == 5
    given = {"model": str(run.weights), "data": {"train": rows["train"]}, "rollout": short["rollout"]}
    again = burnish.evaluate(given, rows["eval"], _digits(2), quiet=True)
    assert again.metrics == alone.metrics


def test_turns_are_read_as_in_data() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert _prompt(parts).messages == (Message("user", "hi"),)
    with pytest.raises(BurnishError, match="a turn of the conversation"):
        _prompt([{"role": "assistant", "content": None}])


@pytest.mark.slow
def test_a_plan_makes_nothing(fields: Fields, rows: Rows) -> None:
    found = burnish.plan({**fields, "data": rows["train"], "rewards": _digits(2)}, steps=7)
    assert (found.steps, found.optimizer_steps, found.config.output) == (7, 7, "runs/rl-001")
    assert "responses" in repr(found)
    assert not Path("runs").exists()
    with pytest.raises(BurnishError, match="asks for 'colour'"):
        burnish.plan({**fields, "rewards": lambda response, colour: 1.0})


@pytest.mark.slow
def test_autocast_of_the_caller_changes_nothing(
    fields: Fields, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that got bfloat16 from PyTorch's products in place of float32 would write beyond their tensors."""
    monkeypatch.setattr("burnish.rollouts.local.kernel_trial._layout", lambda *given: "ordinary")
    burnish.train(fields, output=str(tmp_path / "plain"), quiet=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = burnish.train(fields, output=str(tmp_path / "cast"), quiet=True)
        said = run.policy.generate("1+1=", max_response_tokens=4)
        assert torch.is_autocast_enabled("cpu")
    assert trace(tmp_path / "cast") == trace(tmp_path / "plain")
    assert said == burnish.load_run(tmp_path / "plain").policy.generate("1+1=", max_response_tokens=4)
