"""Images that are left to the GPU, and the fraction of them, which workers read while it changes."""

import io
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import simplejpeg
from PIL import Image as Pillow

from penstock.data.fields import Image
from penstock.data.fields.base import EncodedImage, SampleContext
from penstock.data.fields.geometry import RANDOM_NUMBERS, RandomResizedCrop
from penstock.data.fields.gpu_image import GpuDecodedImage, SharedFraction
from penstock.testing import make_image

IMAGE = Image((".jpg", ".png"), size=(48, 64), quality="exact", decode="gpu")
READER = """
import pickle, sys
fraction = pickle.load(sys.stdin.buffer.raw)
print(fraction.value, flush=True)
sys.stdin.buffer.raw.read(1)
print(fraction.value, flush=True)
"""


def test_a_greyscale_jpeg_is_left_to_the_gpu():
    buffer = io.BytesIO()
    Pillow.fromarray(make_image(90, 120, 1)).convert("L").save(buffer, "JPEG", quality=90)
    data = memoryview(buffer.getvalue())
    slot = np.zeros((3, 48, 64), np.uint8)
    assert GpuDecodedImage(IMAGE).decode_into(".jpg", data, slot, SampleContext()) == EncodedImage(
        len(data), 90, 120, 0, 0, 90, 120
    )
    assert bytes(slot.reshape(-1)[: len(data)]) == bytes(data)


def left_to_gpu(field, suffix, data, draws=()):
    """Return the note about an image, and its slot and geometry, after checking that pixels equal those of the CPU."""
    sample, slot = SampleContext(draws), np.zeros(field.image.shape, np.uint8)
    note = field.decode_into(suffix, memoryview(data), slot, sample)
    if note is None:
        assert np.array_equal(slot, field.image.decode_value(suffix, memoryview(data), SampleContext(draws)))
    else:
        assert bytes(slot.reshape(-1)[: note.length]) == data
    return note, sample.geometry


def encoded(kind, **options):
    buffer = io.BytesIO()
    Pillow.fromarray(make_image(90, 120, 1)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_what_is_left_to_the_gpu_is_decided_by_the_bytes_and_not_by_the_name(suffix):
    assert left_to_gpu(GpuDecodedImage(IMAGE), suffix, encoded("JPEG", quality=80))[0] is not None
    for kind in ("PNG", "WEBP", "BMP", "GIF"):
        assert left_to_gpu(GpuDecodedImage(IMAGE), suffix, encoded(kind))[0] is None


def test_a_jpeg_with_stray_bytes_in_its_header_is_decoded_on_the_cpu():
    data = encoded("JPEG", quality=80)
    assert left_to_gpu(GpuDecodedImage(IMAGE), ".jpg", data[:20] + b"stray" + data[20:])[0] is None


def test_the_note_has_the_window_and_the_mirroring_that_were_drawn_and_gives_the_same_geometry():
    image = Image(size=(48, 64), crop=RandomResizedCrop(), flip=0.5, quality="exact", decode="gpu")
    data = encoded("JPEG", quality=80)
    for seed in range(10):
        draws = np.random.default_rng(seed).random(RANDOM_NUMBERS).tolist()
        note, geometry = left_to_gpu(GpuDecodedImage(image), ".jpg", data, draws)
        assert geometry == image.geometry(90, 120, draws) == image.geometry_of(note)
        slot = np.zeros(image.shape, np.uint8)
        image.decode_noted(memoryview(data), slot, note)
        assert np.array_equal(slot, image.decode_value(".jpg", memoryview(data), SampleContext(draws)))


def test_a_fraction_of_the_images_is_left_to_the_gpu_and_always_the_same_ones():
    slot = np.zeros((3, 48, 64), np.uint8)
    jpegs = [simplejpeg.encode_jpeg(make_image(16, 16, number), quality=90) for number in range(64)]

    def left_to_gpu(fraction):
        field = GpuDecodedImage(IMAGE, fraction)
        notes = [field.decode_into(".jpg", memoryview(jpeg), slot, SampleContext()) for jpeg in jpegs]
        return {number for number, note in enumerate(notes) if note is not None}

    assert left_to_gpu(0.5) == left_to_gpu(0.5)
    assert 16 < len(left_to_gpu(0.5)) < 48
    assert left_to_gpu(0.25) < left_to_gpu(0.5) < left_to_gpu(1.0) == set(range(64))
    assert left_to_gpu(0.0) == set()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers keep the value that they were sent")
def test_another_process_sees_the_fraction_change():
    fraction = SharedFraction(0.25)
    with subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as reader:
        reader.stdin.write(pickle.dumps(fraction))
        assert reader.stdout.readline() == b"0.25\n"
        fraction.value = 0.75
        reader.stdin.write(b"!")
        assert reader.stdout.readline() == b"0.75\n"


def test_a_fraction_that_is_not_pickled_is_a_number():
    fraction = SharedFraction(0.5)
    fraction.value = 0.125
    assert fraction.value == 0.125


def test_a_fraction_whose_owner_has_ended_keeps_the_value_that_was_sent():
    sent = pickle.dumps(SharedFraction(0.5))
    assert pickle.loads(sent).value == 0.5


def test_a_descriptor_that_was_reused_for_another_file_is_not_read(tmp_path):
    state = SharedFraction(0.5).__getstate__()
    with open(tmp_path / "other", "wb") as other:
        other.write(bytes(64))
        other.flush()
        fraction = SharedFraction.__new__(SharedFraction)
        fraction.__setstate__((f"/proc/{os.getpid()}/fd/{other.fileno()}", state[1]))
    assert fraction.value == 0.5


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors cannot be counted")
def test_a_fraction_leaves_no_descriptor_open():
    before = len(os.listdir("/proc/self/fd"))
    fraction = SharedFraction(0.5)
    pickle.dumps(fraction)
    pickle.dumps(fraction)
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # that of the memory, and that of its mapping
    del fraction
    assert len(os.listdir("/proc/self/fd")) == before
