import os
import textwrap

import psutil
import pytest

from penstock.bench.loader_run import digest, measure, run_in_child
from penstock.errors import PenstockError
from penstock.testing import FakeClock


class Loader:
    """A loader whose batches take given times by the test's clock."""

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


def test_the_times_start_before_the_loader_is_made():
    clock = FakeClock()
    run = measure("one", 3, lambda: Loader(clock, BATCHES, open_s=1.0), list, clock)
    assert (run.loader, run.workers, run.samples, run.batches) == ("one", 3, 5, 3)
    assert (run.first_batch_s, run.seconds) == (3.0, 4.0)


def test_the_rate_excludes_the_first_batch():
    clock = FakeClock()
    assert measure("one", 1, lambda: Loader(clock, BATCHES), list, clock).rate == 3 / 1.0


def test_the_loader_is_closed_before_the_cpu_time_is_read():
    clock = FakeClock()
    loader = Loader(clock, BATCHES)
    assert measure("one", 1, lambda: loader, list, clock).cpu_s_per_sample >= 0
    assert loader.closed


def test_the_rate_excludes_the_first_fifth_of_many_batches():
    clock = FakeClock()
    slow_then_fast = [(10.0, ["a"])] * 4 + [(1.0, ["b", "c"])] * 16
    run = measure("one", 1, lambda: Loader(clock, slow_then_fast), list, clock)
    assert run.rate == 2.0
    assert run.first_batch_s == 10.0


def test_a_single_batch_has_no_rate():
    with pytest.raises(PenstockError, match="delivered 1 batches of 2 samples") as caught:
        measure("one", 1, lambda: iter(BATCHES[:1]), lambda batch: batch[1])
    assert "smaller batches" in caught.value.advice


def test_keys_that_are_not_utf8_have_a_digest():
    assert digest([b"caf\xe9".decode(errors="surrogateescape")]) != digest(["cafe"])


def test_the_digest_does_not_depend_on_the_order_of_the_keys():
    assert digest(["a", "b", "c"]) == digest(["c", "a", "b"])


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "b", "b"], ["a", "b", "c", "c"], ["a", "b", "d"]])
def test_the_digest_changes_with_missing_repeated_and_foreign_keys(keys):
    assert digest(keys) != digest(["a", "b", "c"])


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes a module which a child process can run by name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(code):
        (tmp_path / "benched.py").write_text(textwrap.dedent(code))
        return ["benched"]

    return write


def test_the_last_line_of_a_child_is_its_result(module):
    argv = module("""
        import sys
        from penstock.bench.loader_run import measure, print_run
        print("a library says hello")
        print_run(measure(sys.argv[1], 2, lambda: [["a"], ["b"]], list))
    """)
    run = run_in_child([*argv, "name"])
    assert (run.loader, run.workers, run.keys_digest) == ("name", 2, digest(["a", "b"]))


def test_the_error_of_a_failing_child_quotes_its_stderr(module):
    with pytest.raises(PenstockError, match=r"python -m benched x ended with exit code 1; .*KeyError: 'edge'"):
        run_in_child([*module("raise KeyError('edge')"), "x"])


def test_a_child_without_a_result_is_an_error(module):
    with pytest.raises(PenstockError, match="printed no result, and its stderr is empty"):
        run_in_child(module("print('done')"))


def test_a_child_that_hangs_is_killed(module):
    with pytest.raises(PenstockError, match="did not end within"):
        run_in_child(module("import signal; signal.pause()"), timeout_s=0.2)


def test_processes_that_a_child_leaves_are_killed(module, tmp_path):
    argv = module(f"""
        import subprocess, sys
        left = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        open({str(tmp_path / "pid")!r}, "w").write(str(left.pid))
        sys.exit(1)
    """)
    with pytest.raises(PenstockError, match="exit code 1"):
        run_in_child(argv)
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
        return process.status() == psutil.STATUS_ZOMBIE  # its parent has ended, so it is not reaped
    return True
