"""`burnish plan`, `check` and `eval` for runs on preferences."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from torch import Tensor

from burnish.config.schema_data import ModelConfig
from burnish.config.schema_prefer import START, PreferConfig
from burnish.data.overlap import find_overlap
from burnish.data.pair_audit import audit
from burnish.data.preferences import count_comparisons
from burnish.errors import ConfigError
from burnish.forward.batch import Batch
from burnish.forward.matmul_choice import fast_float32
from burnish.forward.scoring import ResponseScorer
from burnish.machine.memory import keep_freed_memory
from burnish.models.loading import UNLIMITED_CONTEXT, LoadedModel, load_model
from burnish.observability.console import say
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import Preview
from burnish.trainers.chaining import measured, pinned, with_weights
from burnish.trainers.placement import model_facts
from burnish.trainers.preferences.batches import plain_batch, responses_of
from burnish.trainers.preferences.loop import check_fits_losses, preference_objective
from burnish.trainers.preferences.reference import KeptReference
from burnish.trainers.preferences.scores import HeldOutPreferences, Score, are_pairs
from burnish.trainers.preview import preview_of_data
from burnish.trainers.result import EvalReport, new_eval_folder, write_eval_metrics
from burnish.trainers.reward_model.loop import evaluated_comparisons, length_rule, load_comparisons, planned_steps
from burnish.trainers.rl.setup.preflight import local_tokenizer
from burnish.trainers.run_folder import recorded_paths
from burnish.types import Tokenizer


def preview_prefer(config: PreferConfig, facts: ModelFacts | None, *, here: bool) -> Preview:
    """Preview a run of `burnish prefer` for `burnish plan`; also checks losses and the reference."""
    preference_objective(config)
    models = {} if config.reference == START else {"reference": config.reference}
    return preview_of_data(config, facts, count_rows, "comparisons", here=here, models=models)


def count_rows(config: PreferConfig, context_tokens: int | None, tokenizer: Tokenizer | None) -> Preview:
    """Count the rows of local data, and the tokens of their texts; without a tokenizer only rows are counted."""
    if tokenizer is None:
        counts = [count_comparisons(some, config) if some else 0 for some in (config.data.train, config.data.eval)]
        return Preview(rows=counts[0])
    limit = min(config.max_tokens, UNLIMITED_CONTEXT if context_tokens is None else context_tokens)
    train, heldout = load_comparisons(config, tokenizer, limit, Console(quiet=True), check_fits_losses)
    planned_steps(config.steps, config.optimization, len(train))
    twice = find_overlap(train.asked(), () if heldout is None else heldout.asked()).lines()
    tokens = sum(len(one.text[0]) + len(one.text[1]) for one in responses_of(train.examples))
    return Preview(len(train), tokens, notes=tuple(twice))


def evaluate_prefer_run(config: PreferConfig, *, console: Console, weights: Path | None = None) -> EvalReport:
    """Accuracy, margin and loss of the run file's model, or of saved weights, on held-out comparisons, relative to the
    reference (the model of the run file, for `start`).

    Writes `metrics.json` and `config.yaml` to a new folder `eval/NNN` in the run's folder. Raises ConfigError if
    nothing is held out.
    """
    if not config.holds_out:
        raise ConfigError(
            "data.eval is empty and held_out_fraction is 0", remedy="name the held-out comparisons in data.eval"
        )
    start, objective = pinned(config)[0].model, preference_objective(config)
    config = measured(config, weights, console)
    loaded, score = open_scorer(config, config.model, console)
    limit = min(config.max_tokens, loaded.context_length)
    train, heldout = load_comparisons(config, loaded.tokenizer, limit, console, check_fits_losses)
    assert heldout is not None
    examples = HeldOutPreferences.of(evaluated_comparisons(config, heldout), objective)
    reference = None
    if objective.has_reference:
        frozen = start if config.reference == START else with_weights(config.model, config.reference)
        _, score_frozen = open_scorer(config, frozen, console)
        pad = loaded.pad_token_id
        reference = KeptReference.computed(
            examples.texts(), lambda some: score_frozen(plain_batch(some, None, pad_token_id=pad))
        )
    rule = length_rule(train) if are_pairs(train.examples) else None
    metrics = examples.measure(score, reference, objective, rule, pad_token_id=loaded.pad_token_id)
    return EvalReport(metrics, write_eval_metrics(new_eval_folder(Path(config.output)), config, metrics))


def open_scorer(config: PreferConfig, model: ModelConfig, console: Console) -> tuple[LoadedModel, Score]:
    """Load a model, as in training, and a function that gives the log-probabilities of a batch's responses."""
    paths = recorded_paths(Path(config.output))
    loaded = load_model(model, seed=config.seed, plain=config.debug.plain, paths=paths)
    keep_freed_memory(loaded.model.device.type)
    say(console, loaded.notes)
    scorer = ResponseScorer(loaded.model, plain=loaded.plain, vocabulary=loaded.vocabulary)

    def score(batch: Batch) -> Tensor:
        with fast_float32(loaded.model, plain=config.debug.plain, paths=paths):
            return scorer.score_in_microbatches(batch, config.optimization.microbatch_tokens).logprobs_BT

    return loaded, score


def check_prefer(config: PreferConfig, top_score: float | None, show: int, console: Console) -> int:
    """`burnish check`: read the data, and look for repeats, contradictions and length as the only difference. Returns
    the number of contradictions."""
    preview_prefer(config, model_facts(config), here=True)
    tokenizer = local_tokenizer(config)
    if tokenizer is None:
        raise ConfigError(
            f"the tokenizer of {config.model.path!r} is not on this machine", remedy="download the model first"
        )
    failing = 0
    train, heldout = load_comparisons(config, tokenizer, config.max_tokens, console, check_fits_losses)
    for name, found in (("data.train", train), ("held out", heldout)):
        if found is not None:
            result = audit(found.examples)
            say(console, [f"{name}: {line}" for line in result.lines(show)])
            failing += len(result.contradicting)
    return failing
