"""Checks for contradictions in run files of any kind, made before anything is loaded. Pure functions of the values;
`checks_rl` and `checks_rm` hold the checks of their kinds; those of others are in their `schema_*`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from burnish.config import names
from burnish.config.problems import Problem
from burnish.config.schema_cluster import ClusterConfig, Offloaded, TrainersConfig
from burnish.config.schema_data import DataSource
from burnish.config.schema_run import RunConfig
from burnish.errors import suggestion


def check_training(config: RunConfig) -> Iterator[Problem]:
    """Yield contradictions in a run file of a run that trains one model on data."""
    yield from check_any(config)
    yield from _roles_that_rest(config)
    steps, warmup = config.steps, config.optimization.warmup_steps
    if steps is not None and warmup > steps:
        yield warmup_too_long(warmup, steps, "steps")


def check_any(config: RunConfig) -> Iterator[Problem]:
    """Yield contradictions in sections that run files of all kinds have."""
    yield from _held_out(config)
    yield from _generated(config)
    yield from _shared_work(config)
    yield from _quantization(config)
    yield from _whole_matrices(config)
    yield from _on_mps(config)
    yield from _never_falls(config)
    yield from _known_sinks(config)
    yield from _late_evaluation(config)
    yield from _early_end(config)


def check_complete(config: RunConfig, kind: str) -> list[Problem]:
    """List missing fields that a run of this kind cannot start without. Only for run files: code may pass data and
    rewards itself."""
    problems = []
    if not config.named_sources("train"):
        remedy = "add it, for example `data: {train: train.jsonl}`"
        problems.append(Problem("data.train", f"is empty, and {kind} needs training data", remedy))
    problems += config.missing()
    if config.stop_when is not None and config.stop_when.metric.startswith("eval/") and not config.holds_out:
        message = f"is {config.stop_when.metric!r}, but data.eval is empty, so it is never measured"
        problems.append(Problem("stop_when.metric", message, "set data.eval, or name a metric of the steps"))
    if not config.holds_out and "every_steps" in config.evaluation.model_fields_set:
        every = config.evaluation.every_steps
        if every is not None and every != type(config.evaluation)().every_steps:
            message = f"is {every}, but data.eval is empty, so there is nothing to evaluate on"
            remedy = "set data.eval to held-out data, or remove evaluation.every_steps"
            problems.append(Problem("evaluation.every_steps", message, remedy))
    return problems


def _late_evaluation(config: RunConfig) -> Iterator[Problem]:
    """Refuse a first evaluation that is both at the start and later, or that comes after the last step."""
    evaluation, steps = config.evaluation, config.steps
    if evaluation.at_start and evaluation.start_step:
        message = f"is {evaluation.start_step}, but evaluation.at_start asks for an evaluation before the first step"
        yield Problem("evaluation.start_step", message, "remove one of the two")
    if steps is not None and evaluation.start_step > steps:
        message = f"is {evaluation.start_step}, but the run has {steps} steps"
        yield Problem("evaluation.start_step", message, f"set it to at most {steps}")


def _early_end(config: RunConfig) -> Iterator[Problem]:
    """Refuse an early end without a condition, or by a metric that the run never measures."""
    rule = config.stop_when
    if rule is None:
        return
    if rule.above is None and rule.below is None and rule.no_better_for is None:
        yield Problem("stop_when", "has no condition", "set above, below or no_better_for")
    if rule.metric.startswith("eval/") and config.evaluation.every_steps is None:
        message = f"is {rule.metric!r}, but evaluation.every_steps is null, so it is never measured"
        yield Problem("stop_when.metric", message, "set evaluation.every_steps, or name a metric of the steps")


def _on_mps(config: RunConfig) -> Iterator[Problem]:
    """Refuse what Apple's GPUs do not support: several processes, which could not exchange gradients; quantized
    weights; state offloaded to host memory, which is the GPU's as well."""
    model, cluster = config.model, config.cluster
    if not model.device.startswith("mps"):
        return
    found = {
        "cluster.trainers": cluster.num_processes > 1,
        "cluster.offload": bool(cluster.offload),
        "model.quantization": model.quantization is not None,
    }
    for field in (field for field, is_set in found.items() if is_set):
        message = "does not work with model.device mps"
        yield Problem(field, message, "leave it out (and all else that needs processes), or set model.device: cpu")


