"""What several processes gain and cost on this machine.

    python benchmarks/cluster.py                      # about twenty minutes on two free cores
    python benchmarks/cluster.py --only update push   # some of it

update      an update of a model with 56 million weights: one process against two, one thread each, sharded or not
push        its weights (224 MB) from a process to two others: written, checked, and taken over by an engine in each
controller  CPU seconds of the process of the command while two others train and sample, per second of a step
overlap     one trainer and one rollout worker, one step ahead, one thread each, against one process with two threads
ahead       held-out accuracy at the end of the demo, sampled 0, 1 and 2 steps ahead

Runs are `burnish rl` on random weights with a reward that costs nothing; the first step of each is left out. Writes
OUTPUT.md and OUTPUT.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "peers"))
from report import publish

RUN: dict[str, Any] = {
    "seed": 1,
    "rewards": {"name": "length", "options": {"maximum": 24}},
    "algorithm": {"preset": "grpo", "kl_in": "none"},
    "checkpoint": {"every_steps": None},
    "optimization": {"learning_rate": 1e-6},
}
BIG = {"rollout": {"prompts_per_step": 8, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 32}}
MANY = {"rollout": {"prompts_per_step": 8, "group_size": 20, "max_prompt_tokens": 8, "max_response_tokens": 48}}
SMALL = {"rollout": {"prompts_per_step": 64, "group_size": 16, "max_prompt_tokens": 8, "max_response_tokens": 40}}


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="cluster-") as made:
        folder = Path(made)
        write_task(folder)
        measurements: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
            "update": updates,
            "push": pushes,
            "controller": controllers,
            "overlap": overlaps,
            "ahead": ahead,
        }
        rows = [row for name, measure in measurements.items() if name in options.only for row in measure(folder)]
    publish("cluster", options.output, rows, to_markdown)


def updates(folder: Path) -> list[dict[str, Any]]:
    """Seconds of an update of few and of many tokens, on one process and on two. What trainers exchange, and the
    optimizer's step, take the same time for both."""
    layouts = {
        "one process": {},
        "two trainers": {"trainers": 2},
        "two trainers, sharding: optimizer": {"trainers": 2, "sharding": "optimizer"},
    }
    found = []
    for size, steps, fields in (("few", 5, BIG), ("many", 3, MANY)):
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in layouts}
        for turn in range(2):  # in turns, so that all of them see the machine as busy as it is
            for name, cluster in layouts.items():
                run = f"{name}-{size}-{turn}"
                rows[name] += train(folder, "big", run, steps, fields, {"lanes": 2, "threads": 1, **cluster})
        seconds = {name: [row["time/update_seconds"] for row in found_rows] for name, found_rows in rows.items()}
        one = seconds["one process"]
        tokens = statistics.median(row["rollout/response_tokens_sum"] for row in rows["one process"])
        for name, taken in seconds.items():
            rate, best = statistics.median(one) / statistics.median(taken), min(one) / min(taken)
            what = f"update, 56 million weights, {tokens:,.0f} tokens: {name}"
            found.append(timed(what, taken, f"{rate:.2f}x the rate of one; the fastest {best:.2f}x that of one"))
    return found


def pushes(folder: Path) -> list[dict[str, Any]]:
    """Seconds until two other processes sample with new weights."""
    from burnish.distributed.peers import ProcessSpec
    from burnish.distributed.processes import RoleProcess
    from burnish.distributed.weight_transfer import SharedWeights
    from burnish.models.loading import load_model
    from burnish.models.weights import Weights
    from burnish.trainers.rl.setup.remote_roles import engine_role

    config = load(folder, "big", "push", 1, BIG, {"threads": 1})
    loaded = load_model(config.model)
    found = []
    with ThreadPoolExecutor(2) as both:
        seats = [ProcessSpec(f"rollout worker {n}", engine_role, (config,)) for n in range(2)]
        processes = [RoleProcess(seat, threads=1) for seat in seats]
        engines = [process.role("engine", seconds=60.0) for process in processes]
        try:
            for version in range(1, 8):
                began = time.perf_counter()
                shared = SharedWeights.write(Weights.of(loaded.model, version))
                list(both.map(lambda engine, weights=shared: engine.load(weights), engines))
                found.append(time.perf_counter() - began)
        finally:
            for process in processes:
                process.close()
    megabytes = shared.layout.num_bytes / 1e6
    return [timed(f"push of {megabytes:.0f} MB to two rollout workers", found[1:], "written, checked and taken over")]


def controllers(folder: Path) -> list[dict[str, Any]]:
    """The command's own share of the time of a step."""
    found = []
    for layout in ({"trainers": 2}, {"trainers": 1, "rollout_workers": 1}, {"trainers": 2, "rollout_workers": 2}):
        output, log = folder / f"controller-{len(found)}", folder / "controller.log"
        load(folder, "big", output.name, 8, BIG, {"threads": 1, **layout})
        with log.open("w") as said:
            run = subprocess.Popen(command(folder, output.name), stdout=said, stderr=said)
            marks = {}
            while run.poll() is None:
                steps = len(rows_of(output))
                if steps and steps not in marks:
                    marks[steps] = (time.monotonic(), cpu_seconds(run.pid))
                time.sleep(0.02)
        first, last = marks[2], marks[max(steps for steps in marks if steps < 8)]
        share = (last[1] - first[1]) / (last[0] - first[0])
        holds = "with the trainer's own work" if layout.get("trainers") == 1 else "loop, data, rewards, files"
        name = ", ".join(f"{key}: {value}" for key, value in layout.items())
        found.append({"name": f"controller, {name}", "value": f"{share:.1%} of a core", "remark": holds})
    return found


