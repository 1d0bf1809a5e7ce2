"""Signed addresses given to a loader with worker processes are known to its readers only."""

import logging
import os
import pickle
import sys
from pathlib import Path

import pytest

import penstock
from penstock.engine.shared_memory import SharedMemory
from penstock.engine.workers import ProcessWorker
from penstock.recording.reader import load
from penstock.testing import REID, make_shards

SECRET = "hunter2"
FIELDS = {"image": penstock.Image(".jpg", size=32)}


@pytest.fixture
def signed(bucket, tmp_path):
    paths = make_shards(tmp_path / "reid", REID, samples=12, shards=2, scale=0.1)
    for path in paths:
        bucket.put(path.name, path.read_bytes())
    return [f"{bucket.endpoint}/{bucket.name}/{path.name}?X-Amz-Signature={SECRET}" for path in paths]


@pytest.fixture
def identity(tmp_path, monkeypatch):
    """A user's function: with one, the loader does not decode in threads while processes start."""
    (tmp_path / "signed_same.py").write_text("def identity(values, rng):\n    return values\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("signed_same").identity
    del sys.modules["signed_same"]


@pytest.fixture
def sent_messages(monkeypatch):
    """Every message to a worker process, and the pickled program in shared memory."""
    messages = []
    write, from_bytes = ProcessWorker._write, SharedMemory.from_bytes

    def spy(self, message):
        messages.append(bytes(message))
        write(self, message)

    def shared(data, name):
        messages.append(bytes(data))
        return from_bytes(data, name)

    monkeypatch.setattr(ProcessWorker, "_write", spy)
    monkeypatch.setattr(SharedMemory, "from_bytes", shared)
    return messages


def test_no_query_reaches_workers_output_logs_files_or_recordings(
    make_loader, signed, identity, sent_messages, caplog, capfd, tmp_path, monkeypatch
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(sys, "argv", ["train.py", "--data", signed[0], f"--more={signed[1]}"])
    loader = make_loader(signed, FIELDS, executor="process", transform=identity)
    record = tmp_path / "run.jsonl"
    with penstock.watch(loader, record=record) as watched:
        keys = [key for batch in watched for key in batch["__key__"]]
    assert len(set(keys)) == 12
    assert sum(map(len, sent_messages)) > 1000
    assert not any(SECRET.encode() in message for message in sent_messages)
    loader.close()
    stored_files = [
        path for path in (*Path(os.environ["PENSTOCK_CACHE"]).rglob("*"), *tmp_path.rglob("*")) if path.is_file()
    ]
    assert not [path for path in stored_files if SECRET.encode() in path.read_bytes()]
    command = load(record).run.command
    assert command[0] == "train.py"
    assert command[2].endswith(".tar?…")
    output = capfd.readouterr()
    logged = "\n".join(
        each.getMessage() for each in caplog.records if each.name != "werkzeug"
    )  # the server's own messages
    for text in (repr(loader), str(loader.state_dict()), logged, output.out, output.err, str(loader.stats())):
        assert SECRET not in text


def test_worker_processes_send_no_requests(make_loader, signed, identity, proxy, bucket):
    """Every request carries the query, which a worker process does not have."""
    signed = [address.replace(bucket.endpoint, proxy.url) for address in signed]
    loader = make_loader(signed, FIELDS, executor="process", transform=identity)
    assert sum(len(batch["__key__"]) for batch in loader) == 12
    shard_requests = [request for request in proxy.requests if ".pidx" not in request.path]
    assert shard_requests
    assert all(request.path.endswith(f"?X-Amz-Signature={SECRET}") for request in shard_requests)


def test_a_pickled_dataset_does_not_contain_the_query(signed):
    from penstock.datasets import ShardDataset

    assert SECRET.encode() not in pickle.dumps(ShardDataset(signed, FIELDS))
