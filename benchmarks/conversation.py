"""What turns cost: conversations with keys and values kept between turns, without, and the same tokens in one turn; and
the loop's own share of a whole step of conversations (conversation_steps.py).

    python benchmarks/conversation.py                            # three shapes of conversations: some minutes
    python benchmarks/conversation.py --quick                    # few and short ones: some seconds
    python benchmarks/conversation.py --output FOLDER/name       # where the page and the numbers go

Random Llamas sample turns of equal length, which a script answers at once. "One turn" samples as many tokens as the
conversation has, answers included, without a pause. All ways take turns in each repeat, so a slow spell of the machine
hits all of them, and what counts is their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.append(str(Path(__file__).parent / "peers"))
from report import publish

import conversation_steps
from burnish.agents.conversation import Answer, Closed, ConversingEngine, Event, Opened, Talk
from burnish.models.weights import Weights
from burnish.rollouts.engine import KeepingEngine, OnFinished, Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.local.reusable_rows import KEEP_BYTES
from burnish.types import FinishReason, Message, Metric, Prompt, Rollout, RolloutRequest

VOCABULARY, PAD = 512, 0
SIZES = {"1 M": (128, 4, 4), "25 M": (512, 8, 8)}  # hidden size, layers, heads


@dataclass(frozen=True, slots=True)
class Case:
    """Conversations of `turns` turns: `prompts` prompts with `samples` each, and tokens of prompt, turn and answer."""

    name: str
    size: str
    turns: int
    prompt: int
    said: int
    answered: int
    prompts: int = 8
    samples: int = 8

    @property
    def tokens(self) -> int:
        """Of a conversation, without its prompt."""
        return self.turns * self.said + (self.turns - 1) * self.answered


CASES = (
    Case("a game: short turns and answers", "1 M", turns=8, prompt=64, said=16, answered=8),
    Case("tools: long turns and answers", "1 M", turns=5, prompt=128, said=48, answered=48, prompts=4),
    Case("tools, a larger model", "25 M", turns=4, prompt=128, said=24, answered=24, prompts=2),
)
QUICK = (replace(CASES[0], turns=4, prompts=2),)


class NoText:
    """Decoding text is not what is measured."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        return ""


class EqualTurns(KeepingEngine):
    """The local engine, with turns that end of themselves when they are as long as they may be."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        on_finished: OnFinished | None = None,
    ) -> list[Rollout]:
        rollouts = self.engine.generate(requests, sampling, seed=seed, step=step)
        return [replace(rollout, finish_reason=FinishReason.STOP) for rollout in rollouts]

    @contextmanager
    def keeping(self) -> Iterator[None]:
        with self.engine.keeping():
            yield

    def sync(self, weights: Weights) -> None:
        self.engine.sync(weights)

    def take_metrics(self) -> Mapping[str, Metric]:
        return self.engine.take_metrics()


@dataclass(slots=True)
class Script:
    """Says the same to every turn, at once, until the last one."""

    tokens: tuple[int, ...]
    turns: int
    ready: dict[tuple[int, int], Event] = field(default_factory=dict)

    def answering(self, *, seed: int, step: int) -> Script:
        return self

    def open(self, key: tuple[int, int], prompt: Prompt) -> None:
        self.ready[key] = Opened()

    def finish(self, key: tuple[int, int]) -> None:
        self.ready[key] = Closed()

    def close(self) -> None:
        pass

    def begin(self, key: tuple[int, int], turn: Rollout, number: int) -> None:
        ends = FinishReason.STOP if number == self.turns else None
        said = Message("assistant", turn.response)
        self.ready[key] = Answer(said, () if ends else self.tokens, messages=(Message("tool", ""),), ends=ends)

    def events(self, *, wait_for_all: bool) -> Mapping[tuple[int, int], Event]:
        found, self.ready = self.ready, {}
        return found

    def take_metrics(self) -> Mapping[str, Metric]:
        return {}


def build_model(size: str) -> Any:
    hidden, layers, heads = SIZES[size]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(config).eval()


def build_engine(model: Any, rows: int, keep_bytes: int) -> LocalEngine:
    return LocalEngine(
        model,
        tokenizer=NoText(),
        eos_token_ids=(),
        pad_token_id=PAD,
        context_length=2048,
        max_batch_rows=rows,
        keep_bytes=keep_bytes,
    )


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Median seconds of each way, what they read, and medians of the ratios within a repeat."""
    model, rows = build_model(case.size), case.prompts * case.samples
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(2, VOCABULARY, (case.prompts, case.prompt), generator=generator).tolist()
    requests = [RolloutRequest.of(f"p{i}", i, tuple(text), tuple(range(case.samples))) for i, text in enumerate(texts)]
    engines = {name: build_engine(model, rows, size) for name, size in (("kept", KEEP_BYTES), ("read again", 0))}
    ways = {name: conversing(case, engine, requests) for name, engine in engines.items()}
    ways["one turn"] = lambda step: engines["kept"].generate(requests, Sampling(case.tokens), seed=0, step=step)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    read: dict[str, int] = {}
    for step in range(-1, repeats):  # the first round is not counted
        for name, way in ways.items():
            engine = engines.get(name, engines["kept"])
            engine.take_metrics()
            started = time.perf_counter()
            rollouts = way(step + 1)
            seconds[name].append(time.perf_counter() - started)
            assert {len(rollout.response_tokens) for rollout in rollouts} == {case.tokens}
            read[name] = round(engine.take_metrics()["rollout/prefilled_tokens"].result() or 0)
    counted = {name: values[1:] for name, values in seconds.items()}
    row = {
        **asdict(case),
        "tokens": case.tokens,
        "repeats": repeats,
        "read": read,
        "seconds": {name: round(statistics.median(values), 3) for name, values in counted.items()},
        "kept_to_one_turn": ratio(counted["kept"], counted["one turn"]),
        "read_again_to_one_turn": ratio(counted["read again"], counted["one turn"]),
        "all_seconds": {name: [round(value, 3) for value in values] for name, values in counted.items()},
    }
    print(row, file=sys.stderr, flush=True)
    return row


