"""`burnish check FILE`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.cli.arguments import Overrides
from burnish.cli.tables import show_table
from burnish.errors import ConfigError, DataError, ModelError, OutageError
from burnish.observability.console import number_text, say

if TYPE_CHECKING:
    from burnish.config.domains import DomainSettings, Split
    from burnish.config.schema import RewardConfig, RlConfig, RunConfig
    from burnish.config.schema_evaluation import RlEvaluationConfig
    from burnish.planning.plan import Preview
    from burnish.rewards import GoldReport, ProcessRewardScorer
    from burnish.rewards.gold import Encode, WeakTests
    from burnish.rewards.pair_agreement import ScoredPair
    from burnish.rewards.success import Success
    from burnish.types import Json, Prompt, Rollout

File = Annotated[str | None, typer.Argument(metavar="FILE", help="Run file (YAML).", show_default=False)]
ListRewards = Annotated[bool, typer.Option("--list", help="List the built-in rewards and their options.")]
TopScore = Annotated[
    float | None, typer.Option(help="Total score that a gold answer must reach (default: each reward's top score).")
]
PairReward = Annotated[
    str | None, typer.Option("--reward", help="Reward to compare preference pairs with, written as in a run file.")
]
Show = Annotated[int, typer.Option(help="Number of failing rows to show.", min=0)]

EXIT_FOUND_SOMETHING = 1
_ENDPOINT_SECONDS = 10.0
"""Patience of a check with a teacher at an endpoint."""


def check_rewards(
    file: File = None,
    overrides: Overrides = None,
    list_rewards: ListRewards = False,
    top_score: TopScore = None,
    show: Show = 10,
    reward: PairReward = None,
) -> None:
    """Score the gold answers of the data before training.

    A reward that fails on gold answers would teach the wrong thing. The command
    also shows how each data file was read, and how each reward scores the gold
    answers. No weights are loaded. Rewards that read tokens need the model's
    tokenizer. Judges are asked only about rows that a human has judged (option
    labels), and their agreement is shown. The exit code is 1 if a gold answer
    does not reach the top score, or if a row rewards a program or JSON value
    that solves nothing.

    Run files of other kinds have no gold answers: their data are read, and
    refused if training would refuse them. Comparisons for [bold]burnish prefer[/bold] are
    searched for repeats, contradictions and lengths that give the answer away.
    With --reward, all responses are scored: how often does the better one score
    higher, and where does it not? The option takes the same values as [bold]rewards[/bold]
    in a run file: a built-in, a function, a reward model or a judge.

    [bold]Examples[/bold]
    burnish check run.yaml
    burnish check run.yaml data.train.0.limit=200 --show 3
    burnish check prefer.yaml --reward model:runs/rm@best
    burnish check --list
    """

    from burnish.cli.arguments import load_any_run_file
    from burnish.config.kinds import find_kind, load

    console = Console()
    if top_score is not None and not math.isfinite(top_score):
        raise typer.BadParameter(f"{top_score} is not a score", param_hint="--top-score")
    if list_rewards:
        return _list_rewards(console)
    if file is None:
        raise ConfigError("no run file is given", remedy="burnish check FILE, or burnish check --list")
    from burnish.trainers.chaining import pinned

    config, chained = pinned(load_any_run_file(file, overrides or ()).config)
    say(console, chained)
    if reward is not None:
        _check_pairs(config, reward, show, console)
    if load(find_kind(config.kind).check)(config, top_score, show, console):
        raise typer.Exit(EXIT_FOUND_SOMETHING)
    return None


def check_data(config: RunConfig, top_score: float | None, show: int, console: Console) -> int:
    """Read the data of a run without gold answers, and refuse what training would refuse."""
    from burnish.config.kinds import find_kind, load
    from burnish.trainers.placement import model_facts

    found: Preview = load(find_kind(config.kind).preview)(config, model_facts(config), here=True)
    console.print(f"data.train can be used: {found.rows or 'an unknown number of'} rows", highlight=False)
    say(console, found.notes)
    return 0


def _check_pairs(config: RunConfig, reward: str, show: int, console: Console) -> None:
    """Print how the pairs of a run agree with a reward, and the largest disagreements."""
    from burnish.config.loading import load_run_data
    from burnish.config.schema import RlConfig
    from burnish.config.schema_rm import ComparedFields
    from burnish.data.preferences import load_preferences
    from burnish.data.prompts import read_prompts
    from burnish.models.tokenizers import load_tokenizer
    from burnish.rewards import ProcessRewardScorer
    from burnish.rewards.pair_agreement import pair_agreement
    from burnish.rollouts.answering import open_model
    from burnish.trainers.chaining import pinned

    if not isinstance(config, ComparedFields):
        raise ConfigError(f"--reward is for pairs, and a run of `{config.kind}` has none", remedy="leave it out")
    needed: dict[str, Json] = {"output": config.output, "model": config.model.path, "data": {"train": "pairs"}}
    rewarded = pinned(load_run_data(needed, [f"rewards={reward}"], RlConfig.kind).of(RlConfig))[0]
    tokenizer = load_tokenizer(config.model)
    sources = [*config.data.train, *config.data.eval]
    found = load_preferences(sources, config, tokenizer=tokenizer, max_tokens=config.max_tokens)
    # Comparisons have no role for an answer, but may have the column.
    prompts = [replace(one, answer=one.columns.get("answer", one.answer)) for one in read_prompts(sources)[0]]
    scoring = rewarded.scoring.model_copy(update={"max_failure_fraction": 1.0})
    with ProcessRewardScorer(rewarded.rewards, scoring, sandbox=rewarded.sandbox, open_model=open_model) as scorer:
        scorer.check_prompts(prompts)
        say(console, scorer.attach_policy(tokenizer))
        agreement = pair_agreement(found.examples, {prompt.id: prompt for prompt in prompts}, tokenizer, scorer)
    say(console, [f"{', '.join(scorer.labels)}: {line}" for line in agreement.lines()])
    _show_disagreements(agreement.disagreements()[:show], console)


def _show_disagreements(pairs: Sequence[ScoredPair], console: Console) -> None:
    headings = ("row", "score", "the better response", "score", "the worse response")
    rows = [(pair.row, *_scored(pair.better), *_scored(pair.worse)) for pair in pairs]
    if rows:
        show_table(console, headings, rows)


def _scored(rollout: Rollout) -> tuple[str, str]:
    return f"{rollout.reward:.4g}", _short(rollout.response)


def check_gold_answers(config: RlConfig, top_score: float | None, show: int, console: Console) -> int:
    """Check the gold answers of every domain. Returns the number of failures."""
    from burnish.config.domains import domain_settings, used_domains

    if config.teacher_endpoints:
        _ask_teachers(config, console)
    failing = 0
    judged: dict[str, tuple[RewardConfig, list[Prompt]]] = {}
    for split in ("train", "eval"):
        for domain in used_domains(config, domain_settings(config), split):
            failed, prompts = _check_domain(config, domain, split, top_score, show, console)
            failing += failed
            for judge in _judges(domain):
                judged.setdefault(judge.log_label, (judge, []))[1].extend(prompts)
    for judge, prompts in judged.values():
        _show_agreement(config, judge, prompts, console)
    return failing


def _ask_teachers(config: RlConfig, console: Console) -> None:
    """Ask the teachers at endpoints whether they score the model's tokens. One that does not answer is only named."""
    from burnish.models.tokenizers import load_tokenizer
    from burnish.trainers.rl.setup.teachers import check_endpoints

    try:
        check_endpoints(config, load_tokenizer(config.model), config.longest_text, _ENDPOINT_SECONDS)
    except OutageError as error:
        say(console, [error.message])


