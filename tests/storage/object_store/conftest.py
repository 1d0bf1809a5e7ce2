"""A real S3 server on this machine (moto's), and the fault proxy in front of it, as fixtures."""

from dataclasses import dataclass
from http.client import HTTPConnection
from urllib.parse import quote, urlsplit

import pytest
from moto.server import ThreadedMotoServer
from tests.support.proxy import FaultProxy

from penstock.storage.object_store.request import _latency_trackers
from penstock.testing import REID, make_shards

SECRET = "not-to-be-seen-anywhere"  # tests search outputs for it
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAPENSTOCKTESTS",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_EC2_METADATA_DISABLED": "true",
}
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"}
"""Moto does not check the signature, but without one it refuses objects that other clients have uploaded."""


@dataclass(frozen=True)
class Bucket:
    """A bucket that tests access directly: their requests bypass the proxy and are not counted."""

    endpoint: str
    name: str

    def url(self, key=""):
        return f"s3://{self.name}/{key}"

    def put(self, key, data):
        """Upload an object and return its ETag."""
        return self._request("PUT", key, data)[0].getheader("ETag")

    def get(self, key):
        return self._request("GET", key)[1]

    def delete(self, key):
        self._request("DELETE", key)

    def clear(self):
        for key in self.keys():
            self.delete(key)

    def keys(self):
        """Return the keys of all objects."""
        listing = self._request("GET", "")[1].decode()
        return [each.partition("</Key>")[0] for each in listing.split("<Key>")[1:]]

    def _request(self, method, key, body=None):
        connection = HTTPConnection(urlsplit(self.endpoint).netloc, timeout=20)
        try:
            connection.request(method, f"/{self.name}/{quote(key)}", body=body, headers=SIGNED)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise KeyError(f"{method} {key}: {response.status} {content[:200]!r}")
        return response, content


@pytest.fixture(scope="session")
def s3_server():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(scope="session")
def s3(s3_server):
    """A bucket for the session, with credentials in the environment; AWS_ENDPOINT_URL names the server itself."""
    bucket = Bucket(s3_server, "penstock-tests")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": s3_server}).items():
            patch.setenv(name, value)
        bucket.put("", b"")  # creates the bucket
        yield bucket


@pytest.fixture(autouse=True)
def _forget_latencies():
    """Forget the latencies of other tests, so that no unexpected second request is sent."""
    _latency_trackers.clear()


@pytest.fixture
def bucket(s3):
    """The same bucket, empty."""
    s3.clear()
    return s3


@pytest.fixture
def proxy(s3, monkeypatch):
    """A FaultProxy in front of the server; AWS_ENDPOINT_URL names it while the test runs."""
    with FaultProxy(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture(scope="session")
def local(tmp_path_factory):
    """Forty samples in four shards."""
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=40, shards=4, scale=0.1)


@pytest.fixture
def remote(local, bucket):
    """The URLs of the same shards in the bucket."""
    for path in local:
        bucket.put(f"reid/{path.name}", path.read_bytes())
    return [bucket.url(f"reid/{path.name}") for path in local]
