"""A proxy in front of an HTTP server on this machine that lets go wrong what goes wrong on a network."""

from __future__ import annotations

from tests.support.proxy.book import Counts
from tests.support.proxy.faults import Cut, Drip, Fault, Flip, Hang, Late, Status, WholeObject, WrongRange
from tests.support.proxy.messages import Answer, Request
from tests.support.proxy.server import FaultProxy

__all__ = [
    "Answer",
    "Counts",
    "Cut",
    "Drip",
    "Fault",
    "FaultProxy",
    "Flip",
    "Hang",
    "Late",
    "Request",
    "Status",
    "WholeObject",
    "WrongRange",
]
