"""Splitting images into chunks, and the number of decoded chunks that lie in GPU memory at once."""

import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.data.device.gpu_decode import decode_chunks
from penstock.data.device.gpu_decode.decode_chunks import MAX_CHUNKS, DecodedChunks, split_chunks


def lengths(chunks):
    return [chunk.stop - chunk.start for chunk in chunks]


def test_chunks_have_equal_numbers_of_images():
    assert lengths(split_chunks([3] * 32, 60)) == [16, 16]
    assert lengths(split_chunks([3] * 32, 96)) == [32]
    assert lengths(split_chunks([3] * 8, 9)) == [3, 3, 2]
    assert split_chunks([], 9) == []


def test_an_image_that_is_too_large_makes_a_chunk_of_its_own():
    assert lengths(split_chunks([5, 50, 5], 20)) == [1, 1, 1]


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 100))
def test_chunks_hold_all_images_in_order_and_none_is_too_large(pixels, max_pixels):
    chunks = split_chunks(pixels, max_pixels)
    assert [each for chunk in chunks for each in pixels[chunk]] == pixels
    assert all(sum(pixels[chunk]) <= max_pixels or chunk.stop - chunk.start == 1 for chunk in chunks)


class Event:
    """A CUDA event that fires when the test sets `fired`."""

    fired = False

    def query(self):
        return self.fired


class Image:
    """An object to which a weak reference can be made."""


class Sleeping:
    """Stands in for the module `time`: each sleep waits until the test allows it to end."""

    def __init__(self):
        self.begun, self.may_end = threading.Event(), threading.Event()

    def sleep(self, seconds):
        self.begun.set()
        assert self.may_end.wait(10)


def test_a_third_chunk_waits_until_the_first_is_placed(monkeypatch):
    sleeping = Sleeping()
    monkeypatch.setattr(decode_chunks, "time", sleeping)
    chunks, events = DecodedChunks(), [Event() for _ in range(MAX_CHUNKS)]
    for event in events:
        chunks.reserve()
        chunks.hold("images", event)
    reserved = threading.Event()
    third = threading.Thread(target=lambda: (chunks.reserve(), reserved.set()))
    third.start()
    assert sleeping.begun.wait(10), "it polls instead of going on"
    assert not reserved.is_set()
    events[0].fired = True
    sleeping.may_end.set()
    third.join(10)
    assert reserved.is_set()


def test_images_are_kept_until_the_gpu_has_placed_them():
    chunks, event, image = DecodedChunks(), Event(), Image()
    alive = weakref.ref(image)
    chunks.reserve()
    chunks.hold([image], event)
    del image
    chunks.reserve()
    assert alive() is not None
    event.fired = True
    chunks.hold([], None)
    chunks.reserve()
    assert alive() is None


def test_without_a_gpu_a_chunk_is_released_at_once(monkeypatch):
    monkeypatch.setattr(decode_chunks.time, "sleep", lambda seconds: pytest.fail("waited for a chunk"))
    chunks = DecodedChunks()
    for _ in range(5 * MAX_CHUNKS):
        image = Image()
        alive = weakref.ref(image)
        chunks.reserve()
        chunks.hold([image], None)
        del image
        assert alive() is None, "nothing holds its images"
