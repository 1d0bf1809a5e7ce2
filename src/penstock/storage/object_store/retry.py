"""What went wrong with a request, as a kind and in words of ours: a store's own text may hold keys and signatures."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import StorageError
from penstock.storage.object_store.io_thread import store_counts

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


_ADVICE = {
    FailureKind.CHANGED: "Let nothing write to the shards while they are read, and start again",
    FailureKind.PASSING: "Look after the network and the store; a read is tried for as long as the budget allows",
}
_CREDENTIALS_ADVICE = {
    "s3": "Set credentials in the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; "
    "AWS_SKIP_SIGNATURE=true for public buckets",
    "gs": "Set credentials in the environment: GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT; "
    "GOOGLE_SKIP_SIGNATURE=true for public buckets",
    "az": "Set credentials in the environment: AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_TOKEN; AZURE_SKIP_SIGNATURE=true for public containers",
}
_SIGNED_URL_ADVICE = "A signed address holds for a while only, and is known only to the process that it was given to"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """With whom to be patient, and for how long."""

    budget_s: float = 60.0
    """Without a single byte, tries are made for this long."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    stall_s: float = 10.0
    """A chunk (`fetch.CHUNK_BYTES`) must come within this time, or the request is given up and made again."""
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[], float] = random.random

    def pause_s(self, failures: int) -> float:
        """Before the next try: anything up to a bound that doubles, so that many readers do not come back at once."""
        return self.uniform() * min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 16))


DEFAULT_RETRY_POLICY = RetryPolicy()


class RetryState:
    """The failures of one read since its last byte."""

    def __init__(self, shard: str, patience: RetryPolicy, renew: Callable[[], bool]) -> None:
        self._shard = shard
        self._patience = patience
        self._renew = renew
        self._renewed = False
        self._failures = 0
        self._since = patience.now()

    def progressed(self) -> None:
        """Bytes have come: the budget is whole again."""
        self._failures = 0
        self._since = self._patience.now()

    async def wait_or_raise(self, failure: RequestFailure, offset: int | None = None) -> None:
        """Returns when it is time to try again; raises when there is no use in that.

        Not to be called while the library's error is handled: ours would carry it along, with all that is secret in it.
        """
        self._failures += 1
        if failure.kind is FailureKind.REFUSED and not self._renewed:
            self._renewed = True
            store_counts.renewals += self._renew()
            return
        pause_s = self._patience.pause_s(self._failures)
        late = self._patience.now() + pause_s > self._since + self._patience.budget_s
        if failure.kind is not FailureKind.PASSING or late:
            raise self._given_up(failure, offset)
        store_counts.retries += 1
        await self._patience.sleep(pause_s)

    def _given_up(self, failure: RequestFailure, offset: int | None) -> StorageError:
        reason = failure.reason
        if failure.kind is FailureKind.PASSING:
            reason += f" ({self._failures} tries in {self._patience.now() - self._since:.0f} s)"
        advice = _ADVICE.get(failure.kind)
        if failure.kind is FailureKind.REFUSED:
            advice = _CREDENTIALS_ADVICE.get(self._shard.partition(":")[0], _SIGNED_URL_ADVICE)
        return StorageError(reason, shard=self._shard, offset=offset, stage="read", advice=advice)