def _quantization(config: RunConfig) -> Iterator[Problem]:
    """Refuse quantized weights that would have to train, or to be sharded over trainers."""
    model, cluster = config.model, config.cluster
    if model.quantization is None:
        return
    if model.from_scratch:
        message = f"is {model.quantization}, but model.from_scratch makes random weights, which would stay frozen"
        yield Problem("model.quantization", message, "remove one of the two")
    if model.lora is None:
        message = f"is {model.quantization}, but without model.lora all weights train, which quantized weights cannot"
        yield Problem("model.quantization", message, "set model.lora, or remove it")
    if cluster.sharding == "full" and cluster.trainers > 1:
        message = "is full, but quantized weights (model.quantization) cannot be split over trainers"
        yield Problem("cluster.sharding", message, "set it to optimizer, or remove model.quantization")


def _whole_matrices(config: RunConfig) -> Iterator[Problem]:
    """Refuse slices of matrices that an optimizer needs as a whole."""
    cluster = config.cluster
    if config.optimization.optimizer == "muon" and cluster.trainers > 1 and cluster.sharding in ("optimizer", "full"):
        message = f"is {cluster.sharding}, which splits matrices, but optimization.optimizer muon needs whole ones"
        yield Problem("cluster.sharding", message, "set it to whole, or optimization.optimizer to adamw")


def _never_falls(config: RunConfig) -> Iterator[Problem]:
    """Refuse a final learning rate for a schedule that never falls."""
    optimization = config.optimization
    final = optimization.final_learning_rate_fraction
    if optimization.schedule == "constant" and final != type(optimization)().final_learning_rate_fraction:
        message = f"is {final:g}, but optimization.schedule is constant, which never falls"
        yield Problem("optimization.final_learning_rate_fraction", message, "set the schedule to linear or cosine")


def warmup_too_long(warmup: int, total: int, product: str) -> Problem:
    message = f"is {warmup}, but the run makes {total} optimizer steps ({product})"
    return Problem("optimization.warmup_steps", message, f"set it to at most {total}")


def _held_out(config: RunConfig) -> Iterator[Problem]:
    """Refuse evaluation data that is also training data."""
    files = [source for source in config.named_sources("train").values() if source.reasoning_gym is None]
    paths = {source.path for source in files if source.split == "train" and source.limit is None}
    for field, source in config.named_sources("eval").items():
        if source.reasoning_gym is not None:
            continue  # `_generated` compares the seeds
        if source.path in paths and source.split == "train" and source.subset is None and source.limit is None:
            message = f"{source.path!r} is also training data, so the evaluation would not be held out"
            yield Problem(f"{field}.path", message, "name another file or split, or set a limit to allow it")


def _generated(config: RunConfig) -> Iterator[Problem]:
    """Check sources whose rows reasoning-gym generates. The existence of tasks and parameters is checked on loading."""
    train, evaluated = config.named_sources("train"), config.named_sources("eval")
    for field, source in (train | evaluated).items():
        yield from _generated_rows(field, source)
    made = [source for source in train.values() if source.reasoning_gym is not None]
    for field, source in evaluated.items():
        for other in made:
            shared = set(source.reasoning_gym or ()) & set(other.reasoning_gym or ())
            if shared and source.seed == other.seed:
                message = f"is {source.seed}, as in the training data, which also has the task {min(shared)}"
                yield Problem(f"{field}.seed", message, f"set another one, for example {source.seed + 1}")
                break


