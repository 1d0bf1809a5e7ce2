"""Which servers are never spoken to, whatever a URL or the environment says."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from penstock.errors import SettingError

_METADATA_NAMES = ("metadata.google.internal", "metadata.goog")
_METADATA_IPV6 = ipaddress.ip_network("fd00:ec2::/32")
_METADATA_IPV4 = frozenset(map(ipaddress.IPv4Address, ("100.100.100.200", "168.63.129.16", "192.0.0.192")))
"""Alibaba's, Azure's and Oracle's, which are not link-local."""
_IPV4_IN_IPV6 = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b::/96")))
"""The last four bytes are an IPv4 address that a gateway may lead to: the old compatible ones, and NAT64."""


def refuse_blocked_host(address: str) -> None:
    """A link-local address is not a store but, in clouds, the service that hands out the machine's credentials."""
    host = urlsplit(address).hostname or ""
    if host.rstrip(".").lower() in _METADATA_NAMES or any(map(_is_blocked, _addresses(host))):
        raise SettingError(f"{host} is a link-local or metadata address, and never read", stage="open")


def _addresses(host: str) -> list[str]:
    """All it resolves to, odd spellings of numbers too; none where names are not known here but to a proxy."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)]
    except (OSError, UnicodeError):
        return []


def _is_blocked(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return _is_blocked_ipv4(address)
    return address.is_link_local or address in _METADATA_IPV6 or any(map(_is_blocked_ipv4, _embedded_ipv4(address)))


def _is_blocked_ipv4(address: ipaddress.IPv4Address) -> bool:
    return address.is_link_local or address in _METADATA_IPV4


def _embedded_ipv4(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses that one of IPv6 may stand for."""
    yield from filter(None, (address.ipv4_mapped, address.sixtofour))
    if any(address in network for network in _IPV4_IN_IPV6):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
