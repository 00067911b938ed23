"""Every algorithm steers a real pre-trained story teller to happy stories, and they stay stories."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from scripts import load_script

from burnish.config.loading import load_run_file
from burnish.observability.history import read_history
from burnish.observability.recorder import read_rollouts
from burnish.trainers.cluster import train_rl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "stories_sentiment"
OVERRIDES: dict[str, list[str]] = yaml.safe_load((EXAMPLE / "algorithms.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def prompts(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of train.jsonl and heldout.jsonl, cut by the example's own script."""
    folder = tmp_path_factory.mktemp("stories")
    counts = load_script(EXAMPLE / "prepare.py").write_prompts(stories, folder)
    assert min(counts.values()) > 100
    return folder


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def sampled_stories(run: Path, step: int) -> list[list[str]]:
    """The words of the held-out stories sampled at temperature 1 after that step."""
    rows = read_rollouts(run / "rollouts" / f"eval-{step:06d}.jsonl")
    return [words(row["response"]) for row in rows if not row["greedy"]]


def real_word_share(stories: Sequence[Sequence[str]], vocabulary: set[str]) -> float:
    """Share of the words that real stories use as well."""
    said = [word for story in stories for word in story]
    return sum(word in vocabulary for word in said) / len(said)


def distinct_bigrams(stories: Sequence[Sequence[str]]) -> float:
    """Different pairs of neighbouring words over all pairs, all stories together."""
    pairs = [pair for story in stories for pair in pairwise(story)]
    return len(set(pairs)) / len(pairs)


def repeats_inside(stories: Sequence[Sequence[str]]) -> float:
    """Share of the pairs of neighbouring words that stood in the same story before."""
    pairs = [list(pairwise(story)) for story in stories]
    return 1 - sum(len(set(row)) for row in pairs) / sum(map(len, pairs))


def test_the_issue_names_these_algorithms() -> None:
    named = {"grpo", "rloo", "reinforce_plus_plus", "dr_grpo", "dapo", "remax", "gspo", "cispo"}
    assert set(OVERRIDES) == named


@pytest.mark.matrix_cases("[!r]*", "re*")
@pytest.mark.parametrize("preset", OVERRIDES)
def test_stories_become_happy_and_stay_stories(
    preset: str, stories_model: Path, prompts: Path, stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    given = [
        f"model.path={stories_model}",
        f"data.train={prompts / 'train.jsonl'}",
        f"data.eval={prompts / 'heldout.jsonl'}",
        f"output={tmp_path / 'run'}",
        f"algorithm.preset={preset}",
        "logging.sinks=[]",
    ]
    config = load_run_file(EXAMPLE / "run.yaml", [*given, *OVERRIDES[preset]]).config
    result = train_rl(config, console=Console(quiet=True))

    curve = read_history(result.folder)["eval/sampled_reward_mean"][1]
    assert curve[-1] - curve[0] >= 0.4, curve

    before, after = sampled_stories(result.folder, 0), sampled_stories(result.folder, result.step)
    vocabulary = set(words(stories.read_text(encoding="utf-8")))
    assert real_word_share(after, vocabulary) > real_word_share(before, vocabulary) - 0.02
    assert distinct_bigrams(after) > 0.6 * distinct_bigrams(before)
    assert repeats_inside(after) < 0.08
