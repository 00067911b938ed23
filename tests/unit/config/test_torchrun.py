"""What torchrun's variables say of a process, and which runs they fit."""

import pytest

from burnish.config.loading import load_run_data
from burnish.config.schema_cluster import ClusterConfig
from burnish.config.torchrun import TorchrunRank, check_world
from burnish.errors import ConfigError

VARIABLES = {
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"},
    **{"MASTER_ADDR": "first", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "none"},
    **{"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "2"},
}


def rank(number: int, size: int) -> TorchrunRank:
    return TorchrunRank(number, size, number, size, 0, "localhost", 29400, True, 0)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def test_without_torchrun_there_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")  # other launchers set these two as well
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert TorchrunRank.here() is None
    assert ClusterConfig(trainers=2).runs_on == "processes"


def test_the_variables_are_read(variables: None) -> None:
    here = TorchrunRank.here()
    assert here == TorchrunRank(3, 4, 1, 2, 1, "first", 29400, True, 2)
    assert not here.on_one_machine
    assert rank(1, 2).on_one_machine


@pytest.mark.parametrize(
    ("fields", "runs_on"),
    [
        ({}, "inline"),
        ({"trainers": 2}, "torchrun"),
        ({"rollout_workers": 1}, "torchrun"),
        ({"trainers": 2, "backend": "processes"}, "processes"),
        ({"backend": "torchrun"}, "torchrun"),
    ],
)
def test_where_a_run_is_under_torchrun(fields: dict[str, object], runs_on: str, variables: None, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    config = ClusterConfig.model_validate(fields)
    assert config.runs_on == runs_on
    assert config.trains_here == (config.rollout_workers == 1 or runs_on == "inline")


def test_as_many_processes_as_the_run_needs(variables: None) -> None:
    check_world(ClusterConfig(trainers=2, rollout_workers=1), rank(0, 3))
    check_world(ClusterConfig(), rank(0, 1))
    check_world(ClusterConfig(trainers=2, backend="processes"), rank(0, 1))
    with pytest.raises(ConfigError, match=r"started 2 processes, but this run needs 3 (?s:.*)--nproc-per-node 3 on"):
        check_world(ClusterConfig(trainers=2, rollout_workers=1), rank(0, 2))
    with pytest.raises(ConfigError, match=r"started 2 processes, but this run needs 1 \(backend processes"):
        check_world(ClusterConfig(trainers=2, backend="processes"), rank(0, 2))
    with pytest.raises(ConfigError, match=r"started 2 processes, but this run needs 1 \(backend inline"):
        check_world(ClusterConfig(), rank(0, 2))
    with pytest.raises(ConfigError, match=r"started 1 process, (?s:.*)or set cluster.backend to processes"):
        check_world(ClusterConfig(trainers=2), rank(0, 1))


def test_only_the_first_process_leads_a_run(variables: None) -> None:
    with pytest.raises(ConfigError, match=r"rank 1, and only that with rank 0 leads a run(?s:.*)-m burnish"):
        check_world(ClusterConfig(trainers=2), rank(1, 2))


def test_the_backend_needs_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    check_world(ClusterConfig(trainers=2), None)
    with pytest.raises(ConfigError, match=r"torchrun has not started this process(?s:.*)--nproc-per-node 2 -m burnish"):
        check_world(ClusterConfig(trainers=2, backend="torchrun"), None)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"restarts": 1}, r"cluster.restarts has no effect with cluster.backend: torchrun(?s:.*)--max-restarts"),
        ({"gpus_per_worker": 1}, r"cluster.gpus_per_worker is for Ray, but cluster.backend is torchrun"),
    ],
)
def test_fields_that_torchrun_does_not_know(cluster: dict[str, object], message: str) -> None:
    data = {"model": "m", "data": {"train": "a"}, "rewards": "math", "algorithm": "grpo"}
    with pytest.raises(ConfigError, match=message):
        load_run_data({**data, "cluster": {"backend": "torchrun", "trainers": 2, **cluster}})
    load_run_data({**data, "cluster": {"backend": "torchrun", "trainers": 2, "restarts": 3}})  # as a run writes it down


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GROUP_RANK", None, "GROUP_RANK is not set"),
        ("MASTER_PORT", "high", "MASTER_PORT is 'high', which is no number"),
    ],
)
def test_a_variable_that_is_not_as_torchrun_gives_it_is_named(name, value, said, variables, monkeypatch) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        TorchrunRank.here()
