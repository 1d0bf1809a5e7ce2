"""Mutated and random JPEG, ZIP and NPY headers raise nothing but Penstock's errors.

The guards are fuzzed in this process, and the decoders behind them in a child process that runs this file as a script.
A crash of native code is then a failing test, and not the end of the test run.
"""

import contextlib
import io
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock.errors import GuardError, PenstockError, SampleError
from penstock.shards.codecs import compress, decode_jpeg, encode_npy, shrink_jpeg, verify_part
from penstock.shards.guards import inspect_jpeg, inspect_npy, inspect_zip
from penstock.shards.guards.jpeg import MAX_PIXELS
from penstock.shards.guards.zip import MAX_ENTRY_BYTES
from penstock.testing.corrupt import mutate
from penstock.testing.images import make_image

GUARD_CASES = 100_000
"""Cases for each of the three formats."""
DECODE_CASES = 8_000
MIN_SHARE = 0.01
"""Least share of accepted and of refused cases; a smaller share means that the seeds are badly chosen."""


def jpeg_seeds() -> list[bytes]:
    image = Image.fromarray(make_image(24, 32, seed=1))
    kinds = [("RGB", {}), ("RGB", {"progressive": True}), ("L", {}), ("CMYK", {}), ("RGB", {"subsampling": 0})]
    seeds = []
    for mode, options in kinds:
        out = io.BytesIO()
        image.convert(mode).save(out, "JPEG", quality=30, comment=b"seed", icc_profile=b"x" * 40, **options)
        seeds.append(out.getvalue())
    return seeds


def npy_seeds() -> list[bytes]:
    arrays = [np.arange(6, dtype=np.float16).reshape(2, 3), np.array(1), np.zeros((0, 4)), np.array(["ab", "c"])]
    seeds = [encode_npy(array) for array in arrays]
    for array in (np.asfortranarray(np.eye(3)), np.zeros(2, "i4,f4"), np.array([{}], object)):
        out = io.BytesIO()
        np.lib.format.write_array(out, array, (2, 0))
        seeds.append(out.getvalue())
    return seeds


def zip_seeds() -> list[bytes]:
    seeds = []
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, features=np.zeros(40, np.float16), edge=np.arange(9))
        seeds.append(out.getvalue())
    limit, zipfile.ZIP64_LIMIT = zipfile.ZIP64_LIMIT, 100
    try:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            file.comment = b"with zip64 records"
            file.writestr("a.npy", encode_npy(np.arange(50)))
            file.writestr("ü.npy", encode_npy(np.zeros(50)))
        seeds.append(out.getvalue())
    finally:
        zipfile.ZIP64_LIMIT = limit
    return seeds


SEEDS: dict[str, Callable[[], list[bytes]]] = {"jpeg": jpeg_seeds, "npz": zip_seeds, "npy": npy_seeds}


def mutants(kind: str, count: int, seed: int):
    rng = random.Random(seed)
    originals = SEEDS[kind]()
    for number in range(count):
        data = originals[number % len(originals)]
        for _ in range(1 + number % 3):
            data = mutate(data, rng)
        yield data


def check_jpeg(data: bytes) -> None:
    info = inspect_jpeg(data)
    assert 0 < info.width * info.height <= MAX_PIXELS
    assert info.components in (1, 3, 4)


def check_zip(data: bytes) -> None:
    end = 0
    for entry in sorted(inspect_zip(data), key=lambda entry: entry.start):
        assert end <= entry.start
        assert entry.length <= MAX_ENTRY_BYTES
        end = entry.start + entry.compressed_length
    assert end <= len(data)


def check_npy(data: bytes) -> None:
    header = inspect_npy(data)
    assert not header.dtype.hasobject
    assert header.data_offset + header.data_length == len(data)


GUARDS = {"jpeg": check_jpeg, "npz": check_zip, "npy": check_npy}


@pytest.mark.parametrize("kind", GUARDS)
def test_mutated_headers_are_accepted_or_refused_by_penstock_errors(kind):
    outcomes: Counter[type] = Counter()
    reasons = set()
    for data in mutants(kind, GUARD_CASES, seed=20):
        try:
            outcomes[type(GUARDS[kind](data))] += 1
        except PenstockError as error:
            outcomes[type(error)] += 1
            reasons.add(re.sub(r"\d+|'.*'", "", error.reason))
    assert outcomes.keys() == {type(None), GuardError}
    assert len(reasons) >= 10  # the cases reach beyond the first checks of the guard
    assert min(outcomes.values()) > GUARD_CASES * MIN_SHARE


@pytest.mark.parametrize("kind", GUARDS)
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_random_bytes_are_accepted_or_refused_by_penstock_errors(kind, data):
    magic = data.draw(st.sampled_from([b"", b"\xff\xd8\xff", b"\x93NUMPY\x01\x00", b"PK\x05\x06", b"PK\x03\x04"]))
    noise = data.draw(st.binary(max_size=200))
    with contextlib.suppress(PenstockError):
        GUARDS[kind](magic + noise)


def decode(kind: str, data: bytes) -> None:
    if kind == "jpeg":
        decode_jpeg(data, divisor=4)
        shrink_jpeg(data, 9, "long", 80)
    elif kind == "npy":
        verify_part(".npy.zst", compress(data))
    verify_part(f".{kind}", data)


def decode_all(kind: str, seed: int) -> None:
    """Decode the mutants in the child process; print the numbers of decoded and refused ones as the last line."""
    outcomes = Counter()
    for data in mutants(kind, DECODE_CASES, seed):
        try:
            decode(kind, data)
            outcomes["decoded"] += 1
        except SampleError:
            outcomes["refused"] += 1
    print(outcomes["decoded"], outcomes["refused"])


@pytest.mark.parametrize("kind", SEEDS)
def test_mutated_parts_decode_or_are_refused_and_never_crash_the_process(kind):
    command = [sys.executable, "-W", "error", __file__, kind, "7"]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    decoded, refused = map(int, child.stdout.split()[-2:])
    assert decoded + refused == DECODE_CASES
    assert min(decoded, refused) > DECODE_CASES * MIN_SHARE


if __name__ == "__main__":
    decode_all(sys.argv[1], int(sys.argv[2]))
