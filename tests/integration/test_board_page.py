"""The board in a real browser: three clicks to a response, keys, text that tries to become a program, what axe finds.

Needs Playwright's Python package and a Chromium: `pip install playwright axe-playwright-python`,
`apt-get install chromium`.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from board_runs import line, write_rows, write_step
from serving import served

from burnish.board.answers import Board, add_note
from burnish.board.report import write_report
from burnish.board.runs import Runs
from burnish.board.server import application
from burnish.outside.listening import url_of

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright (pip install playwright)")
CHROMIUM = os.environ.get("BURNISH_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium (apt-get install chromium, or BURNISH_CHROMIUM)"),
]
EVIL = "<img src=x onerror=evil()><script>evil()</script>'\"`${evil()}"
MARKED = EVIL.replace("/", "")
"""The same as the name of a folder."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("first", "second")):
        rows = [
            {"step": s, "reward/mean": s / 9 + seed, f"reward/part/{EVIL}": s / 8, EVIL: s % 3,
             "time/generate_seconds": float(s + seed * s), "time/update_seconds": 9.0 - s}
            for s in range(1, 10)
        ]  # fmt: skip
        write_rows(folder / name, *rows)
        (folder / name / "config.yaml").write_text(f"seed: {seed}\nsteps: 20\nmodel: {{path: {json.dumps(EVIL)}}}\n")
        spans = [["run", "update", 1.0, 3.0], [EVIL, EVIL, 2.0, 3.0]]
        (folder / name / "timeline.jsonl").write_text(f'{{"step":9,"spans":{json.dumps(spans)}}}\n')
        for step in (1, 5, 9):
            groups = [line(g, k, float(k * g), prompt_id="p0" if g else EVIL) for g in (0, 1) for k in (0, 1)]
            write_step(folder / name, step, groups)
    evil = folder / MARKED
    write_rows(evil, {"step": 1, "reward/mean": 1.0}, {"step": 2, "reward/mean": 2.0})
    turn = {"author": "policy", "start": 0, "stop": 1, "messages": [{"role": "assistant", "content": EVIL}]}
    fields = {
        **{"prompt": EVIL, "prompt_id": EVIL, "answer": EVIL, "domain": EVIL, "token_texts": [EVIL], "status": EVIL},
        **{"status_detail": EVIL, "dropped_because": EVIL, "finish_reason": EVIL, "reward_parts": {EVIL: 1.0}},
        **{"turns": [turn], "prompt_text": EVIL, "response": EVIL, "old_logprobs": [-2.0]},
    }
    write_step(evil, 2, [line(0, 0, 1.0, **{**fields, "kept": False}), line(0, 1, 0.0, domain="other")])
    add_note(evil, EVIL, "step", 2, 0)
    write_talk(folder / "talk")
    return folder


def write_talk(run: Path) -> None:
    """A run with one response: a call, its result, and an answer with the last words of an environment."""
    said = [{"role": "assistant", "content": "a"}], [{"role": "tool", "name": "python", "content": "b"}]
    last = [{"role": "assistant", "content": "c"}, {"role": "user", "content": "right"}]
    turns = [
        {"author": author, "start": k, "stop": k + 1, "messages": messages}
        for k, (author, messages) in enumerate((("policy", said[0]), ("tool", said[1]), ("policy", last)))
    ]
    times = {"turns": turns, "turn_seconds": [[1.26], [0.42], [0.5, 0.0123]]}
    write_rows(run, {"step": 1, "reward/mean": 1.0}, {"step": 2, "reward/mean": 2.0})
    write_step(run, 1, [line(0, 0, 1.0, token_entropy=[0.5, 0.0, 2.0], **times)])


@pytest.fixture(scope="module")
def url(runs: Path) -> Iterator[str]:
    board = Board(Runs.below([str(runs)]), control=True)
    with served(lambda ended: application(board, ended=ended)) as listener:
        yield url_of(listener, "127.0.0.1")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page whose errors, also refusals by its content security policy, fail the test."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    opened.set_default_timeout(60_000)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    opened.add_init_script("window.hacked = 0; window.evil = () => { window.hacked += 1; };")
    yield opened
    hacked = opened.evaluate("window.hacked")
    opened.close()
    assert (problems, hacked) == ([], 0)


