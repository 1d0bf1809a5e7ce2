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
from penstock.data.fields.base import EncodedImage
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
    assert GpuDecodedImage(IMAGE).decode_into(".jpg", data, slot) == EncodedImage(len(data), 90, 120)
    assert bytes(slot.reshape(-1)[: len(data)]) == bytes(data)


def test_a_fraction_of_the_images_is_left_to_the_gpu_and_always_the_same_ones():
    slot = np.zeros((3, 48, 64), np.uint8)
    jpegs = [simplejpeg.encode_jpeg(make_image(16, 16, number), quality=90) for number in range(64)]

    def left_to_gpu(fraction):
        field = GpuDecodedImage(IMAGE, fraction)
        notes = [field.decode_into(".jpg", memoryview(jpeg), slot) for jpeg in jpegs]
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
