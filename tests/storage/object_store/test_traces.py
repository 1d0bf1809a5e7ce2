"""What a traceback shows of a request that failed: nothing of the library's own words, which repeat whole addresses."""

import traceback

import pytest
from tests.support.proxy import Cut, Hang, Status, WholeObject

from penstock.errors import PenstockError, SettingError, StorageError
from penstock.storage.object_store import listing, remote_file
from penstock.storage.object_store.remote_file import RemoteFile, read_object, write_object
from penstock.storage.object_store.retry import RetryPolicy
from penstock.storage.paths import expand_shard_paths

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    for module in (remote_file, listing):
        monkeypatch.setattr(module, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.02, first_pause_s=0.01, stall_s=0.3))


def traced(act, *arguments, error=StorageError):
    """The error, printed with all that hangs on it."""
    with pytest.raises(error) as caught:
        act(*arguments)
    told, seen = [], caught.value
    while seen is not None:
        assert isinstance(seen, PenstockError), f"a {type(seen).__name__} hangs on it"
        told += [*traceback.format_exception(seen), repr(seen)]
        seen = seen.__cause__ or seen.__context__
    return "".join(told)


@pytest.mark.parametrize(
    "fault", [Status(503), Status(403), Status(400, "InvalidArgument"), Status(404), Cut(None), Hang(), WholeObject()]
)
def test_no_signature_is_in_the_traceback_of_a_read(bucket, proxy, fault):
    bucket.put("a.tar", bytes(1000))
    [address] = expand_shard_paths(f"{proxy.url}/{bucket.name}/a.tar?X-Amz-Signature={SECRET}")
    file = RemoteFile(address)
    proxy.inject(fault)
    for act, arguments in ((file.read_at, (0, 100)), (RemoteFile, (address,)), (read_object, (address, 10_000))):
        assert SECRET not in traced(act, *arguments)


def test_no_key_is_in_the_traceback_of_a_listing_or_a_write(bucket, proxy):
    proxy.inject(Status(403))
    for text in (traced(expand_shard_paths, bucket.url("d/")), traced(write_object, bucket.url("x"), b"x")):
        assert "AKIAPENSTOCKTESTS" not in text
        assert "access was refused" in text


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("az://never-made/a.tar", {}),
        ("az://never-made/a.tar", {"AZURE_STORAGE_ACCOUNT_NAME": "x", "AZURE_STORAGE_ACCOUNT_KEY": f"{SECRET}!"}),
        ("gs://never-made/a.tar", {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"private_key": "{SECRET}", "x": {SECRET}}}'}),
        ("s3://never-made/a.tar", {"AWS_SKIP_SIGNATURE": SECRET}),
    ],
    ids=["no account", "a key that is none", "an account that is none", "a switch that is none"],
)
def test_an_environment_that_makes_no_store_is_an_error_of_ours(s3, monkeypatch, url, told):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    text = traced(RemoteFile, url, error=SettingError)
    assert "the store cannot be set up" in text
    assert SECRET not in text
