import os
import textwrap

import psutil
import pytest

from penstock.bench.trial import digest, in_child, measure
from penstock.errors import PenstockError
from penstock.testing import FakeClock


class Loader:
    """Batches that take as long as they are told, on a clock of the test's own."""

    def __init__(self, clock, batches, open_s=0.0):
        self.closed = False
        self._clock, self._batches = clock, batches
        clock.sleep(open_s)

    def __iter__(self):
        for seconds, keys in self._batches:
            self._clock.sleep(seconds)
            yield keys

    def close(self):
        self.closed = True


BATCHES = [(2.0, ["a", "b"]), (0.5, ["c", "d"]), (0.5, ["e"])]


def test_a_trial_counts_from_before_the_loader_is_made():
    clock = FakeClock()
    trial = measure("one", 3, lambda: Loader(clock, BATCHES, open_s=1.0), list, clock)
    assert (trial.contestant, trial.workers, trial.samples, trial.batches) == ("one", 3, 5, 3)
    assert (trial.first_batch_s, trial.seconds) == (3.0, 4.0)


def test_the_rate_leaves_the_first_batch_out():
    clock = FakeClock()
    assert measure("one", 1, lambda: Loader(clock, BATCHES), list, clock).rate == 3 / 1.0


def test_the_loader_is_closed_before_its_cpu_is_read():
    clock = FakeClock()
    loader = Loader(clock, BATCHES)
    assert measure("one", 1, lambda: loader, list, clock).cpu_s_per_sample >= 0
    assert loader.closed


def test_the_rate_leaves_the_first_fifth_of_many_batches_out():
    clock = FakeClock()
    slow_then_fast = [(10.0, ["a"])] * 4 + [(1.0, ["b", "c"])] * 16
    trial = measure("one", 1, lambda: Loader(clock, slow_then_fast), list, clock)
    assert trial.rate == 2.0
    assert trial.first_batch_s == 10.0


def test_a_single_batch_has_no_rate():
    with pytest.raises(PenstockError, match="delivered 1 batches of 2 samples") as caught:
        measure("one", 1, lambda: iter(BATCHES[:1]), lambda batch: batch[1])
    assert "smaller batches" in caught.value.advice


def test_names_that_are_not_utf8_have_a_digest_too():
    assert digest([b"caf\xe9".decode(errors="surrogateescape")]) != digest(["cafe"])


def test_the_digest_is_of_the_keys_whatever_their_order():
    assert digest(["a", "b", "c"]) == digest(["c", "a", "b"])


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "b", "b"], ["a", "b", "c", "c"], ["a", "b", "d"]])
def test_the_digest_tells_missing_repeated_and_foreign_keys(keys):
    assert digest(keys) != digest(["a", "b", "c"])


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module that a child can run by name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(code):
        (tmp_path / "contestant.py").write_text(textwrap.dedent(code))
        return ["contestant"]

    return write


def test_a_child_answers_with_its_trial_whatever_else_it_prints(module):
    argv = module("""
        import sys
        from penstock.bench.trial import measure, print_trial
        print("a library says hello")
        print_trial(measure(sys.argv[1], 2, lambda: [["a"], ["b"]], list))
    """)
    trial = in_child([*argv, "who"])
    assert (trial.contestant, trial.workers, trial.keys_digest) == ("who", 2, digest(["a", "b"]))


def test_a_child_that_fails_is_quoted(module):
    with pytest.raises(PenstockError, match=r"python -m contestant x ended with exit code 1; .*KeyError: 'edge'"):
        in_child([*module("raise KeyError('edge')"), "x"])


def test_a_child_without_a_trial_is_an_error(module):
    with pytest.raises(PenstockError, match="printed no result, and said nothing"):
        in_child(module("print('done')"))


def test_a_child_that_hangs_is_ended(module):
    with pytest.raises(PenstockError, match="did not end within"):
        in_child(module("import signal; signal.pause()"), timeout_s=0.2)


def test_what_a_child_leaves_running_is_ended(module, tmp_path):
    argv = module(f"""
        import subprocess, sys
        left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        open({str(tmp_path / "pid")!r}, "w").write(str(left.pid))
        sys.exit(1)
    """)
    with pytest.raises(PenstockError, match="exit code 1"):
        in_child(argv)
    left = int((tmp_path / "pid").read_text())
    assert left != os.getpid()
    assert _has_ended(left)


def _has_ended(pid):
    try:
        process = psutil.Process(pid)
        process.wait(10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE  # nobody is there to reap it
    return True