def overlaps(folder: Path) -> list[dict[str, Any]]:
    """Tokens per second with sampling next to training, against one process with the same cores."""
    layouts: dict[str, tuple[dict[str, Any], int]] = {
        "one process, two threads": ({"threads": 2}, 0),
        "one trainer, one rollout worker, max_staleness: 0": ({"rollout_workers": 1, "threads": 1}, 0),
        "one trainer, one rollout worker, max_staleness: 1": ({"rollout_workers": 1, "threads": 1}, 1),
        "two trainers that sample": ({"trainers": 2, "threads": 1}, 0),
    }
    found = []
    for name, (cluster, staleness) in layouts.items():
        rows = train(folder, "small", name, 12, {**SMALL, "max_staleness": staleness}, {"lanes": 2, **cluster})[1:]
        rates = [row["throughput/response_tokens_per_second"] for row in rows]
        waited = statistics.median(row.get("time/wait_seconds", 0.0) for row in rows)
        step = statistics.median(row["time/step_seconds"] for row in rows)
        remark = f"step {step:.2f} s" + (f", of which the policy waits {waited:.2f} s" if staleness else "")
        value = f"{statistics.median(rates):,.0f} tokens/s"
        found.append({"name": name, "value": value, "remark": remark})
    return found


def ahead(folder: Path) -> list[dict[str, Any]]:
    """What the demo has learned at its end. The last evaluations are averaged, because single ones go up and down."""
    from burnish.demo import DemoFolder

    found = []
    for seed in (1, 2):
        demo = DemoFolder(folder / f"demo-{seed}")
        asked("demo", "--output", str(demo.path), "--seed", str(seed))
        for staleness in (0, 1, 2):
            output = demo.path / f"ahead-{staleness}"
            asked("rl", str(demo.rl_file), f"output={output}", f"max_staleness={staleness}", "cluster.threads=1")
            curve = [row["eval/accuracy"] for row in rows_of(output) if "eval/accuracy" in row]
            remark = f"mean of the last three evaluations; the last one {curve[-1]:.1%}"
            name = f"demo, seed {seed}, max_staleness: {staleness}"
            found.append({"name": name, "value": f"{statistics.mean(curve[-3:]):.1%} right", "remark": remark})
    return found


def asked(*words: str) -> None:
    """Run `burnish` with these words."""
    done = subprocess.run([sys.executable, "-m", "burnish", *words], capture_output=True, text=True, timeout=1_800)
    if done.returncode:
        raise SystemExit(f"burnish {' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def write_task(folder: Path) -> None:
    """The demo's additions and untrained model, and a model of 56 million weights with the same characters."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from burnish.demo import DemoFolder, write_data, write_model

    demo = DemoFolder(folder / "demo")
    write_data(demo, 1)
    write_model(demo.model, 1)
    config = AutoConfig.from_pretrained(demo.model)
    config.update({"vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1_376, "num_hidden_layers": 8})
    config.update({"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": False})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "big")
    AutoTokenizer.from_pretrained(demo.model).save_pretrained(folder / "big")


def train(
    folder: Path, model: str, name: str, steps: int, fields: Mapping[str, Any], cluster: Mapping[str, Any]
) -> list[dict[str, float]]:
    """The metrics of a run's steps after the first."""
    name = name.replace(" ", "-").replace(":", "").replace(",", "")
    load(folder, model, name, steps, fields, cluster)
    asked("rl", str(folder / f"{name}.yaml"))
    return rows_of(folder / name)[1:]


def load(folder: Path, model: str, name: str, steps: int, fields: Mapping[str, Any], cluster: Mapping[str, Any]) -> Any:
    """Write a run file, and read it."""
    from burnish.config.loading import load_run_file
    from burnish.demo import DemoFolder

    demo = DemoFolder(folder / "demo")
    data = {
        **RUN,
        **fields,
        "output": str(folder / name),
        "steps": steps,
        "model": {"path": str(demo.model if model == "small" else folder / model), "device": "cpu"},
        "data": {"train": str(demo.train)},
        "cluster": dict(cluster),
    }
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")  # JSON is YAML
    return load_run_file(file, (), "rl").config


def command(folder: Path, name: str) -> list[str]:
    return [sys.executable, "-m", "burnish", "rl", str(folder / f"{name}.yaml")]


def rows_of(folder: Path) -> list[dict[str, float]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(name: str, seconds: Sequence[float], remark: str) -> dict[str, Any]:
    spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
    return {"name": name, "value": f"{statistics.median(seconds):.3f} s ({spread})", "remark": remark}


def to_markdown(report: Mapping[str, Any]) -> str:
    about = (
        f"`{report['command']}` on {report['date']}: {report['processor']}, {report['cores']} cores, load average "
        f"{report['load_after']} after. Medians, and the fastest and the slowest."
    )
    lines = ["# Several processes on this machine", "", *textwrap.wrap(about, 120), "", "| what | measured | |"]
    lines.append("|---|---|---|")
    lines += [f"| {row['name']} | {row['value']} | {row['remark']} |" for row in report["rows"]]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    parts = ("update", "push", "controller", "overlap", "ahead")
    parser = argparse.ArgumentParser(
        prog="python benchmarks/cluster.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="what to measure (default: all)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/cluster"), help="without the ending")
    return parser.parse_args()


if __name__ == "__main__":
    main()
