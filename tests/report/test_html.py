"""The page as text: complete, offline, small, and safe whatever the names in the recording are."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest
from tests.support.report_runs import (
    RUN,
    all_well,
    empty,
    findings,
    healthy,
    hops_run,
    stalling,
    torch_run,
    undetermined,
)

from penstock.recording.format import HopsLine, LoaderLine, LoaderSetting, StepLine
from penstock.report.html import render_html

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028\u202e\x1b[31m&amp;{{7*7}}'\""


def island(page):
    return json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)[1])


class Elements(HTMLParser):
    """Which elements a browser would see, and their attributes."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_everything_is_on_the_page():
    page = render_html(stalling(), findings(), curve=[(1, 24.0), (8, 190.0)], measured=[(8, 196.0)])
    for words in ("Data comes too slowly", "a slow one every 8 batches, the number of workers", "59 %", "480 samples/s",
                  "Where the mean step went", "device 14 ms", "Around the longest wait", "with 0 of 16 batches ready",
                  "too_few_workers", "+85% samples/s (+70% to +99%)", "Raise num_workers", "lagging_worker",
                  "36 min of 1 h went into waiting", "some were changed on the way", "8 usable of 16", "H200",
                  "python train.py --epochs 1"):  # fmt: skip
        assert words in page, words
    assert island(page)["workers"] == {"x": [1, 8], "curve": [24.0, 190.0], "measured": [None, 196.0]}


def test_a_healthy_page_has_no_findings_and_a_page_of_nothing_no_plots():
    assert 'id="findings"' not in render_html(healthy(), all_well())
    page = render_html(empty(), undetermined())
    assert "No steps were recorded: there is nothing to draw." in page
    assert "1 line skipped: cut short at the end (line 2)" in page
    assert "canvas" not in Elements(page).seen
    assert island(page) == {"workers": None, "utilisation": None, "throughput": None, "ready": None}


def test_hops_of_our_loader_are_shown_over_the_run():
    page = render_html(hops_run(), all_well())
    assert "The loader&#39;s hops" in page or "The loader's hops" in page
    assert re.search(r"decode</td>\s*<td class=\"number\">95 %", page)


def test_hops_that_began_anew_are_shown_since_then():
    lines = tuple(HopsLine(loader=0, at_s=at, hops={"read": sums}) for at, sums in ((1, (9, 0, 0)), (2, (1, 3, 0))))
    page = render_html(replace(hops_run(), hops=lines), all_well())
    assert re.search(r"read</td>\s*<td class=\"number\">25 %", page)


def test_the_page_loads_nothing_from_anywhere():
    page = render_html(stalling(), findings())
    elements = Elements(page)
    assert not {"src", "srcset", "action", "formaction"} & set(elements.attributes)
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(elements.seen)
    assert "default-src 'none'" in page
    assert not re.search(r"@import|url\(", page)


def hostile_recording():
    steps = tuple(
        msgspec.structs.replace(step, phases={HOSTILE: 0.01, f"{HOSTILE}/in": 0.005}) for step in stalling().steps
    )
    loader = LoaderLine(
        loader=0,
        name=HOSTILE,
        type=HOSTILE,
        dataset=HOSTILE,
        settings={HOSTILE: LoaderSetting(requested=HOSTILE, in_force=1)},
    )
    hops = (HopsLine(loader=0, at_s=1.0, hops={HOSTILE: (1.0, 0.0, 0.0)}),)
    run = msgspec.structs.replace(RUN, command=(HOSTILE,), penstock=HOSTILE)
    return replace(stalling(), run=run, loaders={0: loader}, steps=steps, hops=hops, notes=(HOSTILE,))


def hostile_diagnosis():
    plain = findings()
    worst = replace(plain.findings[0], rule=HOSTILE, summary=HOSTILE, evidence=(HOSTILE,), advice=HOSTILE,
                    experiment=HOSTILE)  # fmt: skip
    rejected = (replace(plain.rejected[0], rule=HOSTILE, why=HOSTILE),)
    return replace(plain, sentence=HOSTILE, findings=(worst,), rejected=rejected, notes=(HOSTILE,), experiment=HOSTILE)


def test_hostile_names_add_no_element_and_no_attribute():
    tame, wild = render_html(stalling(), findings()), render_html(hostile_recording(), hostile_diagnosis())
    assert Elements(wild).seen.count("script") == Elements(tame).seen.count("script") == 3
    assert "img" not in Elements(wild).seen
    assert "onerror" not in Elements(wild).attributes
    assert "{{7*7}}" in wild  # a template in a name is not run
    for character in ("\u2028", "\u202e", "\x1b"):
        assert character not in wild


def test_the_data_island_cannot_be_left():
    page = render_html(hostile_recording(), hostile_diagnosis())
    text = re.search(r'id="figures">(.*?)</script>', page, re.S)[1]
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert island(page)["strip"]["period"] == 8


def test_a_million_steps_fit_into_two_megabytes():
    some = torch_run(batches=1000, step_s=0.0517, fetch_s=1.0371).steps
    steps = tuple(
        StepLine(loader=0, batch=step.batch or 1, at_s=step.at_s, wait_s=step.wait_s + number * 1.3e-6, step_s=step.step_s,
             ready=step.ready, outstanding=step.outstanding, samples=24)
        for number, step in enumerate(some)
    )  # fmt: skip
    page = render_html(replace(stalling(), steps=steps * 1000), findings())
    assert "999,999 of" in page or "1,000,000" in page
    assert len(page.encode()) < 2_000_000
    assert len(island(page)["strip"]["plot"]["x"]) <= 4000


def test_one_step_is_enough_and_none_after_the_first_is_told():
    steps = stalling().steps
    assert "longest wait" in render_html(replace(stalling(), steps=steps[:2]), undetermined())
    alone = render_html(replace(stalling(), steps=steps[:1]), undetermined())
    assert "No steps were recorded but the first of a pass: there is nothing to draw." in alone


@pytest.mark.parametrize("wait_s", [0.0, 1e-9, 1e5])
def test_extreme_times_are_drawn(wait_s):
    steps = tuple(msgspec.structs.replace(step, wait_s=wait_s, step_s=0.0, phases={}) for step in stalling().steps)
    assert island(render_html(replace(stalling(), steps=steps), all_well()))["strip"]["plot"]["x"]


def test_endless_lists_and_names_are_cut_and_it_is_said():
    loaders = {number: LoaderLine(loader=number, name="n" * 100_000) for number in range(300)}
    page = render_html(replace(stalling(), loaders={**loaders, **stalling().loaders}), findings())
    assert "240 more loaders are not shown" in page
    assert len(page) < 400_000
