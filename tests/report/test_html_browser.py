"""The page in a real browser: no errors, plots that are drawn, in the dark and in the light, wide and narrow."""

import os
import shutil

import pytest
from tests.report.test_html import hostile_diagnosis, hostile_recording
from tests.support.report_runs import all_well, empty, findings, healthy, hops_run, stalling, undetermined

from penstock.report.html import render_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")
"""What a browser would otherwise try at every start."""

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pages are not looked at")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: pages are not looked at")

COLOURS = """id => {
    const canvas = document.querySelector(`canvas#${id}, #${id} canvas`);
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4)
        if (data[at + 3] === 255) seen.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
    return [...seen];
}"""
"""Opaque colours of a plot: an empty canvas has none."""
NEXT_FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""By then the browser has told the page of a new width or scheme, and the page has drawn."""
ACCENT = {"light": "194,65,12", "dark": "251,138,76"}


@pytest.fixture(scope="module")
def browser():
    arguments = [
        *(f"--disable-{what}" for what in QUIET),
        "--no-first-run",
        *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
    ]
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def look(browser, tmp_path):
    """Opens a page from disk, and fails on anything the browser complains about or asks the network for."""
    complaints, opened = [], []

    def open_page(html, scheme="light", width=1100):
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

    yield open_page
    for page in opened:
        page.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_of_a_stalling_run_is_drawn_in_both_schemes(look, scheme):
    page = look(render_html(stalling(), findings(), curve=[(1, 24.0), (16, 380.0)], measured=[(8, 196.0)]), scheme)
    for plot in ("strip", "lanes", "ready", "workers", "utilisation"):
        assert ACCENT[scheme] in page.evaluate(COLOURS, plot), plot
    assert len(page.evaluate(COLOURS, "throughput")) > 1
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 380) == (scheme == "light")


def test_plots_are_drawn_anew_when_the_scheme_changes(look):
    page = look(render_html(stalling(), findings()), "light")
    page.emulate_media(color_scheme="dark")
    page.evaluate(NEXT_FRAME)
    assert ACCENT["dark"] in page.evaluate(COLOURS, "strip")
    assert page.evaluate("document.querySelectorAll('#strip .uplot').length") == 1
    assert ACCENT["dark"] in page.evaluate(COLOURS, "lanes")


def test_the_page_fits_a_narrow_screen_and_plots_follow_its_width(look):
    page = look(render_html(stalling(), findings()), width=1100)
    page.set_viewport_size({"width": 380, "height": 800})
    page.evaluate(NEXT_FRAME)
    assert page.evaluate("document.querySelector('#strip .uplot').clientWidth") <= 380
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_pointing_at_a_slice_says_what_it_is(look):
    page = look(render_html(stalling(), findings()))
    page.locator("#lanes").hover(position={"x": 300, "y": 70})
    assert page.locator("#lanes-under").text_content().startswith("worker 0: batch ")


@pytest.mark.parametrize(
    ("recording", "diagnosis"),
    [(healthy, all_well), (hops_run, all_well), (empty, undetermined), (hostile_recording, hostile_diagnosis)],
)
def test_other_runs_are_shown_without_a_complaint(look, recording, diagnosis):
    page = look(render_html(recording(), diagnosis()))
    assert page.locator("h1").text_content()


def test_hostile_names_are_shown_as_they_are(look):
    page = look(render_html(hostile_recording(), hostile_diagnosis()))
    assert page.locator("h1").text_content().startswith("</script><script>alert(1)</script><img")
