"""`gs://` URLs, as far as they can be tested on one machine.

obstore reads Google's stores by their XML interface, a dialect of S3's. No emulator of Google's that pip or npm can
install supports it (gcp-storage-emulator has no HEAD, no listing and no ETag there), but moto's S3 server does as long
as requests are not signed. So these tests read public objects with obstore's client for Google. Writing an index into
a bucket, and Google's credentials, are not tested.
"""

from http.client import HTTPConnection
from urllib.parse import quote, urlsplit

import pytest
import torch

import penstock
from penstock.errors import SettingError, StorageError
from penstock.shards.scan import index_shard
from penstock.storage.object_store import client
from penstock.storage.object_store.remote_file import RemoteFile
from penstock.storage.paths import expand_shard_paths
from penstock.testing import REID, make_shards

SAMPLES = 24
FIELDS = {"image": penstock.Image(".jpg", size=32), "id": penstock.Label(".json", key="identity")}
BUCKET = "penstockgoogle"  # obstore escapes a dash as %2D there, which moto does not decode
SIGNED = "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"


@pytest.fixture
def put(s3_server, monkeypatch):
    """A function that uploads a public or a private object; gs:// URLs are read from the same server."""
    monkeypatch.setenv("GOOGLE_BASE_URL", s3_server)
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    monkeypatch.setattr(client, "_stores", {})

    def request_put(key, data, access="public-read"):
        headers = {"Authorization": SIGNED, "x-amz-acl": access, "Content-Type": "application/octet-stream"}
        connection = HTTPConnection(urlsplit(s3_server).netloc, timeout=20)
        connection.request("PUT", f"/{BUCKET}/{quote(key)}", body=data, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status < 300, body
        return response.getheader("ETag")

    request_put("", b"")  # creates the bucket
    return request_put


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=3, scale=0.1)


@pytest.fixture
def remote(local, put):
    for path in local:
        put(f"reid/{path.name}", path.read_bytes())
    return [f"gs://{BUCKET}/reid/{path.name}" for path in local]


def test_folders_and_globs_are_listed(remote):
    assert expand_shard_paths(f"gs://{BUCKET}/reid/") == remote
    assert expand_shard_paths(f"gs://{BUCKET}/**/*-00000[12].tar") == remote[1:]


def test_the_index_of_a_read_only_bucket_is_stored_in_the_cache(remote, local, monkeypatch):
    from penstock.shards import scan

    assert len(index_shard(remote[0])) == len(index_shard(str(local[0])))
    monkeypatch.setattr(scan, "scan_shard", lambda path: pytest.fail("the shard was scanned again"))
    assert len(index_shard(remote[0])) == len(index_shard(str(local[0])))


def test_an_epoch_is_the_same_as_from_files(make_loader, remote, local):
    from_store = list(make_loader(remote, FIELDS, shuffle=True, seed=3))
    from_files = list(make_loader([str(path) for path in local], FIELDS, shuffle=True, seed=3))
    assert [batch["__key__"] for batch in from_store] == [batch["__key__"] for batch in from_files]
    for one, other in zip(from_store, from_files, strict=True):
        assert torch.equal(one["image"], other["image"])


def test_an_overwritten_object_is_an_error(put):
    put("a.bin", b"a" * 1000)
    with RemoteFile(f"gs://{BUCKET}/a.bin") as file:
        assert file.read_at(10, 5) == b"aaaaa"
        put("a.bin", b"b" * 1000)
        with pytest.raises(StorageError, match="has changed since it was indexed"):
            file.read_at(0, 10)


def test_a_private_object_is_reported_as_refused(put):
    put("secret.bin", b"a", "private")
    with pytest.raises(StorageError, match="access was refused: the store answered 403"):
        RemoteFile(f"gs://{BUCKET}/secret.bin")


@pytest.mark.parametrize(
    ("scheme", "name"), [("gs", "GOOGLE_BASE_URL"), ("az", "AZURE_STORAGE_ENDPOINT"), ("az", "AZURE_ENDPOINT")]
)
def test_a_link_local_endpoint_in_the_environment_is_refused(monkeypatch, scheme, name):
    monkeypatch.setenv(name, "http://169.254.169.254")
    monkeypatch.setattr(client, "_stores", {})
    with pytest.raises(SettingError, match="link-local"):
        RemoteFile(f"{scheme}://bucket/key")
