"""The command line without training anything: exit codes, help, plan, algorithms, and what gets imported."""

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from burnish.api.training import move_aside
from burnish.cli import main
from burnish.cli.eval import metrics_table
from burnish.config.names import PAIR_LOSSES
from burnish.config.presets import PRESETS
from burnish.outside.listening import listening

from .conftest import Run

RUN = "model: m\ndata: {train: train.jsonl}\nrewards: exact\nsteps: 4\nrollout: {prompts_per_step: 2, group_size: 3}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a run file and its data."""
    (tmp_path / "run.yaml").write_text(RUN)
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.mark.parametrize("command", ["rl", "sft", "rm", "eval", "plan", "check", "algorithms", "report", "doctor"])
def test_help_of_every_command_has_examples(command: str, run: Run) -> None:
    text = run(command, "--help")
    assert "Examples" in text
    assert f"burnish {command}" in text.partition("Examples")[2]


def test_help_explains_the_sizes(run: Run) -> None:
    text = run("rl", "--help")
    for word in ("rollout.prompts_per_step", "rollout.group_size", "optimization.minibatches", "tokens_per_microbatch"):
        assert word in text


def test_plan_shows_the_arithmetic(folder: Path, run: Run) -> None:
    text = run("plan", "run.yaml", "optimization.epochs=2")
    assert "2 prompts x 3 (rollout.group_size)" in text
    assert "4 steps x 2" in text  # optimizer steps: 2 epochs x 1 minibatch
    assert "8 prompts drawn / 8 in data.train" in text
    assert "command line" in text
    assert "preset grpo" in text
    assert "is not a local model folder" in text


ELSEWHERE = """\
model: {path: Qwen/Qwen2.5-7B-Instruct, dtype: bfloat16, device: cuda}
data: {train: nowhere/train.jsonl, eval: nowhere/heldout.jsonl}
rewards: [{name: nowhere/reward.py:score}]
algorithm: {preset: grpo, kl_coef: 0.001}
steps: 200
rollout: {prompts_per_step: 128, engine: vllm, max_prompt_tokens: 512, max_response_tokens: 1024, vllm: {python: no}}
logging: {sinks: [wandb]}
cluster: {backend: ray, trainers: 8, rollout_workers: 8}
"""


def test_a_plan_for_another_machine_refuses_nothing_that_this_one_lacks(folder: Path, run: Run) -> None:
    (folder / "run.yaml").write_text(ELSEWHERE)
    found = run("plan", "run.yaml", "--on", "2x8xH100-80GB", "--json", "--price", "2.5")
    plan = json.loads(found)
    assert plan["fit"]["fits"] is False
    assert plan["fit"]["words"] == ["model.gradient_checkpointing=true"]
    assert plan["machine"]["nodes"] == 2
    assert len(plan["machine"]["gpu_bytes"]) == 16
    assert plan["time"]["step_seconds"] == pytest.approx(sum(phase["seconds"] for phase in plan["time"]["phases"]))
    assert plan["changed_time"]["cost"] > 0
    assert {"data.train.0: 'nowhere/train.jsonl' is not on this machine", "the data are not counted"} <= set(
        plan["notes"]
    )
    kinds = {row["kind"] for table in plan["tables"] for row in table["rows"]}
    assert {"weights", "masters", "gradients", "Adam", "activations", "logits", "KV cache"} <= kinds


@pytest.mark.parametrize(("word", "said"), [("--response-tokens", "at most rollout.max"), ("--price", "--price")])
def test_a_plan_refuses_a_number_that_it_cannot_use(word: str, said: str, folder: Path, run: Run) -> None:
    (folder / "run.yaml").write_text(ELSEWHERE)
    assert said in run("plan", "run.yaml", "--on", "8xH100-80GB", word, "inf", code=2)


