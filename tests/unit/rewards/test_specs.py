"""From rewards of a run file to specifications: where programs run, and who sees the token."""

import pytest

from burnish import rewards
from burnish.config.schema import RewardConfig, SandboxConfig
from burnish.errors import ConfigError
from burnish.rewards.specs import specs_of

SANDBOX = SandboxConfig(seconds=3.0, url="http://host:80", token_variable="TOKEN")


def test_the_run_s_sandbox_is_that_of_code_and_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    code, exact = specs_of([RewardConfig(name="code"), RewardConfig(name="exact")], SANDBOX)
    assert code.options == {"seconds": 3.0, "url": "http://host:80", "token_variable": "TOKEN"}
    assert code.environment == ("TOKEN",)
    assert (exact.options, exact.environment) == ({}, ())


def test_an_option_of_the_reward_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("OWN", "secret")
    own = rewards.code(seconds=6.5, token_variable="OWN", environment=["OWN"])
    (spec,) = specs_of([own], SANDBOX)
    assert spec.options == {"seconds": 6.5, "url": "http://host:80", "token_variable": "OWN"}
    assert spec.environment == ("OWN",)


def test_a_token_that_is_not_set() -> None:
    with pytest.raises(ConfigError, match="needs the environment variable TOKEN, which is not set"):
        specs_of([RewardConfig(name="code")], SANDBOX)


def test_without_a_section_nothing_is_added() -> None:
    assert specs_of([rewards.code()])[0].options == {}
    assert specs_of([rewards.code()], SandboxConfig())[0].options == {}


@pytest.mark.parametrize(
    ("name", "options", "timeout", "needed"),
    [
        ("code", {"seconds": 30}, 10.0, "45"),
        ("code", {"seconds": 10.0}, 10.0, "15"),
        ("code", {}, 6.0, "9"),
        ("command", {"argv": ["true"]}, 8.0, "8"),
    ],
)
def test_a_time_limit_that_its_reward_never_reaches_is_refused(name, options, timeout, needed) -> None:
    """Else what never ends would have no score, where it should have 0."""
    reward = RewardConfig(name=name, options=options, timeout_seconds=timeout)
    with pytest.raises(ConfigError, match=rf"up to {needed} s(?s:.*)timeout_seconds above {needed}, or lower seconds"):
        specs_of([reward])
    assert specs_of([reward.model_copy(update={"timeout_seconds": float(needed) + 0.5})])


def test_the_run_s_sandbox_counts_there_too() -> None:
    with pytest.raises(ConfigError, match=r"reward 'code' may take up to 45 s(?s:.*)sandbox.seconds"):
        specs_of([RewardConfig(name="code")], SandboxConfig(seconds=30.0))
    assert specs_of([RewardConfig(name="code", timeout_seconds=46.0)], SandboxConfig(seconds=30.0))
