"""Which URLs are accepted, and that nothing secret remains in them."""

import pickle
from pathlib import Path

import pytest

from penstock.data.sources.shard_groups import find_shard_groups
from penstock.errors import SettingError
from penstock.storage.object_store.client import refuse_blocked_host
from penstock.storage.object_store.url import RemoteUrl, is_remote, parse_url, redact_url
from penstock.storage.paths import expand_shard_paths


def test_a_url_is_a_bucket_and_a_key():
    assert parse_url("s3://bucket/a/b.tar") == RemoteUrl("s3", "bucket", "a/b.tar")
    assert str(parse_url("S3://bucket/a/b.tar")) == "s3://bucket/a/b.tar"
    assert parse_url("gs://b").key == ""


@pytest.mark.parametrize("path", ["a.tar", "/data/a.tar", "C:/a.tar", "s3", "./s3:x"])
def test_file_names_are_not_urls(path):
    assert not is_remote(path)


@pytest.mark.parametrize("url", ["ftp://host/a.tar", "file:///etc/passwd", "gopher://x/y", "pipe://rm"])
def test_other_schemes_are_refused(url):
    assert is_remote(url)
    with pytest.raises(SettingError, match="is not a kind of store that can be read"):
        expand_shard_paths(url)


def test_a_url_that_pathlib_has_changed_is_an_error_that_says_so():
    for url in ("s3://bucket/a.tar", "S3://bucket/a.tar", "HTTPS://host/a.tar"):
        with pytest.raises(SettingError, match="lost a slash"):
            expand_shard_paths(Path(url))


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket//a.tar",
        "s3://bucket/d//a.tar",
        "s3://bucket/d/../a.tar",
        "s3://bucket/./a.tar",
        "gs://bucket/..",
        "https://host//a.tar",
        "https://host/d/%2e%2e/a.tar",
        "https://host/d/%2E/a.tar?sig=hunter2",
    ],
)
def test_empty_and_dot_components_are_refused(url):
    with pytest.raises(SettingError, match=r"an empty component, \. or \.\.") as caught:
        expand_shard_paths(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://bucket/d/", "s3://bucket/...tar", "s3://bucket/a..b/c.tar", "https://[::1]:80/a"]
)
def test_other_dots_and_a_trailing_slash_are_accepted(url):
    assert str(parse_url(url)) == url


@pytest.mark.parametrize(
    "url",
    [
        "s3:///a.tar",
        "s3://",
        "https:///a.tar",
        "https://[1:2]/a.tar",
        "https://[::1/a.tar",
        "https://host:99999/a.tar?sig=hunter2",
        "https://host:/a.tar",
        "https://a b/a.tar",
        "https://host%2e/a.tar",
        "https://höst/a.tar",
    ],
)
def test_an_invalid_host_or_bucket_is_refused(url):
    with pytest.raises(SettingError, match=r"has no valid (host|bucket) name") as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


def test_one_address_with_two_queries_is_refused():
    """The query is not a part of the shard's name: of two such shards, one would be read twice."""
    with pytest.raises(SettingError, match="given twice, with different queries") as caught:
        expand_shard_paths(["https://host/a.tar?version=hunter2", "https://host/a.tar?version=3"])
    assert "hunter2" not in str(caught.value)
    assert expand_shard_paths(["https://host/b.tar?sig=1", "https://host/b.tar?sig=1"]) == ["https://host/b.tar"]
    assert (
        parse_url(expand_shard_paths("https://host/b.tar?sig=2")[0]).query == "sig=2"
    )  # a new signature replaces the old one


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@host/a.tar",
        "s3://AKIAX:hunter2@bucket/a.tar",
        "s3://AKIAX:hunter2/x@bucket/a.tar",
        "https://user:hunter2/x@host/a.tar",
    ],
)
def test_passwords_in_urls_are_refused_and_not_shown(url):
    with pytest.raises(SettingError) as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


def test_the_query_of_a_web_address_is_not_shown():
    url = parse_url("https://host/b/a.tar?X-Amz-Signature=hunter2&X-Amz-Expires=60#x")
    assert url.query == "X-Amz-Signature=hunter2&X-Amz-Expires=60"
    assert str(url) == redact_url("https://host/b/a.tar?X-Amz-Signature=hunter2") == "https://host/b/a.tar"
    for text in (repr(url), str(url), repr(pickle.dumps(url)), *expand_shard_paths("https://host/b/a.tar?sig=hunter2")):
        assert "hunter2" not in text


def test_one_query_may_apply_to_many_objects():
    shards = expand_shard_paths("https://host/{000..002}.tar?sig=hunter2")
    assert shards == [f"https://host/00{number}.tar" for number in range(3)]
    assert [parse_url(shard).query for shard in shards] == ["sig=hunter2"] * 3


@pytest.mark.parametrize(
    "pattern", ["https://h/{a}.tar?sig=hunter2", "https://h/d/?sig=hunter2", "https://h/{0..9999999}.tar?hunter2"]
)
def test_errors_about_a_pattern_do_not_show_its_query(pattern):
    for shards in (pattern, {pattern: 1.0}, {pattern: -1.0}):
        with pytest.raises(SettingError) as caught:
            find_shard_groups(shards)
        assert "hunter2" not in str(caught.value)


def test_plain_http_is_for_this_machine_only():
    assert parse_url("http://127.0.0.1:9000/a.tar").bucket == "127.0.0.1:9000"
    assert parse_url("http://localhost/a.tar").scheme == "http"
    with pytest.raises(SettingError, match="not encrypted"):
        parse_url("http://example.org/a.tar")
    with pytest.raises(SettingError, match="not encrypted"):
        parse_url("http://localhost.example.org/a.tar")


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254",
        "https://169.254.170.2/v2",
        "http://2852039166",
        "http://0xa9fea9fe",
        "https://[fe80::1]/",
        "https://[::ffff:169.254.169.254]",
        "https://[fd00:ec2::254]",
        "https://metadata.google.internal",
        "https://metadata.google.internal./x",
        "https://[::169.254.169.254]",
        "https://[64:ff9b::a9fe:a9fe]",
        "https://[2002:a9fe:a9fe::1]",
        "https://0251.0376.0251.0376",
        "https://169.16689662",
        "https://100.100.100.200/latest",
        "https://168.63.129.16",
    ],
)
def test_metadata_and_link_local_addresses_are_refused(address):
    with pytest.raises(SettingError, match="never read"):
        refuse_blocked_host(address)


def test_other_addresses_are_accepted():
    refuse_blocked_host("http://127.0.0.1:9000")
    refuse_blocked_host("https://[2001:db8::1]")
    refuse_blocked_host("https://[::1]:9000")
    refuse_blocked_host("https://[64:ff9b::808:808]")
    refuse_blocked_host("https://no-such-host.invalid")


def test_a_link_local_endpoint_in_the_environment_is_refused(monkeypatch):
    pytest.importorskip("obstore")
    from penstock.storage.object_store.remote_file import RemoteFile

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://169.254.169.254/")
    with pytest.raises(SettingError, match="never read"):
        RemoteFile("s3://bucket/a.tar")


def test_without_obstore_the_error_names_the_package_to_install(monkeypatch):
    import sys

    from penstock.storage.object_store.remote_file import RemoteFile

    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SettingError, match=r"pip install 'penstock\[s3\]'"):
        RemoteFile("s3://never-seen-before/a.tar")
