"""What went wrong with a request, as a kind and in words of ours: a store's own text may hold keys and signatures."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from enum import StrEnum

_STATUS = re.compile(r"status(?: code)?:? \(?([1-5][0-9]{2})\b")
_CODE = re.compile(r"<Code>([A-Za-z]{3,64})</Code>")
_ADDRESS = re.compile(r"\b[A-Za-z]+://\S*")
"""In it are names that somebody gave to objects: they say nothing about the failure, whatever words are in them."""
_METADATA_ADDRESSES = ("://169.254.", "://[fd00:ec2:", "://metadata.google.internal")
"""Where the library asks for the machine's own role if it has no credentials."""
_EXPIRED_CODES = (
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidIdentityToken",
    "InvalidToken",
    "RequestExpired",
    "TokenRefreshRequired",
)
_TRANSIENT_STATUSES = (408, 409, 425, 429)
"""Client errors that another try may overcome."""


class FailureKind(StrEnum):
    """What to do about it."""

    GONE = "gone"
    CHANGED = "changed"
    REFUSED = "refused"
    """Credentials are missing, wrong or too old: new ones may help, once."""
    PASSING = "passing"
    """The network or the server stumbled: another try may go well."""
    FINAL = "final"


class StalledTransfer(Exception):
    """Fewer bytes came than a living server sends."""


class InconsistentAnswer(Exception):
    """The answer is not to what was asked."""


class OverwrittenObject(Exception):
    """The answer is of another version of the object."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One request that failed."""

    kind: FailureKind
    reason: str


def classify(error: BaseException) -> RequestFailure:
    """What kind of failure it is. The text of the error goes no further than its status and the store's word for it."""
    if isinstance(error, FileNotFoundError):
        what = "bucket" if "NoSuchBucket" in str(error) else "object"  # HEAD does not tell
        return RequestFailure(FailureKind.GONE, f"there is no such {what}")
    if isinstance(error, OverwrittenObject) or _is_named(error, "PreconditionError"):
        return RequestFailure(FailureKind.CHANGED, "has changed since it was indexed")
    if isinstance(error, StalledTransfer | InconsistentAnswer):
        return RequestFailure(FailureKind.PASSING, str(error))
    if isinstance(error, asyncio.TimeoutError):
        return RequestFailure(FailureKind.PASSING, "the store did not answer in time")
    said = str(error)
    text = _ADDRESS.sub(" ", said)
    status = next((int(found) for found in _STATUS.findall(text)), None)
    word = next(iter(_CODE.findall(text)), None)
    if (
        _is_named(error, "PermissionDeniedError", "UnauthenticatedError")
        or status in (401, 403)
        or word in _EXPIRED_CODES
    ):
        return RequestFailure(FailureKind.REFUSED, _describe("access was refused", status, word))
    if any(place in said for place in _METADATA_ADDRESSES) or (status is None and "credential" in text.lower()):
        return RequestFailure(FailureKind.REFUSED, "no credentials were found")
    if "non-partial response" in text:
        return RequestFailure(
            FailureKind.PASSING, "a part was asked for, and the whole object sent: the server may know no ranges"
        )
    if _is_named(error, "GenericError") and not (
        status is not None and 300 <= status < 500 and status not in _TRANSIENT_STATUSES
    ):
        return RequestFailure(FailureKind.PASSING, _describe("the request failed", status, word))
    return RequestFailure(FailureKind.FINAL, _describe(f"the request failed ({type(error).__name__})", status, word))


def _is_named(error: BaseException, *names: str) -> bool:
    """By name: its classes are known only where obstore is installed."""
    return type(error).__name__ in names


def _describe(what: str, status: int | None, word: str | None) -> str:
    said = " ".join(str(part) for part in (status, word) if part is not None)
    return f"{what}: the store answered {said}" if said else what