def conversing(case: Case, engine: LocalEngine, requests: Sequence[RolloutRequest]) -> Callable[[int], list[Rollout]]:
    """All conversations, with the noise of a step."""
    answer = tuple(2 + i % (VOCABULARY - 2) for i in range(case.answered))
    talk = Talk(Script(answer, case.turns), turns=case.turns, turn_tokens=case.said)
    talks = {request.prompt_id: (talk, Prompt(request.prompt_id, text="")) for request in requests}
    conversations = ConversingEngine(EqualTurns(engine), talks, context_length=2048, decode=str)
    return lambda step: conversations.generate(requests, Sampling(case.tokens), seed=0, step=step)


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of what was measured next to each other."""
    return round(statistics.median(one / other for one, other in zip(seconds, others, strict=True)), 2)


def to_markdown(report: Mapping[str, Any]) -> str:
    about = (
        f"`{report['command']}` on {report['date']}: {report['processor']}, {report['threads']} threads, load average "
        f"{report['load_after']} after. Seconds are medians over repeats, and so are the ratios, of times measured "
        "next to each other. One turn samples as many tokens as the conversation has, answers included."
    )
    lines = ["# What turns cost", "", *textwrap.wrap(about, 120), ""]
    lines += [
        "| conversations | rows | turns | prompt + tokens each | tokens read: kept / again | one turn, s | kept | "
        "read again |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        read, seconds = row["read"], row["seconds"]
        numbers = [
            f"{row['name']} ({row['size']})",
            row["prompts"] * row["samples"],
            row["turns"],
            f"{row['prompt']} + {row['tokens']}",
            f"{read['kept']:,} / {read['read again']:,}",
            seconds["one turn"],
            f"{row['kept_to_one_turn']}x",
            f"{row['read_again_to_one_turn']}x",
        ]
        lines.append(f"| {' | '.join(map(str, numbers))} |")
    step = report["step"]
    words = (
        f"{step['workload']}: {step['steps']} steps of training, with metrics and rollouts written. Sampling is the "
        "engine's calls, training the passes and the update. The rest is the loop's own: "
        f"{conversation_steps.spread(step['own_shares'])} of the steps. Seconds and shares are medians. The tool takes "
        "microseconds: waiting for it is messages to its processes and back, and the time in which answers are "
        "gathered. It gives the same few hundred answers again and again, as games do, and a conversation remembers "
        "what the chat template writes for an answer. So the share is measured again with a tool whose answers are "
        f"all new ({conversation_steps.spread(step['own_shares_anew'])}). Collections of garbage leave imports out, "
        "as in the command."
    )
    lines += ["", "## The loop's own share of a step", "", *textwrap.wrap(words, 120), ""]
    lines += conversation_steps.to_lines(step)
    return "\n".join(lines) + "\n"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/conversation.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few and short conversations, one repeat")
    parser.add_argument("--repeats", type=int, default=5, help="of each case (default: 5)")
    parser.add_argument(
        "--steps", type=int, default=15, help="of training, for each of the loop's own shares (default: 15)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/conversation"), help="without the ending"
    )
    return parser.parse_args(words)


def main() -> None:
    options = parse()
    step = conversation_steps.measure_steps(2 if options.quick else options.steps)
    rows = [measure(case, 1 if options.quick else options.repeats) for case in (QUICK if options.quick else CASES)]
    publish("conversation", options.output, rows, to_markdown, threads=torch.get_num_threads(), step=step)


if __name__ == "__main__":
    main()
