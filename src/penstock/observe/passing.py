"""A pass over a loader, as a generator around its iterator: the loader's own batches, in its own time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.observe.loaders import NOTHING, Side
from penstock.observe.session import Track


def passing(
    track: Track,
    side: Side,
    make: Callable[[], Iterator[Any]],
    asked: Callable[[], None],
    ended: Callable[[str], None],
) -> Iterator[Any]:
    """What goes wrong in the watching is not the training's business.

    `make` gives the iterator, which belongs to the wait for the first batch. `asked` is told whenever the loop wants a
    batch, `ended` how the pass did: done, left or raised.
    """
    session, look, how = track._session, NOTHING, "left"
    try:
        if not session.off:
            with session.guard():
                asked()
        iterator = make()
        while True:
            if not session.off:
                with session.guard():
                    look = side.look(iterator)
            session.waiting = True
            try:
                batch = next(iterator)
            except StopIteration:
                how = "done"
                return
            finally:
                session.waiting = False
            if not session.off:
                with session.guard():
                    track.got(batch, look, side.parts(iterator))
            yield batch
            if not session.off:
                with session.guard():
                    asked()
    except GeneratorExit:
        raise
    except BaseException:
        how = "raised"
        raise
    finally:
        if not session.off:
            with session.guard():
                ended(how)
