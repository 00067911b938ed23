"""The picture of a report's rollouts: four responses to one prompt of an early step, tinted by their log-probabilities.

    python benchmarks/rollouts_picture.py runs/demo/rl [--step 6] [--picture docs/images/rollouts.png]

Writes the report of the run, opens it in headless Chromium at that step, and keeps what fits on a small picture: the
prompt whose responses differ most, put first, and four of them. Needs `chromium` on the PATH.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

import burnish

WIDTH, HEIGHT = 1010, 424  # CSS pixels; wide enough for two columns of responses
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# Runs after the page's own scripts, with their variables. Responses are hidden, not taken out: means stay those of all.
SCRIPT = """
const [run] = Object.keys(held.details);
const file = held.details[run].rollouts.find((one) => one.kind === "step" && one.step === STEP);
const text = (response) => response.tokens.join("");
const variety = (group) => new Set(group.responses.map(text)).size;
const right = (group) => group.responses.filter((response) => response.reward === 1).length / group.responses.length;
const order = (a, b) => variety(b) - variety(a) || Math.abs(right(a) - 0.5) - Math.abs(right(b) - 0.5);
file.groups.sort(order);
const [best] = file.groups;
const firsts = best.responses.filter((r, i, all) => all.findIndex((other) => text(other) === text(r)) === i);
best.responses = [...new Set([...firsts, ...best.responses])];
view.tint = "logprob";
document.documentElement.dataset.theme = "light";
location.hash = new URLSearchParams({ run, kind: "step", step: STEP, group: 0 });
setTimeout(() => {
  document.querySelectorAll("header.top, .where, .filters, .actions").forEach((part) => part.remove());
  document.querySelector("#drill .controls").lastChild.remove();  // the order of the responses
  document.querySelectorAll(".response").forEach((card, i) => { card.hidden = i > 3; });
  document.querySelector(".prompts").style.cssText = "max-height: 338px; position: static";
  document.querySelector("main").style.padding = "16px 24px 0";
  document.documentElement.style.overflow = "hidden";
  scrollTo(0, 0);
}, 1500);
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of an RL run, such as the demo's")
    parser.add_argument("--step", type=int, default=6, help="a training step that the report shows")
    parser.add_argument("--picture", type=Path, default=Path("docs/images/rollouts.png"), help="file to write")
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"None of {', '.join(BROWSERS)} is on the PATH: install Chromium.")
    page = burnish.load_run(options.run).report().read_text(encoding="utf-8")
    if not re.search(rf'"kind": ?"step", ?"step": ?{options.step}\b', page):
        raise SystemExit(f"The report of {options.run} does not show training step {options.step}: choose another one.")
    with tempfile.TemporaryDirectory() as folder:
        opened = Path(folder) / "report.html"
        opened.write_text(page + f"<script>{SCRIPT.replace('STEP', str(options.step))}</script>", encoding="utf-8")
        photograph(browser, opened, options.picture)
    with Image.open(options.picture) as picture:
        picture.convert("RGB").quantize(256).save(options.picture, optimize=True)  # a third of the size
    print(f"{options.picture}: {options.picture.stat().st_size / 1000:.0f} kB")


def photograph(browser: str, page: Path, picture: Path) -> None:
    """Two pixels for each of CSS. The page is ours and loads nothing, so it needs no sandbox."""
    size = [f"--window-size={WIDTH},{HEIGHT}", "--force-device-scale-factor=2", "--hide-scrollbars"]
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'browser'}"]
    kept = ["--virtual-time-budget=5000", f"--screenshot={picture.resolve()}"]
    command = [browser, *quiet, *size, *kept, page.resolve().as_uri()]
    subprocess.run(command, check=True, timeout=180, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
