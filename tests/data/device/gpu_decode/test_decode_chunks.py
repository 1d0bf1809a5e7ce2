"""How much is decoded at a time, and how much of it lies on the card at once."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from penstock.data.device.gpu_decode.decode_chunks import MOST_KEPT, DecodedChunks, split_chunks


def lengths(pieces):
    return [piece.stop - piece.start for piece in pieces]


def test_portions_are_alike():
    assert lengths(split_chunks([3] * 32, 60)) == [16, 16]
    assert lengths(split_chunks([3] * 32, 96)) == [32]
    assert lengths(split_chunks([3] * 8, 9)) == [3, 3, 2]
    assert split_chunks([], 9) == []


def test_one_that_is_too_large_goes_alone():
    assert lengths(split_chunks([5, 50, 5], 20)) == [1, 1, 1]


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 100))
def test_all_are_there_in_order_and_no_portion_is_too_large(pixels, most):
    pieces = split_chunks(pixels, most)
    assert [each for piece in pieces for each in pixels[piece]] == pixels
    assert all(sum(pixels[piece]) <= most or piece.stop - piece.start == 1 for piece in pieces)


class Event:
    passed = False

    def query(self):
        return self.passed


def test_no_third_portion_is_decoded_before_the_first_is_placed():
    kept, events = DecodedChunks(), [Event() for _ in range(MOST_KEPT)]
    for event in events:
        kept.begin()
        kept.end("pictures", event)
    begun = threading.Event()
    third = threading.Thread(target=lambda: (kept.begin(), begun.set()))
    third.start()
    assert not begun.wait(0.05)
    events[0].passed = True
    third.join(10)
    assert begun.is_set()


def test_pictures_are_kept_until_the_card_has_placed_them():
    class Picture:
        pass

    import weakref

    kept, event, picture = DecodedChunks(), Event(), Picture()
    alive = weakref.ref(picture)
    kept.begin()
    kept.end([picture], event)
    del picture
    kept.begin()
    assert alive() is not None
    event.passed = True
    kept.end([], None)
    kept.begin()
    assert alive() is None


def test_without_a_card_there_is_room_at_once():
    kept = DecodedChunks()
    for _ in range(5 * MOST_KEPT):
        kept.begin()
        kept.end([], None)