def _generated_rows(field: str, source: DataSource) -> Iterator[Problem]:
    tasks = source.reasoning_gym
    changed = source.model_dump(exclude_defaults=True)
    if tasks is None:
        for name in [name for name in ("size", "seed") if name in changed]:
            yield Problem(f"{field}.{name}", "is for rows that reasoning_gym generates", "remove it, or use limit")
        return
    if source.path != names.PUZZLES:
        message = f"is {source.path!r}, but reasoning_gym generates the rows of this source"
        yield Problem(f"{field}.path", message, "remove one of the two, or make them two sources")
    if not tasks:
        yield Problem(f"{field}.reasoning_gym", "names no task", "name one, for example `{chain_sum: {}}`")
    if source.size > names.PUZZLE_ROWS:
        yield Problem(f"{field}.size", f"is {source.size:,}", f"generate at most {names.PUZZLE_ROWS:,} rows")
    for other in [other for other in ("split", "subset", "document_separator", "max_bytes") if other in changed]:
        yield Problem(f"{field}.{other}", "is for rows from files", "remove it")


def _known_sinks(config: RunConfig) -> Iterator[Problem]:
    """Refuse sinks that are neither built in nor the name of a class, or that are named twice."""
    for index, name in enumerate(config.logging.sinks):
        if name in config.logging.sinks[:index]:
            yield Problem(f"logging.sinks.{index}", f"{name!r} is named twice", "keep one of the two")
        if name not in names.SINK_NAMES and not is_function_name(name):
            remedy = suggestion(name, names.SINK_NAMES) + ", or package.module:Class, or path/to/file.py:Class"
            yield Problem(f"logging.sinks.{index}", f"is {name!r}, which is not a sink", remedy)


def _shared_work(config: RunConfig) -> Iterator[Problem]:
    """Refuse numbers of processes and lanes, or settings of a backend, that do not fit together."""
    cluster = config.cluster
    if cluster.backend == "inline" and cluster.num_processes > 1:
        asked = f"cluster.trainers ({cluster.trainers})"
        if isinstance(cluster, ClusterConfig):
            asked += f", cluster.rollout_workers ({cluster.rollout_workers})"
            asked += "".join(f", a separate process for the {name}" for name in cluster.own_names)
        message = f"is inline, but the run asks for several processes: {asked}"
        yield Problem("cluster.backend", message, "set it to auto, or ask for a single process")
    amounts = {"cpus_per_worker": cluster.cpus_per_worker, "gpus_per_worker": cluster.gpus_per_worker}
    for field in (field for field, amount in amounts.items() if amount is not None):
        if cluster.backend not in ("auto", "ray"):
            message = f"is for Ray, but cluster.backend is {cluster.backend}"
            yield Problem(f"cluster.{field}", message, "leave it out, or set cluster.backend to ray")
    if cluster.backend == "torchrun" and cluster.restarts != type(cluster)().restarts:
        message = "has no effect with cluster.backend: torchrun, which restarts all processes itself"
        yield Problem("cluster.restarts", message, "leave it out, and give torchrun --max-restarts")
    if cluster.num_lanes % cluster.trainers:
        message = f"is {cluster.lanes}, which {cluster.trainers} trainers cannot share equally"
        yield Problem("cluster.lanes", message, f"set it to a multiple of {cluster.trainers}")


def offload(cluster: TrainersConfig, absent: Mapping[str, str]) -> Iterator[Problem]:
    """Refuse roles that cannot be offloaded. `absent`: the reason why the run does not have a role."""
    field = "cluster.offload"
    for index, role in enumerate(cluster.offload):
        if role in cluster.offload[:index]:
            yield Problem(field, f"names {role} twice", "keep one of the two")
        elif role in absent:
            yield Problem(field, f"names {role}, but {absent[role]}", f"remove {role} from it")
    if cluster.offload and cluster.sharding == "full" and cluster.trainers > 1:
        message = "does not work with cluster.sharding: full in this version"
        yield Problem(field, message, "set cluster.sharding to optimizer, or remove cluster.offload")


def _roles_that_rest(config: RunConfig) -> Iterator[Problem]:
    """Check `offload` for a run that trains a single model."""
    others = [role for role in get_args(Offloaded) if role not in config.may_rest]
    absent = dict.fromkeys(others, f"a run of `burnish {config.kind}` has none to offload")
    return offload(config.cluster, absent)


def is_function_name(value: str) -> bool:
    """Return whether the value may be `package.module:name` or `path/to/file.py:name`."""
    place, colon, name = value.rpartition(":")
    is_place = place.endswith(".py") or all(part.isidentifier() for part in place.split("."))
    return bool(colon) and name.isidentifier() and is_place
