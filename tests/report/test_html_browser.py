"""The page in a real browser: no errors, all plots drawn, in dark and light mode, wide and narrow."""

import os
import shutil

import pytest
from tests.report.test_html import hostile_diagnosis, hostile_recording
from tests.support.report_runs import all_well, empty, findings, healthy, hops_run, stalling, undetermined

from penstock.report.html import render_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")
"""Features that would otherwise access the network at every start."""

api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pages are not tested in a browser"
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: pages are not tested in a browser")

COLOURS = """id => {
    const canvas = document.querySelector(`canvas#${id}, #${id} canvas`);
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] === 255) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
    return [...seen];
}"""
"""Returns the opaque colours of a plot; an empty canvas has none."""
NEXT_FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Resolves when the browser has reported a new width or scheme to the page, and the page has drawn."""
ACCENT = {"light": "194,65,12", "dark": "251,138,76"}


@pytest.fixture(scope="module")
def browser():
    arguments = [
        *(f"--disable-{feature}" for feature in QUIET),
        "--no-first-run",
        *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
    ]
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Return a function that opens a page from disk; any complaint or network request of the browser is a failure."""
    complaints, opened = [], []

    def open_html(html, scheme="light", width=1100):
        path = tmp_path / "run.html"
        path.write_text(html, "utf-8")
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
        opened.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.dataset.drawn") == "yes"
        return page

    yield open_html
    for page in opened:
        page.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_of_a_stalling_run_is_drawn_in_both_schemes(open_page, scheme):
    page = open_page(render_html(stalling(), findings(), curve=[(1, 24.0), (16, 380.0)], measured=[(8, 196.0)]), scheme)
    for plot in ("strip", "timeline", "ready", "workers", "utilisation"):
        assert ACCENT[scheme] in page.evaluate(COLOURS, plot), plot
    assert len(page.evaluate(COLOURS, "throughput")) > 1
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 380) == (scheme == "light")


def test_plots_are_redrawn_when_the_scheme_changes(open_page):
    page = open_page(render_html(stalling(), findings()), "light")
    page.emulate_media(color_scheme="dark")
    page.evaluate(NEXT_FRAME)
    assert ACCENT["dark"] in page.evaluate(COLOURS, "strip")
    assert page.evaluate("document.querySelectorAll('#strip .uplot').length") == 1
    assert ACCENT["dark"] in page.evaluate(COLOURS, "timeline")


def test_the_page_fits_a_narrow_screen_and_plots_follow_its_width(open_page):
    page = open_page(render_html(stalling(), findings()), width=1100)
    page.set_viewport_size({"width": 380, "height": 800})
    page.evaluate(NEXT_FRAME)
    assert page.evaluate("document.querySelector('#strip .uplot').clientWidth") <= 380
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_pointing_at_a_slice_shows_its_description(open_page):
    page = open_page(render_html(stalling(), findings()))
    page.locator("#timeline").hover(position={"x": 300, "y": 70})
    assert page.locator("#timeline-caption").text_content().startswith("worker 0: batch ")


@pytest.mark.parametrize(
    ("recording", "diagnosis"),
    [(healthy, all_well), (hops_run, all_well), (empty, undetermined), (hostile_recording, hostile_diagnosis)],
)
def test_other_runs_are_shown_without_errors(open_page, recording, diagnosis):
    page = open_page(render_html(recording(), diagnosis()))
    assert page.locator("h1").text_content()


def test_hostile_names_are_shown_as_they_are(open_page):
    page = open_page(render_html(hostile_recording(), hostile_diagnosis()))
    assert page.locator("h1").text_content().startswith("</script><script>alert(1)</script><img")
