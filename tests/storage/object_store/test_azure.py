"""`az://` URLs are listed, indexed and loaded, against Azurite on this machine."""

import json
import sys
import uuid
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))

from azurite import KEY, Azurite, Container, program
from tests.support.proxy import Cut, FaultProxy, Status

import penstock
from penstock.cli.main import make_app
from penstock.errors import StorageError
from penstock.shards.index import load_index
from penstock.shards.scan import index_shard
from penstock.storage.object_store import remote_file
from penstock.storage.object_store.remote_file import RemoteFile
from penstock.storage.object_store.retry import RetryPolicy
from penstock.storage.paths import expand_shard_paths
from penstock.testing import REID, make_shards

SAMPLES = 24
FIELDS = {"image": penstock.Image(".jpg", size=32), "id": penstock.Label(".json", key="identity")}

pytestmark = pytest.mark.skipif(
    program() is None, reason="Azurite is not installed: npm install azurite, and put azurite-blob on the PATH"
)


@pytest.fixture(scope="module")
def server():
    with Azurite() as server:
        yield server.url


@pytest.fixture
def container(server, monkeypatch):
    """A new container that the environment gives access to."""
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server)
    container = Container(server, f"penstock-{uuid.uuid4().hex[:12]}")
    container.create()
    return container


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=3, scale=0.1)


@pytest.fixture
def remote(local, container):
    for path in local:
        container.put(f"reid/{path.name}", path.read_bytes())
    return [container.url(f"reid/{path.name}") for path in local]


def test_folders_and_globs_are_listed(container, remote):
    container.put("reid/deeper/other.tar", b"")
    assert expand_shard_paths(container.url("reid/")) == remote
    assert expand_shard_paths(container.url("reid/*-00000[12].tar")) == remote[1:]


def test_ls_counts_the_samples(remote, container):
    done = CliRunner().invoke(make_app(), ["shards", "ls", container.url("reid/"), "--json"], catch_exceptions=False)
    assert (done.exit_code, json.loads(done.stdout)["samples"]) == (0, SAMPLES)


def test_the_index_is_written_beside_the_shard_and_read_from_there(remote, container, local):
    built = index_shard(remote[0])
    assert f"reid/{local[0].name}.pidx" in container.names()
    assert load_index(remote[0]) is not None
    assert len(index_shard(remote[0])) == len(built) == len(index_shard(str(local[0])))


def test_an_epoch_is_the_same_as_from_files(make_loader, remote, local):
    from_store = list(make_loader(remote, FIELDS, shuffle=True, seed=3))
    from_files = list(make_loader([str(path) for path in local], FIELDS, shuffle=True, seed=3))
    assert [batch["__key__"] for batch in from_store] == [batch["__key__"] for batch in from_files]
    for one, other in zip(from_store, from_files, strict=True):
        assert torch.equal(one["image"], other["image"])


def test_ranges_are_read_correctly_despite_network_faults(container, monkeypatch, server):
    monkeypatch.setattr(
        remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(first_pause_s=0.01, longest_pause_s=0.02, stall_s=2.0)
    )
    data = bytes(range(256)) * 4096
    container.put("a.bin", data)
    with FaultProxy(server) as proxy:
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", proxy.url)
        with RemoteFile(container.url("a.bin")) as file:
            proxy.inject(Status(503), times=1)
            proxy.inject(Cut(after_bytes=1000), times=1)
            assert file.size == len(data)
            assert file.read_at(70_000, 300_000) == data[70_000:370_000]
        assert proxy.counts.faults == 2


def test_an_overwritten_object_is_an_error(container):
    first = container.put("a.bin", b"a" * 1000)
    with RemoteFile(container.url("a.bin")) as file:
        assert file.etag.strip('"') == first.strip('"')
        assert container.put("a.bin", b"b" * 1000) != first
        with pytest.raises(StorageError, match="has changed since it was indexed"):
            file.read_at(0, 10)


def test_a_missing_object_is_an_error(container):
    with pytest.raises(StorageError, match="there is no such object"):
        RemoteFile(container.url("nowhere.tar"))


def test_a_wrong_key_is_refused_and_not_shown(server, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server)
    wrong = KEY.replace("Eby8", "Abcd")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    container = Container(server, f"penstock-{uuid.uuid4().hex[:12]}")
    container.create()
    container.put("a.bin", b"a")
    with pytest.raises(StorageError, match="access was refused: the store answered 403") as caught:
        RemoteFile(container.url("a.bin"))
    assert wrong[:20] not in str(caught.value)
    assert "Signature" not in str(caught.value)
