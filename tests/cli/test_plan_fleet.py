"""`penstock plan --nodes N --gpus-per-node G`."""

import json

import msgspec
import pytest

from penstock.cli.arguments import parse_byte_rate, parse_bytes
from penstock.errors import SettingError
from penstock.plan.fingerprint import fingerprint
from penstock.probe.results import DecodePoint, DecodeRates, IpcCost, Probes, probes_document
from penstock.watcher.machine.facts import machine_facts

FLEET = ("--nodes", 4, "--gpus-per-node", 8)


@pytest.fixture
def probes(tmp_path):
    found = Probes(
        decode=DecodeRates(
            points=(DecodePoint(1, 100.0, 0.01),),
            sample_bytes=100_000.0,
            decoded_bytes=150_000,
            samples=16,
            bad=0,
            source="a.tar",
            seconds=6.0,
        ),
        ipc=IpcCost(
            batch_size=8, batch_bytes=1_200_000, arrays=1, batches=100, batch_s=0.002, main_cpu_s=0.001, seconds=1.0
        ),
    )
    document = probes_document(found, fingerprint(machine_facts()))
    (tmp_path / "probes.json").write_bytes(msgspec.json.encode(document))
    return "probes.json"


def test_a_plan_can_be_made_from_a_recording(in_process, record):
    ran = in_process("plan", record(step_s=0.05), *FLEET, "--node-cores", 64)
    assert ran.code == 0, ran.err
    assert "4 nodes with 8 GPUs each make 32 ranks" in " ".join(ran.out.split())
    assert "Bytes were not counted" in " ".join(ran.out.split())


def test_a_plan_from_probes_names_a_store_that_is_too_slow(in_process, probes):
    options = ("--step-ms", 100, "--node-cores", 64, "--store-bandwidth", "100MB/s", "--dataset-bytes", "1TB")
    ran = in_process("plan", "--probes", probes, *options, *FLEET, "--json")
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)
    assert found["epochs"][0]["limits"][0]["name"] == "store_bandwidth"
    assert found["demanded"]["store_bytes_s"] == pytest.approx(32 * 800_000 / found["step_s"])
    assert found["dataset_bytes"] == pytest.approx(1e12)
    assert found["cores"] == 64
    assert found["epochs"][0]["samples_s"] <= 1001


def test_a_cache_and_prices_are_used(in_process, probes):
    options = ("--step-ms", 100, "--node-cores", 64, "--dataset-bytes", "1TB", "--cache-bytes", "2TB")
    prices = ("--price-gb", 0.02, "--price-requests", 0.4)
    found = in_process("plan", "--probes", probes, *options, *prices, *FLEET, "--json").json
    assert [epoch["hits"] for epoch in found["epochs"]] == [0, pytest.approx(0.25), 1]
    assert found["epochs"][0]["price"] == pytest.approx(1000 * 0.02 + 10 * 0.4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nodes", 4), "Give both --nodes and --gpus-per-node"),
        (("--network", "1GB"), "--network: for how many ranks?"),
        ((*FLEET, "-o", "plan.yaml"), "-o is for the plan of one loader"),
        ((*FLEET, "--profile", "speed"), "--profile is for the plan of one loader"),
        ((*FLEET, "--format", "md"), "--format is for the plan of one loader"),
        ((*FLEET, "--store-bandwidth", "fast"), "--store-bandwidth: 'fast' is no rate"),
        ((*FLEET, "--cache-bandwidth", "1GB"), "Give --cache-bytes too"),
        ((*FLEET, "--price-gb", -1), "--price-gb is below 0"),
        ((*FLEET, "--node-cores", 0), "a limit is a number above 0"),
        ((*FLEET, "--dataset-bytes", "1TB"), "bytes were not counted"),
    ],
)
def test_wrong_usage_is_reported(in_process, record, arguments, words):
    ran = in_process("plan", record(step_s=0.05), *arguments)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_a_dataset_cannot_be_planned_for_nodes(in_process):
    ran = in_process("plan", "--dataset", "a:b", *FLEET)
    assert ran.code == 2
    assert "from a recording or probes" in ran.err


def test_probes_without_a_step_are_refused_with_advice(in_process, probes):
    ran = in_process("plan", "--probes", probes, *FLEET)
    assert ran.code == 2
    assert "--step-ms" in ran.err


def test_a_run_with_few_steps_is_refused(in_process, record):
    ran = in_process("plan", record(count=3), *FLEET)
    assert ran.code == 2
    assert "too few to plan from" in ran.err


@pytest.mark.parametrize(
    ("text", "number"), [("500GB", 500e9), ("8 TiB", 8 * 2**40), ("1000", 1000), ("1.5kB", 1500), ("2 KiB", 2048)]
)
def test_sizes_are_parsed(text, number):
    assert parse_bytes(text, "--cache-bytes") == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("25GB/s", 25e9), ("25GB", 25e9), ("100Gbit/s", 12.5e9), ("100Gbps", 12.5e9), ("100Gb/s", 12.5e9)],
)
def test_rates_are_parsed(text, number):
    assert parse_byte_rate(text, "--network") == number


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "12 apples", "1e9", "nan", "1GBB", "5GB/s", "5Gbit"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(SettingError, match="--cache-bytes"):
        parse_bytes(text, "--cache-bytes")


@pytest.mark.parametrize("text", ["", "100", "1000000000", "-1GB/s", "fast"])
def test_a_rate_without_a_unit_is_refused(text):
    with pytest.raises(SettingError, match=r"--network.*100Gbps"):
        parse_byte_rate(text, "--network")
