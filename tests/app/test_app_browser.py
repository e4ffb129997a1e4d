"""The page in a browser: all three tabs, as a user would go through them.

It needs Gradio, Playwright (the Python package alone: it drives a Chromium that is installed) and
Chromium.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.data import write_table

pytest.importorskip("gradio", reason="the page needs the extra app")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]
PATIENCE = 180_000  # milliseconds; on an idle machine it takes seconds


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    """Serve the page in a process of its own, which must have nothing to complain about."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("small_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "ARCSM_DATA"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(f"the server did not start: {process.communicate()[1]}")
    yield json.loads(line)
    said, complained = process.communicate("", timeout=60)
    assert (said, complained, process.returncode) == ("", "", 0)


@dataclass
class Visit:
    """A page in a browser, and what it asked for and complained of meanwhile."""

    page: Any
    elsewhere: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def shows(self, place: str, text: str) -> None:
        """Wait until a part of the page has a text."""
        self.page.wait_for_function(
            "([place, text]) => document.querySelector(place)?.innerText.includes(text)",
            arg=[place, text],
            timeout=PATIENCE,
        )

    def draw(self, pad: str, line: Callable[[float], tuple[float, float]]) -> None:
        """Draw a line on a pad, by the mouse; both coordinates from 0 to 1, the second down."""
        canvas = self.page.locator(f"{pad} canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        for step in range(25):
            right, down = line(step / 24)
            self.page.mouse.move(box["x"] + right * box["width"], box["y"] + down * box["height"])
            if step == 0:
                self.page.mouse.down()
        self.page.mouse.up()

    def pictures(self, place: str) -> int:
        """Count the pictures in a part of the page that were indeed drawn."""
        count = "i => i.filter(x => x.complete && x.naturalWidth > 0).length"
        return int(self.page.locator(f"{place} img").evaluate_all(count))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(served: dict[str, Any], browser: Any) -> Iterator[Visit]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = Visit(page)

    def requested(request: Any) -> None:
        if not request.url.startswith((served["url"], "data:", "blob:")):
            found.elsewhere.append(request.url)

    page.on("request", requested)
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: found.complaints.append(said.text) if said.type == "error" else None,
    )
    page.goto(served["url"])
    page.wait_for_selector("#learn", timeout=PATIENCE)
    yield found
    page.close()
    assert found.elsewhere == [] and found.complaints == []


def ring(share: float) -> tuple[float, float]:
    angle = 2 * math.pi * share
    return 0.5 + 0.3 * math.cos(angle), 0.5 + 0.3 * math.sin(angle)


def test_nothing_is_fetched_from_elsewhere_and_trainings_queue(served: dict[str, Any]) -> None:
    with urllib.request.urlopen(served["url"]) as answer:
        policy = answer.headers["content-security-policy"]
        content = answer.read().decode()
    assert policy.startswith("default-src 'self'") and "http" not in policy
    for host in ("googleapis", "gstatic", "cdnjs", "jsdelivr", "unpkg"):
        assert host not in content
    assert served["training"] == [1, 1, 1]
    assert served["open"] == [] and served["analytics"] is False


def test_a_drawing_is_learned_and_can_be_stopped(visit: Visit) -> None:
    page = visit.page
    page.locator("#learn").click()
    visit.shows("#learn-status", "Expected a drawing, got an empty pad")
    visit.draw("#pad", ring)
    page.locator("#learn").click()
    visit.shows("#learn-status", "Learned in 200 steps")
    assert visit.pictures("#learn-view") == 3
    picture = page.locator("#learn-view img").nth(1).get_attribute("src")
    page.locator("#learn").click()
    visit.shows("#learn-status", "Learning: step")
    page.locator("#learn-stop").click()
    visit.shows("#learn-status", "Stopped.")
    page.wait_for_selector("#learn:not([disabled])", timeout=PATIENCE)
    # What was drawn is still there, and gives the same picture again.
    page.locator("#learn").click()
    visit.shows("#learn-status", "Learned in 200 steps")
    assert page.locator("#learn-view img").nth(1).get_attribute("src") == picture
    page.locator("#pad .clear").click()
    page.locator("#learn").click()
    visit.shows("#learn-status", "Expected a drawing, got an empty pad")


def test_a_table_is_learned_and_a_bad_one_is_told(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    random = np.random.default_rng(0)
    height = random.normal(170, 10, 60)
    age = random.integers(18, 80, 60).astype(float)
    height[5], age[7] = 900.0, np.nan
    # Names that a page which trusts its user would run or fill in.
    write_table(tmp_path / "people.csv", {"{{value}}": height, "${1+1}<b>": age})
    write_table(tmp_path / "same.csv", {"one": np.ones(40), "two": np.full(40, 2.0)})
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n1,2,3\n")
    page.get_by_role("tab", name="A table").click()
    page.locator("#table-learn").click()
    visit.shows("#table-status", "Expected a table, got none")
    choose = page.locator("#table-file input[type=file]")
    choose.set_input_files(tmp_path / "bad.csv")
    visit.shows("#table-status", "'bad.csv'")
    page.get_by_label("Remove").or_(page.get_by_label("Clear")).first.click()
    choose.set_input_files(tmp_path / "same.csv")
    visit.shows("#table-columns", "same.csv: 40 rows")
    page.locator("#table-learn").click()
    visit.shows("#table-status", "constant")
    page.get_by_label("Remove").or_(page.get_by_label("Clear")).first.click()
    choose.set_input_files(tmp_path / "people.csv")
    visit.shows("#table-columns", "people.csv: 60 rows, 2 columns")
    page.locator("#table-learn").click()
    visit.shows("#table-status", "Done: people.csv")
    for name in ("{{value}}", "${1+1}<b>"):
        assert name in page.locator("#table-columns").inner_text()
    assert "row 6" in page.locator("#table-odd").inner_text()
    assert "{{value}} = 900" in page.locator("#table-odd").inner_text()
    assert "1 empty cells were filled" in page.locator("#table-gaps").inner_text()
    assert visit.pictures("#table-odd") == visit.pictures("#table-density") == 1
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_digit_is_spoiled_cleaned_and_completed(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("tab", name="Noisy digits").click()
    page.locator("#digit-picker button").nth(3).click()
    page.locator("#clean").click()
    visit.shows("#digits-status", "Done.")
    assert visit.pictures("#digits-view") == 4
    assert page.locator("#digits-view").inner_text().count("dB") == 2
    first = page.locator("#digits-view img").first
    picked = page.locator("#digit-picker img").nth(3).get_attribute("src")
    assert first.get_attribute("src") == picked
    page.get_by_role("tab", name="Draw or upload one").click()
    page.locator("#digit-pad canvas").wait_for(state="visible", timeout=PATIENCE)
    visit.draw("#digit-pad", lambda share: (0.5, 0.2 + 0.6 * share))
    page.get_by_text("salt and pepper").click()
    page.locator("#share").wait_for(state="visible", timeout=PATIENCE)
    page.locator("#clean").click()
    visit.shows("#digits-status", "Cleaning")
    assert first.get_attribute("src") != picked
    page.locator("#clean-stop").click()
    visit.shows("#digits-status", "Stopped.")


def test_nothing_is_cut_off_on_a_telephone(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 400, "height": 800})
    for tab in ("A table", "Noisy digits", "Draw a density"):
        visit.page.get_by_role("tab", name=tab).click()
        visit.page.wait_for_timeout(300)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400
