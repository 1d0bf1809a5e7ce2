"""The store of the benchmark as HTTP clients and S3 clients see it."""

from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import obstore
import pytest
from benchmarks.store.server import Store, span
from obstore.store import S3Store

DATA = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "deep").mkdir()
    for name in ("a.tar", "deep/b.tar"):
        (folder / name).write_bytes(DATA)
    return folder


@pytest.fixture(scope="module")
def address(folder):
    with Store(latency_s=0.001, bytes_per_s=1e9).serving(folder) as address:
        yield address


@pytest.fixture
def s3(address):
    keys = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    config = {"endpoint": address, "virtual_hosted_style_request": False, **keys}
    return S3Store("bench", config=config, client_options={"allow_http": True})


def ask(address, path, method="GET", **headers):
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=20)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def test_an_s3_client_can_find_list_read_and_write_objects(s3):
    assert obstore.head(s3, "a.tar")["size"] == len(DATA)
    assert bytes(obstore.get_range(s3, "deep/b.tar", start=1000, end=9000)) == DATA[1000:9000]
    assert bytes(obstore.get(s3, "a.tar").bytes()) == DATA
    assert {each["path"] for each in obstore.list(s3, prefix="deep").collect()} == {"deep/b.tar"}
    obstore.put(s3, "deep/a.pidx", b"an index")
    assert bytes(obstore.get(s3, "deep/a.pidx").bytes()) == b"an index"


def test_a_missing_object_is_not_found(s3):
    with pytest.raises(FileNotFoundError):
        obstore.get(s3, "missing.tar")


def test_files_outside_of_the_bucket_are_not_found(address):
    assert ask(address, "/bench/../../../../../../etc/passwd")[0] == 404


def test_a_request_for_another_version_of_an_object_is_refused(address):
    _, headers, _ = ask(address, "/bench/a.tar", "HEAD")
    assert ask(address, "/bench/a.tar", If_Match=headers["ETag"])[0] == 200
    assert ask(address, "/bench/a.tar", If_Match='"another-etag"')[0] == 412


def test_a_range_after_the_end_is_refused(address):
    assert ask(address, "/bench/a.tar", Range=f"bytes={len(DATA)}-")[0] == 416


@pytest.mark.parametrize(
    ("byte_range", "expected"),
    [
        (None, (0, 100)),
        ("bytes=0-9", (0, 10)),
        ("bytes=90-200", (90, 100)),
        ("bytes=90-", (90, 100)),
        ("bytes=-7", (93, 100)),
        ("bytes=-700", (0, 100)),
        ("bytes=-", (0, 100)),
    ],
)
def test_ranges_are_limited_to_the_object(byte_range, expected):
    assert span(byte_range, 100) == expected
