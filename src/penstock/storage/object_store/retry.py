"""Classification of failed requests, the pauses between attempts, and the error when a read is given up.

Failures are described in Penstock's own words, since an error text of a store may contain keys and signatures.
"""

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
"""Addresses contain names that users gave to objects, which say nothing about the failure."""
_METADATA_ADDRESSES = ("://169.254.", "://[fd00:ec2:", "://metadata.google.internal")
"""obstore asks these for the machine's own role if it has no credentials."""
_EXPIRED_CODES = (
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidIdentityToken",
    "InvalidToken",
    "RequestExpired",
    "TokenRefreshRequired",
)
_TRANSIENT_STATUSES = (408, 409, 425, 429)
"""Client errors that another attempt may overcome."""


class FailureKind(StrEnum):
    """The kinds of failures, by what can be done about them."""

    NOT_FOUND = "not found"
    CHANGED = "changed"
    REFUSED = "refused"
    """Credentials are missing, wrong or expired: reading them again, once, may help."""
    TRANSIENT = "transient"
    """The network or the server failed: another attempt may succeed."""
    PERMANENT = "permanent"


class StalledTransfer(Exception):
    """Bytes came more slowly than from any working server."""


class InconsistentAnswer(Exception):
    """The answer does not fit the request."""


class OverwrittenObject(Exception):
    """The answer comes from another version of the object."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One request that failed."""

    kind: FailureKind
    reason: str


def classify(error: BaseException) -> RequestFailure:
    """Return the kind of a failure. Of the error's text, only the HTTP status and the store's error code are used."""
    if isinstance(error, FileNotFoundError):
        what = "bucket" if "NoSuchBucket" in str(error) else "object"  # a HEAD answer does not distinguish them
        return RequestFailure(FailureKind.NOT_FOUND, f"there is no such {what}")
    if isinstance(error, OverwrittenObject) or _is_named(error, "PreconditionError"):
        return RequestFailure(FailureKind.CHANGED, "has changed since it was indexed")
    if isinstance(error, StalledTransfer | InconsistentAnswer):
        return RequestFailure(FailureKind.TRANSIENT, str(error))
    if isinstance(error, asyncio.TimeoutError):
        return RequestFailure(FailureKind.TRANSIENT, "the store did not answer in time")
    full_text = str(error)
    text = _ADDRESS.sub(" ", full_text)
    status = next((int(match) for match in _STATUS.findall(text)), None)
    code = next(iter(_CODE.findall(text)), None)
    refused = _is_named(error, "PermissionDeniedError", "UnauthenticatedError")
    if refused or status in (401, 403) or code in _EXPIRED_CODES:
        return RequestFailure(FailureKind.REFUSED, _describe("access was refused", status, code))
    no_status = status is None and "credential" in text.lower()
    if any(address in full_text for address in _METADATA_ADDRESSES) or no_status:
        return RequestFailure(FailureKind.REFUSED, "no credentials were found")
    if "non-partial response" in text:
        reason = "a range was requested, and the whole object sent: the server may not support ranges"
        return RequestFailure(FailureKind.TRANSIENT, reason)
    client_error = status is not None and 300 <= status < 500 and status not in _TRANSIENT_STATUSES
    if _is_named(error, "GenericError") and not client_error:
        return RequestFailure(FailureKind.TRANSIENT, _describe("the request failed", status, code))
    reason = f"the request failed ({type(error).__name__})"
    return RequestFailure(FailureKind.PERMANENT, _describe(reason, status, code))


def _is_named(error: BaseException, *names: str) -> bool:
    """Compare by name, since obstore's classes exist only where obstore is installed."""
    return type(error).__name__ in names


def _describe(what: str, status: int | None, code: str | None) -> str:
    answer = " ".join(str(each) for each in (status, code) if each is not None)
    return f"{what}: the store answered {answer}" if answer else what


_ADVICE = {
    FailureKind.CHANGED: "Let nothing write to the shards while they are read, and start again",
    FailureKind.TRANSIENT: "Check the network and the store; a read is repeated for as long as its time budget allows",
}
_CREDENTIALS_ADVICE = {
    "s3": "Set credentials in the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; "
    "AWS_SKIP_SIGNATURE=true for public buckets",
    "gs": "Set credentials in the environment: GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT; "
    "GOOGLE_SKIP_SIGNATURE=true for public buckets",
    "az": "Set credentials in the environment: AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_TOKEN; AZURE_SKIP_SIGNATURE=true for public containers",
}
_SIGNED_URL_ADVICE = (
    "A signed address is valid for a limited time, and is known only to the process that it was given to"
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long failed requests are repeated, and with which pauses."""

    budget_s: float = 60.0
    """Seconds without a single byte after which a read is given up."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    stall_s: float = 10.0
    """Seconds in which a chunk (`request.CHUNK_BYTES`) must come; otherwise the request is given up and repeated."""
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[], float] = random.random
    """Source of random numbers in [0, 1)."""

    def pause_s(self, failures: int) -> float:
        """Return the seconds before the next attempt: random, up to a bound that doubles with each failure.

        The randomness keeps many readers from coming back at the same time.
        """
        return self.uniform() * min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 16))


DEFAULT_RETRY_POLICY = RetryPolicy()


class RetryState:
    """The failures of one read since its last byte."""

    def __init__(self, shard: str, policy: RetryPolicy, renew: Callable[[], bool]) -> None:
        self._shard = shard
        self._policy = policy
        self._renew = renew
        """Discards the client after a refusal; returns whether it did."""
        self._renewed = False
        self._failures = 0
        self._since = policy.now()

    def progressed(self) -> None:
        """Restore the whole time budget, since bytes have come."""
        self._failures = 0
        self._since = self._policy.now()

    async def wait_or_raise(self, failure: RequestFailure, offset: int | None = None) -> None:
        """Return when it is time for the next attempt; raise StorageError when another one is of no use.

        Do not call this while obstore's error is being handled: it would become the context of the error raised
        here, with all the secrets in its text.
        """
        self._failures += 1
        if failure.kind is FailureKind.REFUSED and not self._renewed:
            self._renewed = True
            store_counts.renewals += self._renew()
            return
        pause_s = self._policy.pause_s(self._failures)
        late = self._policy.now() + pause_s > self._since + self._policy.budget_s
        if failure.kind is not FailureKind.TRANSIENT or late:
            raise self._final_error(failure, offset)
        store_counts.retries += 1
        await self._policy.sleep(pause_s)

    def _final_error(self, failure: RequestFailure, offset: int | None) -> StorageError:
        reason = failure.reason
        if failure.kind is FailureKind.TRANSIENT:
            reason += f" ({self._failures} tries in {self._policy.now() - self._since:.0f} s)"
        advice = _ADVICE.get(failure.kind)
        if failure.kind is FailureKind.REFUSED:
            advice = _CREDENTIALS_ADVICE.get(self._shard.partition(":")[0], _SIGNED_URL_ADVICE)
        return StorageError(reason, shard=self._shard, offset=offset, stage="read", advice=advice)
