"""The text of a plan for many ranks: every sentence has its numbers, and unknown ones are named so."""

from dataclasses import replace
from io import StringIO

import msgspec
import numpy as np
import pytest
from rich.console import Console

from penstock.plan.fleet.cluster import Cluster
from penstock.plan.fleet.forecast import StorePrice, plan_fleet
from penstock.plan.fleet.rank_need import RankNeed
from penstock.report.fleet import fleet_document, fleet_sentences, fleet_text

NEED = RankNeed(
    source="recording",
    samples_per_batch=10.0,
    cpu_s=np.full(20, 0.2),
    waited_s=np.full(20, 0.05),
    step_s=np.full(20, 0.1),
    step_cpu_s=np.zeros(20),
    batch_bytes=10e6,
    batch_requests=100.0,
    workers=4,
    prefetch=2,
    cores=64.0,
    samples=1e6,
)
SITE = Cluster(nodes=2, gpus_per_node=4, store_bytes_s=400e6)


def sentences(need=NEED, site=SITE, **price):
    return " ".join(fleet_sentences(plan_fleet(need, site, StorePrice(**price))))


def test_the_first_sentences_give_ranks_rate_and_first_bound():
    text = sentences()
    assert "2 nodes with 4 GPUs each make 8 ranks, and a step is 80 samples." in text
    assert "50% of what the GPUs could take. The first bound: the store's bandwidth." in text


def test_the_slowest_rank_is_mentioned_if_steps_vary():
    assert "slowest" not in sentences()
    assert "the slowest of 8 ranks" in sentences(replace(NEED, step_s=np.linspace(0.05, 0.15, 20)))


def test_an_epoch_has_its_cost_and_its_price_if_one_was_given():
    assert "An epoch reads 1 TB from the store in 10,000,000 requests." in sentences()
    assert "requests, for 20.00." in sentences(of_gb=0.02)
    assert "not known" in sentences(replace(NEED, samples=None))


def test_a_cache_is_mentioned_if_there_is_one():
    assert "of cache on each node" not in sentences()
    assert "With 2 TB of cache on each node" in sentences(site=replace(SITE, cache_bytes=2e12))


def test_lanes_are_given_as_loader_arguments_and_too_little_data_is_reported():
    assert "lanes=64, block_bytes=2097152; at least 8 shards" in sentences()
    assert "too small for so many ranks" in sentences(replace(NEED, samples=2.0))


@pytest.mark.parametrize("need", [NEED, replace(NEED, batch_bytes=None, batch_requests=None, samples=None)])
def test_the_text_has_every_table(need):
    console = Console(width=160, record=True, file=StringIO())
    console.print(fleet_text(plan_fleet(need, SITE)))
    text = console.export_text()
    for title in (
        "What keeps all GPUs busy",
        "What they get",
        "What bounds the first epoch",
        "What packing would change",
    ):
        assert title in text
    assert ("not known" in text) or need is NEED
    assert "binds first" in text


def test_the_document_is_json_with_all_sections():
    document = msgspec.json.decode(msgspec.json.encode(fleet_document(plan_fleet(NEED, SITE))))
    assert document["site"]["nodes"] == 2
    assert document["epochs"][0]["limits"][0]["name"] == "store_bandwidth"
    assert document["demanded"]["store_bytes_s"] == pytest.approx(800e6)
    assert document["lanes"]["lanes"] == 64
    assert document["packing"][0]["name"] == "as it is"
