"""For what other processes and threads do: what tests that wait share."""

import time

DEADLINE_S = 60


def wait_until(happened, what):
    """Look again and again; a test that waits in vain fails, and says for what."""
    end = time.monotonic() + DEADLINE_S
    while not (found := happened()):
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.005)
    return found