def test_a_plan_for_another_machine_fits_80_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.yaml").write_text(ELSEWHERE)
    for on in ("24xH100-80GB", "2x4GB"):
        assert main(["plan", "run.yaml", "rollout.group_size=4", "--on", on]) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        assert f"does not fit {on}" in text
        assert ("  burnish rl run.yaml rollout.group_size=4 " in text) is (on != "2x4GB")  # too small for any change
        assert ("16 of 24 cards are used" in text) is (on != "2x4GB")
    assert "the time is unknown" in text


def test_the_page_on_clusters_has_what_the_plan_of_its_example_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text().partition("## Two nodes of eight GPUs")[2]
    file, command = page.split("```yaml\n")[1].split("```\n")[0], page.split("`burnish ")[1].split("`")[0]
    (folder / "run.yaml").write_text(file)
    assert main(command.split()) == 0
    assert page.split("```text\n")[1].split("\n\nfits")[0] in capsys.readouterr().out


def test_a_plan_for_another_machine_of_data_that_are_not_here(folder: Path, run: Run) -> None:
    """What the keys of a file do not say, its other fields do."""
    given = "model: Qwen/Qwen3-0.6B\ndata: {train: no.jsonl}\n"
    (folder / "rm.yaml").write_text(given + "optimization: {comparisons_per_batch: 16}\n")
    (folder / "sft.yaml").write_text(given + "optimization: {tokens_per_batch: 8192}\n")
    (folder / "both.yaml").write_text(given + "optimization: {comparisons_a_batch: 16}\n")
    assert "comparisons 16" in run("plan", "rm.yaml", "--on", "H100")
    assert "fits H100" in run("plan", "sft.yaml", "--on", "H100", "model.dtype=bfloat16")
    assert "comparisons_a_batch" in run("plan", "both.yaml", "--on", "H100", code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "8xH1000"], "the card 'H1000' is not known"),
        (["--on", "H100", "--simulate"], "--on has no effect with --simulate"),
        (["--on", "H100", "rollout.prompts_per_step=0"], "prompts_per_step"),
        (["--on", "H100", "rollout.max_response_tokens=40000"], "which leaves no room for a prompt"),
        (["--on", "H100", "rollout.group_size=1"], "rollout.group_size is 1"),
    ],
)
def test_what_a_plan_for_another_machine_refuses(folder: Path, run: Run, words: list[str], message: str) -> None:
    (folder / "run.yaml").write_text(ELSEWHERE)
    assert message in run("plan", "run.yaml", *words, code=2)


def test_plan_warns_where_bfloat16_is_emulated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = "model.dtype is bfloat16: bfloat16 is emulated on this processor, several times slower than float32"
    monkeypatch.setenv("BURNISH_WITHOUT", "bfloat16")
    for words, warns in ((["model.dtype=bfloat16", "model.device=cpu"], True), (["model.device=cpu"], False)):
        text = run("plan", "run.yaml", *words)
        assert (warning in text) is warns
        assert ("set model.dtype: float32" in text) is warns


def test_plan_of_a_supervised_run(folder: Path, run: Run) -> None:
    (folder / "sft.yaml").write_text("model: m\ndata: {train: train.jsonl}\nsteps: 7\n")
    text = run("plan", "sft.yaml")
    assert "optimizer steps 7 steps" in text
    assert "examples 8 " in text


def test_eval_takes_one_checkpoint(run: Run, folder: Path) -> None:
    (folder / "runs" / "x@1").mkdir(parents=True)
    assert "runs/x@1 is not the folder of a run" in run("eval", "runs/x@1", "--step", "4", code=2)
    assert "runs/x@2 names a checkpoint already" in run("eval", "runs/x@2", "--step", "4", code=2)


PAIRS = [{"prompt": f"{n}?", "chosen": "right", "rejected": "wrong"} for n in range(6)]
TORN = {"prompt": "6?", "chosen": "same", "rejected": "same"}