def _check_domain(
    config: RlConfig, domain: DomainSettings, split: Split, top_score: float | None, show: int, console: Console
) -> tuple[int, Sequence[Prompt]]:
    """Print how the data of a domain were read and what failed. Returns the number of failures, and the prompts."""
    from burnish.config.domains import sources_of
    from burnish.data.prompts import DomainRows, check_bound_rewards, check_golds, read_prompts

    name = domain.title(f"data.{split}")
    sources = sources_of(config, domain, split)
    prompts, understandings = read_prompts(sources, DomainRows.of(config, domain, split))
    check_golds(domain, sources, prompts)
    if not prompts:  # data that domains share, without a row of this one
        return 0, prompts
    if split == "train":
        check_bound_rewards(config, prompts)
    console.print(f"[bold]{name}[/]")
    for understanding in understandings:
        say(console, understanding.lines())
    others = _without(domain, _judges(domain))
    return _check_gold(config, others, name, prompts, top_score, show, console) if others.rewards else 0, prompts


def _judges(domain: DomainSettings) -> list[RewardConfig]:
    return [reward for reward in domain.rewards if reward.name == "judge"]


def _without(domain: DomainSettings, judges: Sequence[RewardConfig]) -> DomainSettings:
    """The domain without its judges. They are asked about rows that a human has judged, and about nothing else: each
    answer has its price."""
    evaluation = domain.evaluation
    if evaluation.success is not None and evaluation.success.partition("/")[0] in {j.log_label for j in judges}:
        evaluation = evaluation.model_copy(update={"success": None, "success_score": None})
    others = tuple(reward for reward in domain.rewards if reward not in judges)
    return replace(domain, rewards=others, evaluation=evaluation)


