"""Pauses that grow and vary, a budget that bytes renew; all on a clock of the test's own."""

import asyncio

import pytest

from penstock.errors import StorageError
from penstock.storage.object_store.request import (
    MAX_SAVED_HEDGES,
    MIN_ANSWERS,
    REQUESTS_PER_HEDGE,
    LatencyTracker,
    hedged_request,
)
from penstock.storage.object_store.retry import (
    FailureKind,
    InconsistentAnswer,
    RetryPolicy,
    RetryState,
    StalledTransfer,
    classify,
)
from penstock.testing import FakeClock


class GenericError(Exception):
    """As obstore names it."""


class PermissionDeniedError(Exception):
    """As obstore names it."""


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def patience(clock):
    async def sleep(seconds):
        clock.sleep(seconds)

    return RetryPolicy(budget_s=10, first_pause_s=1, longest_pause_s=4, now=clock.now, sleep=sleep, uniform=lambda: 1.0)


def bear(trouble, *errors):
    async def all_of_them():
        for error in errors:
            await trouble.wait_or_raise(classify(error), 7)

    asyncio.run(all_of_them())


def test_pauses_double_up_to_a_bound(patience, clock):
    bear(RetryState("s", patience, lambda: False), *[StalledTransfer("slow")] * 3)
    assert repr(clock) == "<FakeClock at 7 s: 7 s passed, slept 3×>"


def test_pauses_are_anything_up_to_the_bound():
    assert RetryPolicy(uniform=lambda: 0.25, first_pause_s=1, longest_pause_s=8).pause_s(3) == 1.0
    assert 0 <= RetryPolicy().pause_s(50) <= RetryPolicy().longest_pause_s


def test_the_budget_ends_it_and_the_error_says_what_and_where(patience):
    with pytest.raises(StorageError, match=r"slow \(4 tries in 7 s\)") as caught:
        bear(RetryState("s3://b/k", patience, lambda: False), *[StalledTransfer("slow")] * 9)
    assert caught.value.where() == {"shard": "s3://b/k", "offset": 7, "stage": "read"}


def test_bytes_renew_the_budget(patience, clock):
    trouble = RetryState("s", patience, lambda: False)
    for _ in range(5):
        bear(trouble, *[InconsistentAnswer("the answer ended early")] * 3)
        trouble.progressed()
    assert clock.now() == 35


@pytest.mark.parametrize(
    ("shard", "what"),
    [("s3://b/k", "AWS_ACCESS"), ("gs://b/k", "GOOGLE_"), ("az://b/k", "AZURE_"), ("https://h/k", "signed")],
)
def test_a_refusal_renews_the_store_once_and_is_then_final(patience, shard, what):
    renewed = []
    trouble = RetryState(shard, patience, lambda: not renewed.append(True))
    bear(trouble, PermissionDeniedError("secret"))
    assert renewed == [True]
    with pytest.raises(StorageError, match="access was refused") as caught:
        bear(trouble, PermissionDeniedError("secret"))
    assert "secret" not in str(caught.value)
    assert what in caught.value.advice


@pytest.mark.parametrize("error", [FileNotFoundError("x"), ValueError("x")])
def test_what_cannot_get_better_is_not_tried_again(patience, clock, error):
    with pytest.raises(StorageError):
        bear(RetryState("s", patience, lambda: False), error)
    assert clock.now() == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>", FailureKind.PASSING),
        ("connection reset by peer", FailureKind.PASSING),
        ("status: 400 <Error><Code>ExpiredToken</Code></Error>", FailureKind.REFUSED),
        ("Client error with status 400 Bad Request: <Code>InvalidArgument</Code>", FailureKind.FINAL),
        ("Client error with status 429 Too Many Requests", FailureKind.PASSING),
        ("Error performing PUT http://169.254.169.254/latest/api/token", FailureKind.REFUSED),
        ("the credential provider was not enabled", FailureKind.REFUSED),
        (
            "Error performing GET http://host/bucket/credentials/status_403.tar in 1ms - error sending",
            FailureKind.PASSING,
        ),
        ("Server returned non-2xx status code: 500: credentials service is down", FailureKind.PASSING),
        ("status: 400 <Code>AuthorizationHeaderMalformed</Code> the Credential is mal-formed", FailureKind.FINAL),
        ("status: 400 <Code>ExpiredTokenException</Code>", FailureKind.REFUSED),
        ("Received non-partial response when range requested", FailureKind.PASSING),
    ],
)
def test_failures_are_judged_by_status_and_word(text, kind):
    assert classify(GenericError(text)).kind is kind


def test_of_what_the_store_said_only_status_and_word_are_repeated():
    said = "status 503 https://host/a.tar?X-Amz-Signature=hunter2 <Code>SlowDown</Code><AWSAccessKeyId>AKIA</AWS...>"
    assert classify(GenericError(said)).reason == "the request failed: the store answered 503 SlowDown"


def test_nobody_is_slow_before_there_is_something_to_compare_with():
    pace = LatencyTracker()
    for _ in range(MIN_ANSWERS - 1):
        assert pace.hedge_delay_s() is None
        pace.record(0.03)
    pace.record(0.03)
    assert pace.hedge_delay_s() == pytest.approx(0.06)


def test_a_tail_does_not_make_the_others_look_quick_or_slow():
    pace = LatencyTracker()
    for number in range(200):
        pace.record(5.0 if number % 20 == 0 else 0.03)
    assert pace.hedge_delay_s() == pytest.approx(0.06)


def test_few_requests_are_asked_twice_however_slow_all_are():
    pace = LatencyTracker()
    allowed = 0
    for _ in range(1000):
        pace.hedge_delay_s()
        allowed += pace.may_hedge()
    assert allowed == 100


def test_a_long_quick_time_does_not_pay_for_doubling_a_slow_one():
    pace = LatencyTracker()
    for _ in range(100_000):
        pace.hedge_delay_s()
    allowed = 0
    for _ in range(1000):
        pace.hedge_delay_s()
        allowed += pace.may_hedge()
    assert allowed <= MAX_SAVED_HEDGES + 1000 // REQUESTS_PER_HEDGE


@pytest.mark.parametrize(("usual_s", "asked"), [(2.0, 2), (30.0, 1)], ids=["a second is asked", "all are slow"])
def test_a_request_has_the_time_of_one_stall_and_its_second_no_more(patience, clock, monkeypatch, usual_s, asked):
    """Nothing ever comes: whoever waits is given up when the time of a stall has passed."""
    pace, requests = LatencyTracker(), []
    for _ in range(MIN_ANSWERS):
        pace.hedge_delay_s()
        pace.record(usual_s)

    async def wait(_, timeout, **more):
        clock.sleep(timeout)
        return set(), set(requests)

    def ask():
        requests.append(asyncio.get_running_loop().create_future())
        return requests[-1]

    monkeypatch.setattr(asyncio, "wait", wait)
    with pytest.raises(TimeoutError):
        asyncio.run(hedged_request(ask, pace, patience))
    assert clock.now() == patience.stall_s == 10
    assert [request.cancelled() for request in requests] == [True] * asked
