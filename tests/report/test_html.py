"""The page as text: complete, offline, small, and safe with any names in the recording."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest
from tests.support.report_runs import (
    RANKS_SENTENCE,
    RUN,
    all_well,
    empty,
    findings,
    gpu_run,
    healthy,
    hops_run,
    of_ranks,
    stalling,
    torch_run,
    undetermined,
)

from penstock.diagnose.verdict import diagnose
from penstock.recording.format import HopsLine, LoaderLine, LoaderSetting, StepLine
from penstock.report.html import gpu_note, render_html

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028\u202e\x1b[31m&amp;{{7*7}}'\""


def island(page):
    return json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)[1])


class Elements(HTMLParser):
    """The elements of a page and the names of their attributes, as a browser would parse them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_the_page_shows_verdict_numbers_plots_findings_and_machine():
    page = render_html(stalling(), findings(), curve=[(1, 24.0), (8, 190.0)], measured=[(8, 196.0)])
    for words in ("Data comes too slowly", "a slow one every 8 batches, the number of workers", "59 %", "480 samples/s",
                  "Where the mean step went", "device 14 ms", "Around the longest wait", "with 0 of 16 batches ready",
                  "too_few_workers", "+85% samples/s (+70% to +99%)", "Raise num_workers", "lagging_worker",
                  "36 min of 1 h went into waiting", "some were changed", "8 usable of 16", "H200",
                  "python train.py --epochs 1"):  # fmt: skip
        assert words in page, words
    assert island(page)["workers"] == {"x": [1, 8], "curve": [24.0, 190.0], "measured": [None, 196.0]}


def test_a_healthy_page_has_no_findings_and_an_empty_one_no_plots():
    assert 'id="findings"' not in render_html(healthy(), all_well())
    page = render_html(empty(), undetermined())
    assert "No steps were recorded: there is nothing to draw." in page
    assert "1 line skipped: cut short at the end (line 2)" in page
    assert "canvas" not in Elements(page).tags
    assert island(page) == {"workers": None, "utilisation": None, "throughput": None, "ready": None}


def test_hops_of_penstock_loader_are_shown_over_the_run():
    page = render_html(hops_run(), all_well())
    assert "The loader&#39;s hops" in page or "The loader's hops" in page
    assert re.search(r"decode</td>\s*<td class=\"number\">95 %", page)


def test_restarted_hops_are_shown_since_the_restart():
    lines = tuple(HopsLine(loader=0, at_s=at_s, hops={"read": sums}) for at_s, sums in ((1, (9, 0, 0)), (2, (1, 3, 0))))
    page = render_html(replace(hops_run(), hops=lines), all_well())
    assert re.search(r"read</td>\s*<td class=\"number\">25 %", page)


def test_the_page_loads_nothing_from_the_network():
    page = render_html(stalling(), findings())
    elements = Elements(page)
    assert not {"src", "srcset", "action", "formaction"} & set(elements.attributes)
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(elements.tags)
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
    named = findings()
    worst = replace(named.findings[0], rule=HOSTILE, summary=HOSTILE, evidence=(HOSTILE,), advice=HOSTILE,
                    experiment=HOSTILE)  # fmt: skip
    rejected = (replace(named.rejected[0], rule=HOSTILE, why=HOSTILE),)
    return replace(named, sentence=HOSTILE, findings=(worst,), rejected=rejected, notes=(HOSTILE,), experiment=HOSTILE)


def test_hostile_names_add_no_element_and_no_attribute():
    plain, hostile = render_html(stalling(), findings()), render_html(hostile_recording(), hostile_diagnosis())
    assert Elements(hostile).tags.count("script") == Elements(plain).tags.count("script") == 3
    assert "img" not in Elements(hostile).tags
    assert "onerror" not in Elements(hostile).attributes
    assert "{{7*7}}" in hostile  # a template in a name is not executed
    for character in ("\u2028", "\u202e", "\x1b"):
        assert character not in hostile


def test_the_json_cannot_end_its_script_element():
    page = render_html(hostile_recording(), hostile_diagnosis())
    text = re.search(r'id="figures">(.*?)</script>', page, re.S)[1]
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert island(page)["strip"]["period"] == 8


def test_a_million_steps_fit_into_two_megabytes():
    some = torch_run(batches=1000, step_s=0.0517, fetch_s=1.0371).steps
    steps = tuple(
        StepLine(loader=0, batch=step.batch or 1, at_s=step.at_s, wait_s=step.wait_s + number * 1.3e-6,
                 step_s=step.step_s, ready=step.ready, outstanding=step.outstanding, samples=24)
        for number, step in enumerate(some)
    )  # fmt: skip
    page = render_html(replace(stalling(), steps=steps * 1000), findings())
    assert "999,999 of" in page or "1,000,000" in page
    assert len(page.encode()) < 2_000_000
    assert len(island(page)["strip"]["plot"]["x"]) <= 4000


def test_one_steady_step_is_enough_and_its_absence_is_reported():
    steps = stalling().steps
    assert "longest wait" in render_html(replace(stalling(), steps=steps[:2]), undetermined())
    alone = render_html(replace(stalling(), steps=steps[:1]), undetermined())
    assert "No steps were recorded but the first of an epoch: there is nothing to draw." in alone


@pytest.mark.parametrize("wait_s", [0.0, 1e-9, 1e5])
def test_extreme_times_are_drawn(wait_s):
    steps = tuple(msgspec.structs.replace(step, wait_s=wait_s, step_s=0.0, phases={}) for step in stalling().steps)
    assert island(render_html(replace(stalling(), steps=steps), all_well()))["strip"]["plot"]["x"]


def test_very_long_lists_and_names_are_cut_with_a_note():
    loaders = {number: LoaderLine(loader=number, name="n" * 100_000) for number in range(300)}
    page = render_html(replace(stalling(), loaders={**loaders, **stalling().loaders}), findings())
    assert "240 more loaders are not shown" in page
    assert len(page) < 400_000


def test_the_page_shows_how_long_the_gpu_had_no_work():
    run = gpu_run((0.0, 0.0, 0.0), (1.0, 0.1, 0.2), (2.0, 0.2, 0.4))
    sentence = "no work of the training in 10 % of the time. Batches were being copied to it in 50 %"
    assert sentence in gpu_note(run)
    assert sentence in render_html(run, diagnose(run))
    assert gpu_note(gpu_run(None, None)) == ""
    assert gpu_note(gpu_run((0.0, 0.0, 0.0))) == ""


def test_the_page_has_the_sentence_on_the_ranks():
    assert RANKS_SENTENCE in render_html(healthy(), of_ranks())
