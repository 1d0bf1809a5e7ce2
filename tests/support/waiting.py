"""Waiting for other processes and threads, for tests."""

import time

DEADLINE_S = 60


def wait_until(happened, what):
    """Return the first true result of `happened()`; fail after DEADLINE_S seconds with `what` in the message."""
    end = time.monotonic() + DEADLINE_S
    while not (result := happened()):
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.005)
    return result
