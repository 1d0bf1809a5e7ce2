"""Fixtures for tests of the engine: engines that must leave nothing behind, and waiting for the scheduler."""

import gc
import os
import threading

import psutil
import pytest
from tests.support.engine_fakes import open_files

from penstock.engine.engine import Engine


def resources():
    """Descriptors, threads, child processes and shared memory of this process."""
    return {
        "files": open_files(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": sorted(child.pid for child in psutil.Process().children(recursive=True)),
        "shm": sorted(name for name in os.listdir("/dev/shm") if not name.startswith(("torch_", "sem."))),  # others'
    }


@pytest.fixture
def leaves_nothing():
    """Check that the test leaves no resources behind."""
    gc.collect()  # objects of earlier tests must not be collected during this one
    before = resources()
    yield
    assert resources() == before


@pytest.fixture
def start(leaves_nothing):
    """Start engines, which are closed at the end and must leave nothing."""
    engines = []

    def start(source, program, plan):
        engines.append(Engine(source, program, plan))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def eventually():
    """Wait until a condition on the scheduler's state is true, evaluated in its own thread."""

    def wait(engine, condition):
        for _ in range(2000):
            answers = []
            evaluated = threading.Event()
            engine.scheduler.post(
                lambda answers=answers, evaluated=evaluated: (answers.append(condition()), evaluated.set())
            )
            assert evaluated.wait(10), "the scheduler does not respond"
            if answers[0]:
                return
            evaluated.clear()
            evaluated.wait(0.005)
        raise AssertionError("the condition never became true")

    return wait
