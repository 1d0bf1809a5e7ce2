"""Where an object lives, as a user writes it. What is secret in a URL is set aside here, and is nowhere else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from urllib.parse import unquote

from penstock.errors import SettingError

STORE_SCHEMES = ("s3", "gs", "az")
"""Schemes of stores with buckets, credentials from the environment, and listings."""
WEB_SCHEMES = ("https", "http")
MAX_PORT = 65535
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"(s3|gs|az|https?):/[^/]", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(:[0-9]{1,5})?")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]")

_queries: dict[str, str] = {}
"""The query of each web address that had one, such as a signature: in this process only, and never shown."""


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A bucket, or a web server, and a key in it. Holds nothing secret: it may be shown, kept and sent."""

    scheme: str
    bucket: str
    """Of the web, host and port."""
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def is_web(self) -> bool:
        """A plain web server: it has no listing, and nothing can be put there."""
        return self.scheme in WEB_SCHEMES

    @property
    def object_path(self) -> str:
        """The key as stores know it; a web address spells it with percent signs."""
        return unquote(self.key) if self.is_web else self.key

    @property
    def query(self) -> str:
        """What was set aside of a web address; empty if nothing was, or in another process."""
        return _queries.get(str(self), "")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether it is a URL, and not the name of a file."""
    text = os.fspath(path)
    if _LOST_SLASH.match(text):
        raise SettingError("a URL has lost a slash", shard=text, advice="Give URLs as strings: pathlib joins slashes")
    return _URL.match(text) is not None


def parse_url(text: str) -> RemoteUrl:
    """The URL, if it is one that may be read. No message repeats what might be a password."""
    match = _URL.match(text)
    scheme = match[1].lower() if match else ""
    if match is None or scheme not in (*STORE_SCHEMES, *WEB_SCHEMES):
        raise SettingError(f"{scheme}:// is no store that can be read", advice="Use s3://, gs://, az:// or https://")
    front, query = split_query(text)
    bucket, _, key = front[match.end() :].partition("/")
    if "@" in bucket:
        raise SettingError(
            f"a {scheme}:// URL with a user name or password in it is not taken",
            advice="Put credentials into the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their like",
        )
    if not (_is_host(bucket) if scheme in WEB_SCHEMES else _BUCKET.fullmatch(bucket)):
        raise SettingError(
            f"a {scheme}:// URL names no {'host' if scheme in WEB_SCHEMES else 'bucket'} that could be one"
        )
    if scheme == "http" and not is_loopback(bucket):
        raise SettingError(f"http://{bucket} is not encrypted", advice="Use https://, or s3:// with AWS_ENDPOINT_URL")
    url = RemoteUrl(scheme, bucket, key)
    _refuse_odd_path(url)
    if query:
        _queries[str(url)] = query
    return url


def _refuse_odd_path(url: RemoteUrl) -> None:
    """The library reads `//a.tar` as `/a.tar`, which is another object, and refuses the rest without saying why."""
    *folders, name = url.object_path.split("/")
    if {"", ".", ".."} & set(folders) or name in (".", ".."):
        raise SettingError(
            "a URL with an empty step, . or .. in its path is not read", shard=str(url), advice="Write the plain name"
        )


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    if found is None or int((found[2] or ":0")[1:]) > MAX_PORT:
        return False
    if text.startswith("["):
        try:
            IPv6Address(found[1][1:-1])
        except ValueError:
            return False
    return True


def split_query(text: str) -> tuple[str, str]:
    """A web address and its query; of anything else, where a question mark is part of a name, all of it and nothing."""
    match = _URL.match(text)
    if match is None or match[1].lower() not in WEB_SCHEMES:
        return text, ""
    front, _, query = text.partition("#")[0].partition("?")
    return front, query


def redact_url(path: str) -> str:
    """As it may be printed: a URL without what is secret in it, a path as it is."""
    return str(parse_url(path)) if is_remote(path) else path


def is_loopback(host: str) -> bool:
    """Whether what is said to that host, with or without a port, stays on this machine."""
    return _LOOPBACK.fullmatch(_without_port(host)) is not None


def _without_port(host: str) -> str:
    return re.sub(r":[0-9]+$", "", host)