def test_from_a_curve_to_a_response_in_three_clicks_and_on_by_keys(page: Any, url: str) -> None:
    page.goto(f"{url}/#run=first")
    page.wait_for_selector(".chart canvas")
    page.locator(".chart .u-over").first.click(position={"x": 150, "y": 60})
    page.wait_for_selector("#drill .response .token")
    # Group 1 has the rewards 0 and 1, group 0 twice 0: the larger spread is open.
    assert "group=" not in page.url
    assert page.locator(".prompts [aria-current] .spread").inner_text() == "0.5 ±1"
    page.locator(".prompts button").nth(1).click()
    page.wait_for_url("**group=0**")
    before = page.input_value('[aria-label="Step"]')
    page.keyboard.press("ArrowRight")
    page.wait_for_function("old => document.querySelector('[aria-label=\"Step\"]').value !== old", arg=before)
    page.keyboard.press("Escape")
    page.wait_for_selector("#overview .chart canvas")


def test_two_seeds_become_a_band_and_one_prompt_is_seen_in_both(page: Any, url: str) -> None:
    page.goto(f"{url}/#run=first&run=second")
    page.wait_for_selector("text=bands by seed")
    assert "first and 1 more seed:" in page.locator(".chart .legend").first.inner_text()
    page.goto(f"{url}/#run=first&run=second&kind=step&step=5&group=1&beside=second")
    page.wait_for_selector(".side + .side .token")
    assert page.locator(".side h3").all_inner_texts() == ["first, step 5", "second, step 5"]
    page.locator("text=over training").first.click()
    page.wait_for_selector(".over button:has-text('9: 0.5')")


def test_a_run_grows_on_a_narrow_page_and_its_fork_is_a_branch(page: Any, tmp_path: Path) -> None:
    first, fork = tmp_path / "first", tmp_path / "fork"
    rows = [{"step": step, "reward/mean": step / 9} for step in range(1, 11)]
    write_rows(first, *rows[:9])
    write_rows(fork, *rows[:5], *({**row, "reward/mean": 2.0} for row in rows[5:]))
    origin = {"starts": [{"started": "2026-11-30"}], "forked_from": {"run": str(first), "step": 5}}
    (fork / "environment.json").write_text(json.dumps(origin))
    page.set_viewport_size({"width": 360, "height": 700})
    with served(lambda ended: application(Board(Runs.below([str(tmp_path)])), ended=ended)) as listener:
        page.goto(f"{url_of(listener, '127.0.0.1')}/#run=first&run=fork")
        page.wait_for_selector(".chart canvas")
        lines = "() => [...state.drawn.values()][0].lines.map((line) => line.steps.join())"
        assert page.evaluate(lines) == ["1,2,3,4,5,6,7,8,9", "5,6,7,8,9,10"]
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        write_rows(first, *rows)
        page.wait_for_function("() => [...state.drawn.values()][0].lines[0].steps.at(-1) === 10")
        page.goto(f"{url_of(listener, '127.0.0.1')}/#run=fork")
        page.wait_for_selector(f"#facts:has-text('forked from {first} at step 5')")
        page.goto("about:blank")  # the end of the server is no problem of the page


def test_runs_are_ordered_by_score_and_overlaid_together(page: Any, url: str) -> None:
    page.goto(url)
    for heading, best in (("score", "second"), ("run", "first")):
        page.click(f"#runs thead button:text('{heading}')")
        assert best in page.locator("#runs tbody th").all_inner_texts()[:2]
    page.get_by_label("Overlay all runs found").check()
    page.wait_for_function("document.title.startsWith('4 runs')")


def test_seconds_by_phase_are_a_bar_for_each_of_several_runs(page: Any, url: str) -> None:
    """Means of 5 and 4, and of 10 and 4 seconds."""
    page.goto(f"{url}/#run=first&run=second")
    page.wait_for_selector(".bars rect")
    assert page.locator(".bars text").all_text_contents() == ["first", "9 s", "second", "14 s"]
    widths = [float(bar.get_attribute("width").rstrip("%")) for bar in page.locator(".bars rect").all()]
    assert widths == pytest.approx([100 * seconds / 14 for seconds in (5, 4, 10, 4)])
    page.locator(".bars rect").nth(2).hover()
    page.wait_for_selector("#tooltip:has-text('second: generate')")
    page.goto(f"{url}/#run=first")
    page.wait_for_selector('[aria-label="Seconds by phase"] canvas')
    assert page.locator(".bars").count() == 0


def test_the_timeline_of_the_last_steps(page: Any, url: str) -> None:
    page.goto(f"{url}/#run=first")
    page.wait_for_selector("#timeline svg rect:not(.lane)")
    assert page.locator("#timeline tbody th").all_inner_texts() == ["run", EVIL]
    assert page.locator("#timeline tbody tr").nth(1).locator("td").all_inner_texts() == ["50 %", "50 %"]
    page.locator("#timeline svg rect:not(.lane)").nth(1).hover()
    page.wait_for_selector("#tooltip b:has-text('onerror')")
    page.locator('[aria-label="Earlier in the timeline"]').click()
    page.wait_for_selector("text=Nothing is recorded of these steps.")
    page.locator('[aria-label="Later in the timeline"]').click()
    page.wait_for_selector("text=follows the run")


