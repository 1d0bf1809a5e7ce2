"""A proxy in front of an HTTP server on this machine that lets go wrong what goes wrong on a network."""

from __future__ import annotations

from penstock.testing.proxy.book import Counts
from penstock.testing.proxy.faults import Cut, Drip, Fault, Flip, Hang, Late, Status, WholeObject, WrongRange
from penstock.testing.proxy.messages import Answer, Request
from penstock.testing.proxy.server import FaultProxy

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