@pytest.fixture(params=["model here", "model elsewhere"])
def rm_model(request: pytest.FixtureRequest, save_tiny_llama: Callable[..., Path]) -> str:
    """A local model, whose tokenizer encodes the rows, or the name of one that would be downloaded."""
    return str(save_tiny_llama("0123456789?rightwons amelx")) if request.param == "model here" else "m"


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([*PAIRS, TORN], [], "pairs.jsonl:7: chosen and rejected are identical"),
        ([*PAIRS, {"chosen": "x"}], [], "pairs.jsonl:7"),
        ([*PAIRS, {**PAIRS[0], "tie": True}], [], "pairs.jsonl:7: the responses are tied"),
        (PAIRS, ["data.train=missing.jsonl"], "missing.jsonl"),
        (PAIRS, ["logging.sinks=[wandbb]"], "wandbb"),
        (PAIRS, ["model=./nowhere"], "model.path './nowhere' does not exist"),
    ],
)
def test_plan_refuses_what_rm_refuses(
    folder: Path, rm_model: str, run: Run, rows: list[dict], words: list[str], message: str
) -> None:
    if "tie" in rows[-1]:
        rows = [{**row, "tie": "tie" in row} for row in rows]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rm.yaml").write_text(f"model: {rm_model}\ndata: {{train: pairs.jsonl}}\nloss: bradley_terry\n")
    assert message in run("plan", "rm.yaml", *words, code=2)


def test_plan_of_rm_counts_what_is_left(folder: Path, rm_model: str, run: Run) -> None:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*PAIRS, TORN]))
    (folder / "rm.yaml").write_text(f"model: {rm_model}\ndata: {{train: pairs.jsonl}}\nloss: bradley_terry\n")
    assert "comparisons 6 data.train" in run("plan", "rm.yaml", "bad_rows=drop")


@pytest.mark.slow_cases("sft")
@pytest.mark.parametrize("kind", ["rl", "sft", "rm"])
def test_plan_counts_and_names_prompts_that_come_twice(
    folder: Path, save_tiny_llama: Callable[..., Path], run: Run, kind: str
) -> None:
    model = save_tiny_llama("0123456789?ab")
    asked = {"train": ["1?", "2?", "1?", "3?"], "eval": ["3?", "9?"]}
    for name, prompts in asked.items():
        told = {"chosen": "a", "rejected": "b"} if kind == "rm" else {"completion": "a"}
        rows = [{"prompt": prompt, "answer": "a", **told} for prompt in prompts]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {
        "rl": "rewards: exact\nrollout: {max_prompt_tokens: 8, max_response_tokens: 8}",
        "sft": "max_tokens: 16",
        "rm": "loss: bradley_terry",
    }[kind]
    (folder / "both.yaml").write_text(f"model: {model}\ndata: {{train: train.jsonl, eval: eval.jsonl}}\n{own}\n")
    said = run("plan", "both.yaml")
    assert "1 of 2 held-out prompts are training prompts too: eval:0 is train:3" in said
    assert "1 of 4 training prompts repeat an earlier one: train:2 repeats train:0" in said


def test_plan_takes_comparisons_for_a_reward_model_where_no_key_says_so(
    folder: Path, save_tiny_llama: Callable[..., Path], run: Run
) -> None:
    model = save_tiny_llama("0123456789?ab")
    rows = [{"prompt": f"{number}?", "chosen": "a", "rejected": "b"} for number in range(8)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "bare.yaml").write_text(f"model: {model}\ndata: {{train: pairs.jsonl}}\n")
    assert "comparisons" in run("plan", "bare.yaml")


def test_check_passes_gold_answers_and_shows_the_data(run: Run) -> None:
    text = run("check", "run.yaml")
    assert "8 of 8 gold answers reach the top score 1 (judged by: exact)" in text
    assert "train.jsonl" in text


@pytest.mark.slow
def test_check_reports_gold_answers_that_fail(folder: Path, run: Run) -> None:
    (folder / "strict.py").write_text("def strict(response, answer):\n    return 0.5 if answer == '3' else 1.0\n")
    text = run("check", "run.yaml", "rewards=strict.py:strict", code=1)
    assert "7 of 8 gold answers" in text
    assert "0.5" in text