def test_turns_have_their_times_and_tokens_their_entropy(page: Any, url: str) -> None:
    page.goto(f"{url}/#run=talk&kind=step&step=1&group=0")
    page.wait_for_selector(".turn .token")
    heads = ["turn 1 · 1.3 s", "tool: python · 0.42 s", "turn 2 · 0.5 s", "environment · 12 ms"]
    assert page.locator(".turn .role").all_text_contents() == heads
    total = "2.2 s in all: policy 1.8 s, tools 0.42 s (19 %), environment 12 ms (1 %)"
    assert page.locator(".times").inner_text() == total
    page.locator("button", has_text="entropy").click()
    page.wait_for_selector(".key:has-text('2 nats')")
    shades = [token.evaluate("node => node.style.background") for token in page.locator(".turn .token").all()]
    assert [shade.rpartition(", ")[2] for shade in shades] == ["0.188)", "0.750)"]
    page.goto(f"{url}/#run=first&kind=step&step=1&group=0")
    page.wait_for_selector("#drill button[disabled]:has-text('entropy')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_board_and_report(browser: Any, url: str, runs: Path, tmp_path: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    two = write_report(runs / "first", runs / "second", out=tmp_path / "two.html")
    reports = write_report(runs / "talk", out=tmp_path / "one.html"), two
    page = browser.new_page(color_scheme=scheme)
    for address, drawn in (
        (f"{url}/#run=first&run=second", ".chart canvas"),
        (f"{url}/#run=talk&kind=step&step=1", ".token"),
        (f"{url}/#run=first&run=second&kind=step&step=5&group=1&beside=second", ".side + .side .token"),
        *((report.as_uri(), "#curves .chart") for report in reports),
    ):
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector(drawn)
        faults = axe.run(page).response["violations"]
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in faults] == [], address
    page.close()


def test_a_report_is_the_same_page_without_a_server(page: Any, runs: Path, tmp_path: Path) -> None:
    """Curves on another axis, filters, keys, the same prompt in two runs and over training, all from the file."""
    page.goto(write_report(runs / "first", runs / "second", out=tmp_path / "two.html").as_uri())
    page.wait_for_selector(".bars rect")
    assert page.locator(".bars text").all_text_contents() == ["first", "9 s", "second", "14 s"]
    assert page.locator("#runs tbody input:checked").count() == 2
    page.locator(".tools button", has_text="time").click()
    page.wait_for_selector(".chart .legend:has-text('hours')")
    page.locator("button", has_text="responses").click()
    page.wait_for_selector("#drill .token")
    assert page.locator(".prompts [aria-current] .spread").inner_text() == "0.5 ±1"
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelector('[aria-label=\"Step\"]').value === '5'")
    page.locator('[aria-label="Another run beside this one"]').select_option("second")
    page.wait_for_selector(".side + .side .token")
    page.locator("text=over training").first.click()
    page.wait_for_selector(".over button:has-text('9: 0.5')")
    page.locator('[aria-label="Lowest reward"]').fill("0.5")
    page.wait_for_selector("text=3 responses left out by the filters")
    assert page.locator(".side").first.locator(".response").count() == 1
    assert page.locator("text=keep this step").count() == page.locator(".actions form").count() == 0


def test_no_text_of_a_run_becomes_markup_in_a_report(page: Any, runs: Path, tmp_path: Path) -> None:
    page.goto(write_report(runs / MARKED, out=tmp_path / "evil.html").as_uri())
    page.wait_for_selector("#tiles .tile:has-text('from 1')")
    page.wait_for_selector("#notes p")
    page.locator("#notes button").first.click()
    page.wait_for_selector("#drill .prompt:has-text('onerror')")
    assert page.locator("main img, main script").count() == 0


def test_no_text_of_a_run_becomes_markup(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("#runs tbody tr")
    page.locator("#runs tbody tr", has_text="onerror").locator("th button").click()
    page.wait_for_selector("#notes p")
    page.locator('[aria-label="Find a metric"]').fill("/")
    for name in ("first", "second"):
        page.locator(f'[aria-label="Overlay {name}"]').click()
    page.wait_for_selector("#configuration td:has-text('onerror')")
    page.locator("#notes button").first.click()
    page.wait_for_selector("#drill .response")
    for tint in ("log-prob", "mismatch", "weights"):
        page.locator("button", has_text=tint).first.click()
    page.locator(".token").first.hover()
    page.wait_for_selector("#drill .prompt:has-text('onerror')")
    assert page.locator("main img, main script").count() == 0
