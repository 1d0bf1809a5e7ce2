"""URLs of objects, as a user writes them.

`parse_url` checks a URL and separates the query of a web address, which may be a signature, from the rest. The query is
held in the memory of this process only; everything that is printed, stored or pickled is a `RemoteUrl` without it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from urllib.parse import unquote

from penstock.errors import SettingError

STORE_SCHEMES = ("s3", "gs", "az")
"""Schemes of stores that have buckets, listings, and credentials from the environment."""
WEB_SCHEMES = ("https", "http")
"""Schemes of plain web servers, which have neither listings nor credentials."""
MAX_PORT = 65535
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LOST_SLASH = re.compile(r"(s3|gs|az|https?):/[^/]", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(:[0-9]{1,5})?")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]")

_queries: dict[str, str] = {}
"""Query of each web address that had one, such as a signature. It stays in this process and is never shown."""


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A bucket or a web server, and a key in it. It holds nothing secret: it may be shown, stored and sent."""

    scheme: str
    bucket: str
    """Name of the bucket; for a web address, the host and the port."""
    key: str
    """Path of the object in the bucket, as the URL spells it."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def is_web(self) -> bool:
        """Whether this is a plain web server, which has no listing and takes no uploads."""
        return self.scheme in WEB_SCHEMES

    @property
    def object_path(self) -> str:
        """Return the key as the store knows it; a web address spells it with percent escapes."""
        return unquote(self.key) if self.is_web else self.key

    @property
    def query(self) -> str:
        """Return the query of a web address; empty if it had none, or in a process that did not parse the URL."""
        return _queries.get(str(self), "")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a URL rather than the name of a file."""
    text = os.fspath(path)
    if _LOST_SLASH.match(text):
        raise SettingError("a URL has lost a slash", shard=text, advice="Give URLs as strings: pathlib joins slashes")
    return _URL.match(text) is not None


def parse_url(text: str) -> RemoteUrl:
    """Check a URL and return it parsed; SettingError if it must not be read. No message repeats a possible password."""
    match = _URL.match(text)
    scheme = match[1].lower() if match else ""
    if match is None or scheme not in (*STORE_SCHEMES, *WEB_SCHEMES):
        raise SettingError(
            f"{scheme}:// is not a kind of store that can be read", advice="Use s3://, gs://, az:// or https://"
        )
    address, query = split_query(text)
    bucket, _, key = address[match.end() :].partition("/")
    if "@" in bucket:
        raise SettingError(
            f"a {scheme}:// URL must not contain a user name or password",
            advice="Put credentials into the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and so on",
        )
    if not (_is_host(bucket) if scheme in WEB_SCHEMES else _BUCKET.fullmatch(bucket)):
        raise SettingError(f"a {scheme}:// URL has no valid {'host' if scheme in WEB_SCHEMES else 'bucket'} name")
    if scheme == "http" and not is_loopback(bucket):
        raise SettingError(f"http://{bucket} is not encrypted", advice="Use https://, or s3:// with AWS_ENDPOINT_URL")
    url = RemoteUrl(scheme, bucket, key)
    _refuse_odd_path(url)
    if query:
        _queries[str(url)] = query
    return url


def _refuse_odd_path(url: RemoteUrl) -> None:
    """Refuse empty, `.` and `..` components.

    obstore would read `//a.tar` as `/a.tar`, which is another object, and refuses the others without a reason.
    """
    *folders, name = url.object_path.split("/")
    if {"", ".", ".."} & set(folders) or name in (".", ".."):
        raise SettingError(
            "a URL must not have an empty component, . or .. in its path", shard=str(url), advice="Write the plain name"
        )


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    if match is None or int((match[2] or ":0")[1:]) > MAX_PORT:
        return False
    if text.startswith("["):
        try:
            IPv6Address(match[1][1:-1])
        except ValueError:
            return False
    return True


def split_query(text: str) -> tuple[str, str]:
    """Split a web address into the address and its query.

    Any other text is returned whole with an empty query, since a question mark is part of a name there.
    """
    match = _URL.match(text)
    if match is None or match[1].lower() not in WEB_SCHEMES:
        return text, ""
    address, _, query = text.partition("#")[0].partition("?")
    return address, query


def redact_url(path: str) -> str:
    """Return the path as it may be printed: a URL without its query, a file name unchanged."""
    return str(parse_url(path)) if is_remote(path) else path


def is_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, is this machine."""
    return _LOOPBACK.fullmatch(_without_port(host)) is not None


def _without_port(host: str) -> str:
    return re.sub(r":[0-9]+$", "", host)
