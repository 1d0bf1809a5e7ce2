import msgspec
import pytest

from penstock.errors import SettingError
from penstock.probe.results import (
    MAX_BYTES,
    CopyRates,
    DecodePoint,
    DecodeRates,
    IpcCost,
    Probes,
    SkippedProbe,
    StorageProbe,
    probes_document,
    read_probes,
)
from penstock.probe.storage_curve import CurvePoint, OpenStat, StorageCurve
from penstock.storage.mounts import identify_storage

CURVE = StorageCurve((CurvePoint(1, 180.0, 90.0),), 4096, OpenStat(10.0, 20.0, 5), True, "direct", 1 << 20, 2.0, 0.0)
DECODE = DecodeRates(
    points=(DecodePoint(1, 500.0, 0.002),),
    sample_bytes=112_000.0,
    decoded_bytes=150_528,
    samples=16,
    bad=0,
    source="a.tar",
    seconds=6.0,
)
IPC = IpcCost(batch_size=8, batch_bytes=1_204_224, arrays=1, batches=9, batch_s=0.01, main_cpu_s=0.001, seconds=1)
COPY = CopyRates(device="cuda", batch_bytes=1_204_224, pinned_s=0.001, pageable_s=0.003, seconds=1.0)


@pytest.fixture
def write(tmp_path):
    def write(document):
        path = tmp_path / "probes.json"
        path.write_bytes(document if isinstance(document, bytes) else msgspec.json.encode(document))
        return path

    return write


def test_the_printed_document_can_be_read_back(write, tmp_path):
    probes = Probes(storage=StorageProbe(identify_storage(tmp_path), CURVE), decode=DECODE, ipc=IPC, copy=COPY)
    found = read_probes(write(probes_document(probes, {"machine": {"usable_cores": 2}})))
    assert (found.curve, found.decode, found.ipc, found.copy) == (CURVE, DECODE, IPC, COPY)
    assert found.fingerprint == {"machine": {"usable_cores": 2}}
    assert found.reasons == {}


def test_a_skipped_probe_has_a_reason_and_a_probe_that_was_not_requested_is_none(write):
    found = read_probes(write(probes_document(Probes(storage=SkippedProbe("no PATH"), decode=DECODE), {})))
    assert (found.curve, found.ipc, found.copy) == (None, None, None)
    assert found.reasons == {"storage": "no PATH"}


def test_an_older_file_has_no_fingerprint(write):
    document = probes_document(Probes(decode=DECODE), {})
    del document["fingerprint"]
    assert read_probes(write(document)).fingerprint == {}


def test_the_old_key_of_the_ipc_probe_is_read(write):
    document = probes_document(Probes(ipc=IPC), {})
    document["handover"] = document.pop("ipc")  # glossary: allow
    assert read_probes(write(document)).ipc == IPC


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"", "holds no probes"),
        (b"not json", "holds no probes"),
        (b"[" * 100_000, "holds no probes"),
        (b'"' + b"x" * MAX_BYTES + b'"', "holds no probes"),
        ({"kind": "run"}, "holds no probes"),
        ({"decode": {"points": []}}, "decode: Object missing required field"),
        ({"decode": 7}, "decode: Expected `object`"),
        ({"ipc": {**msgspec.to_builtins(IPC), "batch_s": "long"}}, "ipc: Expected `float`"),
        ({"storage": {"curve": {**msgspec.to_builtins(CURVE), "points": []}}}, "storage.curve: a curve's points rise"),
        ({"storage": "fast"}, "storage.curve: Expected `object`"),
    ],
)
def test_a_file_without_probes_is_refused_with_the_place_of_the_error(write, document, words):
    path = write(document)
    with pytest.raises(SettingError) as caught:
        read_probes(path)
    assert str(caught.value).startswith(f"{path}: {words}")
    assert "penstock probe all SHARDS --json" in str(caught.value)


@pytest.mark.parametrize("name", ["none.json", ".", "a\0b"])
def test_an_unreadable_file_is_named_in_the_error(tmp_path, name):
    with pytest.raises(SettingError, match="cannot be read"):
        read_probes(tmp_path / name)