def _show_agreement(config: RlConfig, judge: RewardConfig, prompts: Sequence[Prompt], console: Console) -> None:
    """Print how far a judge and the humans of labelled rows agree."""
    from burnish.rewards import ProcessRewardScorer
    from burnish.rewards.judging.agreement import measure_agreement
    from burnish.rewards.judging.forms import Judge
    from burnish.rewards.judging.judges import read_options
    from burnish.rewards.judging.local import OpenModel
    from burnish.rewards.specs import spec_of

    options = read_options(spec_of(judge))
    columns = {name for prompt in prompts for name in prompt.columns}
    Judge.of(judge.log_label, options).signature.check_columns(columns)
    if options.labels is None:
        line = f"judge {judge.log_label!r} is not asked: its option labels names no column with a human's scores"
        return console.print(line, markup=False, soft_wrap=True)
    open_model: OpenModel | None = None
    if options.model_path is not None:
        from burnish.rollouts.answering import open_model  # imports torch

    scoring = config.scoring.model_copy(update={"max_failure_fraction": 1.0})
    with ProcessRewardScorer([judge], scoring, columns=columns, open_model=open_model) as scorer:
        found = measure_agreement(prompts, scorer, options)
    console.print(f"judge {judge.log_label!r}: {found}", markup=False, highlight=False, soft_wrap=True)


def _check_gold(
    config: RlConfig,
    domain: DomainSettings,
    name: str,
    prompts: Sequence[Prompt],
    top_score: float | None,
    show: int,
    console: Console,
) -> int:
    """Print what the gold answers get, and which programs pass weak tests. Returns the number of failures."""
    from burnish.rewards import ProcessRewardScorer, check_gold, gold_response
    from burnish.rewards.gold import TRIVIAL_RESPONSES, find_weak_tests
    from burnish.rewards.success import full_marks, success_of_domain

    rewards = domain.rewards
    # So that all failures are reported, instead of stopping at the first bad batch.
    scoring = config.scoring.model_copy(update={"max_failure_fraction": 1.0})
    columns, tell = set(prompts[0].columns), lambda line: say(console, (line,))
    with ProcessRewardScorer(rewards, scoring, columns=columns, sandbox=config.sandbox, say=tell) as scorer:
        scorer.check_prompts(prompts)
        judge = full_marks(rewards, scorer.answer_labels) if top_score is None else None
        success = success_of_domain(domain, scorer.answer_labels)
        report = check_gold(
            prompts,
            scorer,
            top_score=-math.inf if top_score is None else top_score,  # if nothing judges, any score passes
            labels=scorer.answer_labels,
            response=partial(gold_response, options_column=_options_column(rewards), state=_statement(rewards)),
            encode=_token_encoder(config, scorer, console),
            judge=judge,
            success=success,
        )
        labels = scorer.answer_labels if judge is None else tuple(judge.thresholds)
        tried = [reward for reward in rewards if reward.name in TRIVIAL_RESPONSES]
        weak = [found for one in tried for found in find_weak_tests(prompts, scorer, one.name, one.log_label)]
    if judge is None and top_score is None and not report.checked and (domain.name is not None or tried):
        # Other domains, and responses that solve nothing, can still be checked.
        console.print(
            "nothing to check: no row has a gold answer, and no reward compares with one", soft_wrap=True, end="\n\n"
        )
    elif report.checked:
        _show_report(report, judge, labels, show, console)
    else:
        raise DataError(
            f"none of the {len(prompts):,} rows of {name} has a gold answer, so there is nothing to check",
            remedy=f"name the column of the answers ({name}.0.columns: {{answer: ...}}), or add it",
        )
    unreached = success is not None and report.checked > 0 and report.solved == 0
    if success is not None:
        _show_success(report, success, domain.evaluation, console)
    if tried:
        _show_weak_tests(weak, show, console)
    return len(report.failures) + unreached + len(weak)


def _show_weak_tests(weak: Sequence[WeakTests], show: int, console: Console) -> None:
    """Print the rows that would pay for responses that do nothing."""
    rows = len({found.prompt_id for found in weak})
    line = f"rows that pay for responses that solve nothing, which the policy would learn to write: {rows:,}"
    console.print(line if weak else "no row pays for a response that solves nothing", soft_wrap=True)
    if weak and show:
        paid = [(found.prompt_id, found.response) for found in weak[:show]]
        show_table(console, ("row", "a response that"), paid)
    console.print()


