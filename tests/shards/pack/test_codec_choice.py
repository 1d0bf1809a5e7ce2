from itertools import chain, repeat

import pytest

from penstock.shards.pack.codec_choice import CodecCandidate, choose_codec, decide_codec
from penstock.shards.pack.convert import convert_parts
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import TRIAL_SAMPLES
from penstock.shards.pack.sources import find_pack_sources
from penstock.testing import IMAGENET, SA1B, make_folder, make_shards, tar_bytes

KEEP = CodecCandidate("keep", sample_bytes=1.6e6, decode_s=0.010)
ZSTD = CodecCandidate("zstd", sample_bytes=2.0e6, decode_s=0.004)
RAW = CodecCandidate("raw", sample_bytes=2.5e6, decode_s=0.002)
ALL = (KEEP, ZSTD, RAW)


@pytest.mark.parametrize(
    ("mb_per_s", "cores", "codec", "limit"),
    [
        # the comments give samples/s as min(storage, decoding)
        # keep min(6250, 200), zstd min(5000, 500), raw min(4000, 1000): decoding limits every codec
        (10_000, 2, "raw", "decoding"),
        # keep min(62, 200), zstd min(50, 500), raw min(40, 1000): storage limits every codec
        (100, 2, "keep", "storage"),
        # keep min(625, 200), zstd min(500, 500), raw min(400, 1000): storage and decoding are balanced with zstd
        (1_000, 2, "zstd", "decoding"),
        # the same storage with many cores: keep min(625, 1600), zstd min(500, 4000), raw min(400, 8000)
        (1_000, 16, "keep", "storage"),
    ],
)
def test_the_codec_with_the_highest_rate_is_chosen_and_its_limit_is_named(mb_per_s, cores, codec, limit):
    choice = decide_codec(ALL, mb_per_s * 1e6, cores)
    assert choice.codec == codec
    assert f"{limit} is the limit" in choice.reason
    assert choice.candidates == ALL


def test_the_rate_is_the_lower_of_storage_and_decoding():
    assert KEEP.rate(160e6, 2) == pytest.approx(100)
    assert KEEP.rate(1600e6, 2) == pytest.approx(200)


def test_the_reason_gives_the_rate_of_every_codec_with_its_size_and_decoding_time():
    reason = decide_codec(ALL, 1e9, 2).reason
    assert "1000 MB/s to 2 cores" in reason
    assert "keep 200/s (1.60 MB, 10.0 ms)" in reason
    assert "zstd 500/s (2.00 MB, 4.0 ms)" in reason
    assert "raw 400/s (2.50 MB, 2.0 ms)" in reason


@pytest.mark.parametrize(("time_ratio", "codec"), [(1.02, "zstd"), (1.04, "raw")])
def test_among_equally_fast_codecs_the_one_with_smaller_samples_is_chosen(time_ratio, codec):
    # decoding limits both; raw is 2% or 4% faster, with more bytes
    zstd = CodecCandidate("zstd", 1e6, 0.001 * time_ratio)
    raw = CodecCandidate("raw", 3e6, 0.001)
    assert decide_codec((zstd, raw), 1e12, 1).codec == codec


def test_the_choice_does_not_depend_on_the_order_of_the_candidates():
    assert {decide_codec(order, 1e9, 2).codec for order in (ALL, ALL[::-1], (RAW, KEEP, ZSTD))} == {"zstd"}


def test_without_candidates_arrays_are_kept():
    choice = decide_codec((), 1e9, 2)
    assert choice.codec == "keep"
    assert "no sample" in choice.reason


# -- with samples, and a fake timer ------------------------------------------------------------------------------


class FakeTimer:
    """A timer of which every second call returns a time that is later by the next of the given durations."""

    def __init__(self, durations_s):
        self._durations_s = iter(durations_s)
        self._now = 0.0
        self._running = False

    def __call__(self):
        if self._running:
            self._now += next(self._durations_s)
        self._running = not self._running
        return self._now