@pytest.mark.slow
def test_check_without_a_reward_that_reads_answers_shows_what_gold_answers_get(folder: Path, run: Run) -> None:
    (folder / "own.py").write_text("def short(response):\n    return 1.0 - 0.25 * len(response)\n")
    said = run("check", "run.yaml", "rewards=own.py:short")
    assert "no reward compares with an answer (--top-score judges the total); 8 of 8 gold answers can be scored" in said
    assert "short 0.75 0.75 8" in said
    said = run("check", "run.yaml", "rewards=own.py:short", "--top-score", "1", code=1)
    assert "0 of 8 gold answers reach the top score 1 (judged by: the total)" in said


@pytest.mark.slow
def test_check_goes_on_after_a_domain_without_gold_answers(folder: Path, run: Run) -> None:
    (folder / "talk.jsonl").write_text('{"prompt": "hello"}\n{"prompt": "bye"}\n')
    (folder / "own.py").write_text("def short(response):\n    return 1.0 - 0.25 * len(response)\n")
    talk = "{train: talk.jsonl, rewards: 'own.py:short', evaluation: {success: short}}"
    (folder / "two.yaml").write_text(
        f"model: m\ndomains:\n  talk: {talk}\n  sums: {{train: train.jsonl, rewards: exact}}\n"
    )
    said = run("check", "two.yaml")
    talked, _, summed = said.partition("domains.sums.train")
    assert "nothing to check: no row has a gold answer, and no reward compares with one" in talked
    assert "0 of 0" not in talked
    assert "8 of 8 gold answers reach the top score 1 (judged by: exact)" in summed
    said = run("check", "two.yaml", "domains.talk.rewards=exact", "domains.talk.evaluation.success=null", code=2)
    assert "none of the 2 rows of domains.talk.train has a gold answer" in said