def _show_success(report: GoldReport, success: Success, settings: RlEvaluationConfig, console: Console) -> None:
    """Print what the run will count as solved, and whether gold answers are."""
    if report.checked and not report.solved:
        line = (
            f"no gold answer counts as solved ({success}), so accuracy, pass@k and maj@k can never rise above 0: "
            "fix the rewards, or set evaluation.success and evaluation.success_score"
        )
    elif report.checked and (settings.success is not None or settings.success_score is not None):
        line = f"{report.solved:,} of {report.checked:,} gold answers count as solved ({success})"
    else:
        return
    console.print(line, markup=False, soft_wrap=True)
    console.print()


def _token_encoder(config: RlConfig, scorer: ProcessRewardScorer, console: Console) -> Encode | None:
    """A function that gives the tokens that the policy would sample for a text: its tokens and the EOS.

    None if no reward reads tokens, or if the tokenizer cannot be loaded and only rewards outside the check need it.
    """
    if not scorer.token_labels:
        return None
    from burnish.data.chat import encode_response
    from burnish.data.template import ChatFormat
    from burnish.models.tokenizers import load_tokenizer

    try:
        tokenizer = load_tokenizer(config.model)
    except ModelError as error:
        if set(scorer.token_labels) & set(scorer.answer_labels):
            raise
        named = ", ".join(scorer.token_labels)
        console.print(
            f"{error.message}; {named} sees words instead of tokens, and is not judged", markup=False, soft_wrap=True
        )
        return None
    end, chat = tokenizer.eos_token_id, ChatFormat.of(config.data)

    def encode(prompt: Prompt, text: str) -> tuple[int, ...]:
        tokens = encode_response(prompt, text, tokenizer, chat)
        return tokens if end is None or tokens[-1:] == (end,) else (*tokens, end)

    return encode


def _statement(rewards: Sequence[RewardConfig]) -> Callable[[str], str]:
    """The way to state an answer in a response: for the reward `math` in a place that it reads, such as a box."""
    for reward in rewards:
        if reward.name == "math":
            from burnish.rewards.builtins.math_answer import MathAnswer

            return MathAnswer(**reward.options).state
    return str


def _options_column(rewards: Sequence[RewardConfig]) -> str | None:
    """The column that holds the options of multiple choice, if one of the rewards names it."""
    named = [reward.options.get("column") for reward in rewards if reward.name == "choice"]
    return next((column for column in named if isinstance(column, str)), None)


def _show_report(report: GoldReport, judge: Success | None, labels: Sequence[str], show: int, console: Console) -> None:
    judged = ", ".join(labels) or "the total"
    passed = f"{report.checked - len(report.failures):,} of {report.checked:,} gold answers"
    if judge is not None:
        best = set(judge.thresholds.values())
        top = f"the top score {best.pop():g}" if len(best) == 1 else "the top scores"
        line = f"{passed} reach {top} (judged by: {judged})"
    elif math.isinf(report.top_score):
        line = f"no reward compares with an answer (--top-score judges the total); {passed} can be scored"
    else:
        line = f"{passed} reach the top score {report.top_score:g} (judged by: {judged})"
    console.print(line, markup=False, soft_wrap=True)
    if report.without_gold:
        console.print(f"{len(report.without_gold):,} rows have no gold answer (first: {report.without_gold[0]})")
    if report.parts:
        parts = [
            (part.name, number_text(part.mean, ".4g"), number_text(part.lowest, ".4g"), f"{part.count:,}")
            for part in report.parts
        ]
        show_table(console, ("reward", "mean of gold answers", "lowest", "scored"), parts)
    if report.failures and show:
        rows = [
            (
                failure.prompt_id,
                "none" if failure.score is None else number_text(failure.score, "g"),
                str(failure.status),
                f"{_short(failure.gold)}: {_short(failure.detail)}" if failure.detail else _short(failure.gold),
            )
            for failure in report.failures[:show]
        ]
        show_table(console, ("row", "score", "status", "gold answer: detail"), rows)
    console.print()


def _short(text: str, width: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"... {line[-width:]}"


def _list_rewards(console: Console) -> None:

    from burnish.rewards import BUILT_INS

    rows = []
    for name, built_in in BUILT_INS.items():
        rows.append((name, "-" if built_in.top_score is None else f"{built_in.top_score:g}", built_in.summary))
        rows += [("", "", f"- {option}: {text}") for option, text in built_in.options.items()]
    show_table(console, ("reward", "top score", "score, and options"), rows)
    console.print("your own: path/to/file.py:function or package.module:function (see docs/rewards.md)", markup=False)