def durations(samples, keep, zstd, raw):
    """Return the durations for three repeats per sample and codec."""
    return chain(repeat(keep, 3 * samples), repeat(zstd, 3 * samples), repeat(raw, 3 * samples))


@pytest.fixture
def sources(tmp_path):
    make_shards(tmp_path / "src", SA1B, samples=10, shards=2, order="grouped", scale=0.1)
    return list(find_pack_sources(str(tmp_path / "src"), PackOptions()))


@pytest.mark.parametrize(("bytes_per_s", "codec"), [(1e12, "raw"), (1e4, "keep")])
def test_trial_samples_are_converted_and_their_decoding_is_timed(sources, bytes_per_s, codec):
    timer = FakeTimer(durations(TRIAL_SAMPLES, keep=0.008, zstd=0.004, raw=0.001))
    choice = choose_codec(sources, PackOptions(), bytes_per_s, 2, timer)
    assert choice.codec == codec
    assert [candidate.codec for candidate in choice.candidates] == ["keep", "zstd", "raw"]
    assert [candidate.decode_s for candidate in choice.candidates] == pytest.approx([0.008, 0.004, 0.001])
    sizes = [candidate.sample_bytes for candidate in choice.candidates]
    assert sizes == sorted(sizes)


def test_the_decoding_time_is_the_minimum_of_the_repeats_and_the_median_of_the_samples(sources):
    timer = FakeTimer(chain([9, 0.002, 9] * 7, [5, 5, 5], repeat(1)))
    keep = choose_codec(sources, PackOptions(), 1e9, 2, timer).candidates[0]
    assert keep.decode_s == pytest.approx(0.002)


def test_sizes_are_those_of_the_converted_samples(tmp_path, originals):
    src = make_folder(tmp_path / "src", SA1B, samples=2, scale=0.1)
    options = PackOptions(image_size=64)
    choice = choose_codec(list(find_pack_sources(str(src), options)), options, 1e9, 2)
    for candidate in choice.candidates:
        candidate_options = PackOptions(image_size=64, arrays=candidate.codec)
        sizes = [
            sum(len(data) for _, data in convert_parts(parts.items(), candidate_options))
            for parts in originals(SA1B, 2).values()
        ]
        assert candidate.sample_bytes == sum(sizes) / 2


def test_with_a_cast_keep_is_not_a_candidate(sources):
    options = PackOptions(arrays="raw", casts=(("features", "float32"),))
    timer = FakeTimer(chain(repeat(0.004, 3 * TRIAL_SAMPLES), repeat(0.001, 3 * TRIAL_SAMPLES)))
    choice = choose_codec(sources, options, 1e3, 2, timer)
    assert [candidate.codec for candidate in choice.candidates] == ["zstd", "raw"]
    assert choice.codec == "zstd"


def test_without_arrays_the_codec_is_keep(tmp_path):
    src = make_folder(tmp_path / "src", IMAGENET, samples=2, scale=0.1)
    choice = choose_codec(list(find_pack_sources(str(src), PackOptions())), PackOptions(), 1e9, 2, FakeTimer([]))
    assert (choice.codec, choice.candidates) == ("keep", ())
    assert "no arrays" in choice.reason


def test_zstd_compressed_arrays_of_a_pack_are_recognised_as_arrays(tmp_path, pack_in_process):
    make_shards(tmp_path / "src", SA1B, samples=2, scale=0.1)
    packed = pack_in_process(tmp_path / "src", tmp_path / "packed", arrays="zstd").folder
    choice = choose_codec(list(find_pack_sources(str(packed), PackOptions())), PackOptions(), 1e12, 2)
    assert choice.candidates


def test_bad_samples_are_left_out_of_the_trial(tmp_path, npz):
    shard = tmp_path / "a.tar"
    good = npz(x=[1.0] * 100)
    shard.write_bytes(tar_bytes([("1.npz", good), ("2.npz", b"broken"), ("3.npz", good)]))
    choice = choose_codec(list(find_pack_sources(str(shard), PackOptions())), PackOptions(), 1e9, 2)
    assert choice.candidates[0].sample_bytes == len(good)
