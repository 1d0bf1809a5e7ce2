import pytest

from penstock.errors import SettingError, StorageError, WorkerCrash
from penstock.probe import run as room
from penstock.probe.decode_samples import made_up
from penstock.probe.results import DecodePoint, DecodeRates, Probes, SkippedProbe
from penstock.probe.run import NAMES, SHARES, ProbeSubject, run_probes

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
def asked(monkeypatch):
    """Probes that answer at once, or fail with what the test has put there."""
    asked = {"fails": {}}

    def answering(name, result):
        def probe(*arguments, **settings):
            asked[name] = (arguments, settings)
            if name in asked["fails"]:
                raise asked["fails"][name]
            return result

        return probe

    monkeypatch.setattr(room.storage, "probe", answering("storage", "curve"))
    monkeypatch.setattr(room.storage, "storage_under", lambda path: "claim")
    monkeypatch.setattr(room.decode, "probe_decode", answering("decode", RATES))
    monkeypatch.setattr(room.handover, "probe_ipc", answering("handover", "cost"))
    monkeypatch.setattr(room.copy, "probe_copy", answering("copy", SkippedProbe("torch sees no CUDA device")))
    return asked


@pytest.fixture
def subject(tmp_path):
    return ProbeSubject(material=made_up(16, 1), path=tmp_path, batch_size=4)


def test_all_probes_run_within_their_shares(asked, subject):
    probes = run_probes(subject, seconds=10.0)
    assert sum(SHARES.values()) == pytest.approx(1)
    assert (probes.decode, probes.handover) == (RATES, "cost")
    assert probes.copy == SkippedProbe("torch sees no CUDA device")
    assert probes.storage.curve == "curve"
    assert asked["storage"][1]["budget_s"] == pytest.approx(2.0)
    assert asked["decode"][1]["budget_s"] == pytest.approx(5.0)
    assert asked["handover"][1]["budget_s"] == pytest.approx(1.5)
    assert asked["handover"][0][1] == 4
    assert asked["copy"][0] == (4 * 3 * 16 * 16,)


def test_what_is_not_asked_for_is_not_run(asked, subject):
    probes = run_probes(subject, ["decode"])
    assert set(asked) == {"decode", "fails"}
    assert (probes.storage, probes.handover, probes.copy) == (None, None, None)


def test_one_that_fails_is_skipped_with_its_reason_and_the_others_kept(asked, subject):
    asked["fails"] = {"storage": StorageError("nothing to read"), "handover": WorkerCrash("it died")}
    probes = run_probes(subject)
    assert probes.storage == SkippedProbe("nothing to read")
    assert probes.handover == SkippedProbe("it died")
    assert probes.decode == RATES
    assert probes.measured


def test_without_samples_storage_and_copy_still_run(asked, tmp_path):
    subject = ProbeSubject(material=SkippedProbe("the shard is broken"), path=tmp_path)
    probes = run_probes(subject)
    assert probes.decode == probes.handover == SkippedProbe("the shard is broken")
    assert probes.storage.curve == "curve"
    assert asked["copy"][0] == (room.copy.BATCH_BYTES,)


def test_without_a_path_the_storage_is_skipped(asked):
    assert run_probes(ProbeSubject(material=made_up(16, 1))).storage == SkippedProbe("no PATH was given")


@pytest.mark.parametrize("seconds", [0, -1, 1000, float("nan")])
def test_times_that_cannot_be_kept_are_refused(subject, seconds):
    with pytest.raises(SettingError, match="seconds="):
        run_probes(subject, seconds=seconds)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(SettingError, match="batch_size=0"):
        run_probes(ProbeSubject(material=made_up(16, 1), batch_size=0))


def test_nothing_but_reasons_is_nothing_measured():
    assert not Probes(decode=SkippedProbe("a"), copy=SkippedProbe("b")).measured
    assert Probes(decode=RATES, copy=SkippedProbe("b")).measured
    assert NAMES == ("storage", "decode", "handover", "copy")
