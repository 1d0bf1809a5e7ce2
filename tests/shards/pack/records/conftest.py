"""Fixtures for the tests of record files: tasks run in the test's own process, and packed samples as dicts."""

import pytest

from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.sources import find_pack_sources, read_samples
from penstock.shards.task_pool import TaskOutcome, use_task_runner


def run_here(work, tasks, workers=None):
    """Run tasks by plain calls; what a worker would send over its pipe must be picklable, other tests see to that."""
    for task in tasks:
        try:
            yield TaskOutcome(task, work(task), None)
        except Exception as error:
            yield TaskOutcome(task, None, error)


@pytest.fixture
def tasks_here():
    """Run the tasks that list and read records in the process of the test, which is much quicker."""
    with use_task_runner(run_here):
        yield


@pytest.fixture
def read_records(tasks_here):
    """Return a function that reads all samples of a source: the parts of each, or its error."""

    def read(src, **options):
        sources = list(find_pack_sources(str(src), PackOptions(**options)))
        return [
            dict(parts) if isinstance(parts, list) else parts
            for source in sources
            for _, parts in read_samples(source.select(source.complete.tolist()))
        ]

    return read


@pytest.fixture
def sources_of(tasks_here):
    """Return a function that finds the sources of a pack."""

    def find(src, **options):
        return list(find_pack_sources(str(src), PackOptions(**options)))

    return find