@pytest.mark.slow
def test_check_tries_what_solves_nothing_on_rows_without_gold_answers(folder: Path, run: Run) -> None:
    pytest.importorskip("jsonschema", reason="jsonschema is not installed (pip install 'burnish[json-schema]')")
    rows = [{"prompt": "a", "json_schema": {"type": "object"}}, {"prompt": "b", "json_schema": {"type": "number"}}]
    (folder / "json.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run("check", "run.yaml", "rewards=json_schema", "data.train=json.jsonl", code=1)
    assert "nothing to check: no row has a gold answer" in said
    assert "which the policy would learn to write: 2" in said  # {} and 0


def test_check_reads_options_from_the_column_that_a_domain_names(folder: Path, run: Run) -> None:
    row = {"prompt": "Which is blue?", "endings": ["grass", "the sky"], "answer": 1}
    (folder / "choice.jsonl").write_text(json.dumps(row) + "\n")
    quiz = "{train: choice.jsonl, rewards: {name: choice, options: {column: endings}}}"
    (folder / "quiz.yaml").write_text(f"model: m\ndomains:\n  quiz: {quiz}\n")
    assert "1 of 1 gold answers reach the top score 1 (judged by: choice)" in run("check", "quiz.yaml")


@pytest.mark.slow
def test_check_judges_each_reward_and_says_when_none_can_count_as_solved(folder: Path, run: Run) -> None:
    (folder / "own.py").write_text(
        "def half(response, answer):\n    return 0.5\n\n\ndef double(response, answer):\n    return 2.0\n"
    )
    mixed = "rewards=[own.py:half,own.py:double]"
    said = run("check", "run.yaml", mixed, code=1)  # 2.5 in all, but half stays below its best
    assert "0 of 8 gold answers reach the top score 1 (judged by: half, double)" in said
    assert "half 0.5, below 1" in said
    assert "no gold answer counts as solved (half at least 1 and double at least 1), so accuracy" in said
    words = ["evaluation.success=half", "evaluation.success_score=0.5"]
    said = run("check", "run.yaml", mixed, *words, code=1)
    assert "8 of 8 gold answers count as solved (half at least 0.5)" in said
    said = run("check", "run.yaml", "evaluation.success_score=2", code=2)
    assert "which 'exact' cannot reach: it gives at most 1" in said


def test_check_names_a_reward_whose_domain_no_prompt_belongs_to(run: Run) -> None:
    said = run("check", "run.yaml", "rewards=[{name: exact, domains: [trian]}]", code=2)
    assert "reward 'exact' is for the domain 'trian', but no training prompt belongs to it" in said
    assert "did you mean 'train'?" in said


def test_success_names_a_reward_or_the_nearest(run: Run) -> None:
    said = run("check", "run.yaml", "evaluation.success=exakt", code=2)
    assert "evaluation.success is 'exakt', which is not the label of a reward" in said
    assert "did you mean 'exact'?" in said
    said = run("check", "run.yaml", "rewards=model:rm", "evaluation.success=model", code=2)
    assert "evaluation.success_score is not set" in said


def test_check_needs_the_tokenizer_for_a_judged_reward_that_reads_tokens(folder: Path, run: Run) -> None:
    (folder / "own.py").write_text("def dense(answer, response_tokens):\n    return 1.0\n")
    words = ["check", "run.yaml", "model=./nowhere"]
    assert "model.path './nowhere' does not exist" in run(*words, "rewards=own.py:dense", code=2)
    said = run(*words, "rewards=[exact,length]", "rewards.1.options.maximum=3")
    assert "length sees words instead of tokens, and is not judged" in said
    assert "8 of 8 gold answers reach the top score 1 (judged by: exact)" in said


def test_check_lists_the_built_in_rewards(run: Run) -> None:
    assert "math" in run("check", "--list")


@pytest.mark.parametrize("name", [*PRESETS, "ppo_clip", "gae", "tis", "simpo", "kto"])
def test_every_algorithm_is_explained_with_its_source(name: str, run: Run) -> None:
    assert "https://" in run("algorithms", name)


def test_all_presets_are_listed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    text = run("algorithms")
    assert all(name in text for name in (*PRESETS, *PAIR_LOSSES))


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.config.loading.load_run_file", Mock(side_effect=KeyboardInterrupt))
    assert main(["plan", "run.yaml"]) == 130


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnish.config.loading.load_run_file", Mock(side_effect=RuntimeError("a defect")))
    with pytest.raises(RuntimeError, match="a defect"):
        main(["plan", "run.yaml"])


def test_an_earlier_run_is_moved_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    console = Console(quiet=True)
    for content in ("first", "second"):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "metrics.jsonl").write_text(content)
        move_aside(tmp_path / "run", console)
    assert not (tmp_path / "run").exists()
    kept = [(tmp_path / f"run.old-{n}" / "metrics.jsonl").read_text() for n in (1, 2)]
    assert kept == ["first", "second"]
    move_aside(tmp_path / "run", console)


def test_evaluation_table_has_a_column_for_each_domain_and_names_the_parts_of_a_reward() -> None:
    """Also what only one domain measures."""
    of_all = {"eval/accuracy": 0.5, "eval/part/brief": 1.0, "eval/part/brief/words": 0.25}
    of_domains = {"eval/domain/a/b/accuracy": 1.0, "eval/domain/c/accuracy": 0.0, "eval/domain/c/pass@2": 1.0}
    assert metrics_table(of_all | of_domains) == [
        ("metric", "all", "a/b", "c"),
        ("accuracy", "0.5", "1", "0"),
        ("part/brief", "1", "", ""),
        ("part/brief/words", "0.25", "", ""),
        ("pass@2", "", "", "1"),
    ]


def test_a_sandbox_at_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["sandbox", "serve", "--port", str(port)]) == 2
    said = capsys.readouterr()
    assert (f"cannot listen on 127.0.0.1, port {port}" in said.err, said.out) == (True, "")


def test_a_sandbox_for_others_needs_a_token(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("SHORT", "secret")
    for words, said in (
        (["--host", "0.0.0.0"], "would run programs for everyone"),
        (["--token-variable", "SHORT"], "SHORT holds no token"),
        (["--tier", "namespace"], "did you mean 'namespaces'"),
    ):
        assert said in run("sandbox", "serve", *words, code=2)
    assert "burnish sandbox serve --processes 8" in run("sandbox", "serve", "--help")
