import pytest

from penstock.errors import SettingError, StorageError, WorkerCrash
from penstock.probe import run as run_module
from penstock.probe.decode import synthetic_input
from penstock.probe.results import DecodePoint, DecodeRates, Probes, SkippedProbe
from penstock.probe.run import BUDGET_SHARES, NAMES, ProbeSubject, run_probes

RATES = DecodeRates(
    points=(DecodePoint(1, 50.0, 0.02),),
    sample_bytes=9.0,
    decoded_bytes=9,
    samples=1,
    bad=0,
    source="a test",
    seconds=1.0,
)


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of the probes, which return at once or raise the error in `fails`."""
    calls = {"fails": {}}

    def fake_probe(name, result):
        def probe(*arguments, **settings):
            calls[name] = (arguments, settings)
            if name in calls["fails"]:
                raise calls["fails"][name]
            return result

        return probe

    monkeypatch.setattr(run_module.storage, "probe_storage", fake_probe("storage", "curve"))
    monkeypatch.setattr(run_module.storage, "storage_facts", lambda path: "claim")
    monkeypatch.setattr(run_module.decode, "probe_decode", fake_probe("decode", RATES))
    monkeypatch.setattr(run_module.ipc, "probe_ipc", fake_probe("ipc", "cost"))
    monkeypatch.setattr(
        run_module.gpu_copy, "probe_copy", fake_probe("copy", SkippedProbe("torch sees no CUDA device"))
    )
    return calls


@pytest.fixture
def subject(tmp_path):
    return ProbeSubject(decode_input=synthetic_input(16, 1), path=tmp_path, batch_size=4)


def test_each_probe_gets_its_share_of_the_time(calls, subject):
    probes = run_probes(subject, seconds=10.0)
    assert sum(BUDGET_SHARES.values()) == pytest.approx(1)
    assert (probes.decode, probes.ipc) == (RATES, "cost")
    assert probes.copy == SkippedProbe("torch sees no CUDA device")
    assert probes.storage.curve == "curve"
    assert calls["storage"][1]["budget_s"] == pytest.approx(2.0)
    assert calls["decode"][1]["budget_s"] == pytest.approx(5.0)
    assert calls["ipc"][1]["budget_s"] == pytest.approx(1.5)
    assert calls["ipc"][0][1] == 4
    assert calls["copy"][0] == (4 * 3 * 16 * 16,)


def test_probes_that_are_not_requested_do_not_run(calls, subject):
    probes = run_probes(subject, ["decode"])
    assert set(calls) == {"decode", "fails"}
    assert (probes.storage, probes.ipc, probes.copy) == (None, None, None)


def test_a_probe_that_fails_is_skipped_with_its_reason(calls, subject):
    calls["fails"] = {"storage": StorageError("nothing to read"), "ipc": WorkerCrash("it died")}
    probes = run_probes(subject)
    assert probes.storage == SkippedProbe("nothing to read")
    assert probes.ipc == SkippedProbe("it died")
    assert probes.decode == RATES
    assert probes.measured


def test_storage_and_copy_run_without_samples(calls, tmp_path):
    subject = ProbeSubject(decode_input=SkippedProbe("the shard is broken"), path=tmp_path)
    probes = run_probes(subject)
    assert probes.decode == probes.ipc == SkippedProbe("the shard is broken")
    assert probes.storage.curve == "curve"
    assert calls["copy"][0] == (run_module.gpu_copy.BATCH_BYTES,)


def test_without_a_path_the_storage_probe_is_skipped(calls):
    assert run_probes(ProbeSubject(decode_input=synthetic_input(16, 1))).storage == SkippedProbe("no PATH was given")


@pytest.mark.parametrize("seconds", [0, -1, 1000, float("nan")])
def test_invalid_times_are_refused(subject, seconds):
    with pytest.raises(SettingError, match="seconds="):
        run_probes(subject, seconds=seconds)


def test_an_empty_batch_is_refused():
    with pytest.raises(SettingError, match="batch_size=0"):
        run_probes(ProbeSubject(decode_input=synthetic_input(16, 1), batch_size=0))


def test_skipped_probes_alone_are_not_measured():
    assert not Probes(decode=SkippedProbe("a"), copy=SkippedProbe("b")).measured
    assert Probes(decode=RATES, copy=SkippedProbe("b")).measured
    assert NAMES == ("storage", "decode", "ipc", "copy")
