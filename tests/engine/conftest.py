"""What tests of the engine share: fakes that workers can import, engines that must leave nothing behind."""

import gc
import os
import threading

import psutil
import pytest
from tests.support.engine_fakes import open_files

from penstock.engine.engine import Engine


def belongings():
    """Descriptors, threads, child processes, shared memory."""
    return {
        "files": open_files(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": sorted(child.pid for child in psutil.Process().children(recursive=True)),
        "shm": sorted(name for name in os.listdir("/dev/shm") if not name.startswith(("torch_", "sem."))),  # others'
    }


@pytest.fixture
def leaves_nothing():
    """After the test everything is as it was before."""
    gc.collect()  # what other tests have left is theirs, and must not go meanwhile
    before = belongings()
    yield
    assert belongings() == before


@pytest.fixture
def start(leaves_nothing):
    """Start engines; they are closed at the end, and must leave nothing."""
    engines = []

    def begin(supply, work, plan):
        engines.append(Engine(supply, work, plan))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()


@pytest.fixture
def eventually():
    """Wait until something is true of the conductor's state, asked in its own thread."""

    def wait(engine, condition):
        for _ in range(2000):
            answers = []
            asked = threading.Event()
            engine.conductor.post(lambda answers=answers, asked=asked: (answers.append(condition()), asked.set()))
            assert asked.wait(10), "the conductor does not answer"
            if answers[0]:
                return
            asked.clear()
            asked.wait(0.005)
        raise AssertionError("it never came true")

    return wait
