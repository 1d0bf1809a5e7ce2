"""Pauses, budgets, classification of failures and hedged requests. Time is a fake clock."""

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
    """An error with the name of obstore's own class."""


class PermissionDeniedError(Exception):
    """An error with the name of obstore's own class."""


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def policy(clock):
    async def sleep(seconds):
        clock.sleep(seconds)

    return RetryPolicy(budget_s=10, first_pause_s=1, longest_pause_s=4, now=clock.now, sleep=sleep, uniform=lambda: 1.0)


def fail_with(state, *errors):
    async def wait_for_all():
        for error in errors:
            await state.wait_or_raise(classify(error), 7)

    asyncio.run(wait_for_all())


def test_pauses_double_up_to_a_bound(policy, clock):
    fail_with(RetryState("s", policy, lambda: False), *[StalledTransfer("slow")] * 3)
    assert repr(clock) == "<FakeClock at 7 s: 7 s passed, slept 3×>"


def test_pauses_are_random_up_to_the_bound():
    assert RetryPolicy(uniform=lambda: 0.25, first_pause_s=1, longest_pause_s=8).pause_s(3) == 1.0
    assert 0 <= RetryPolicy().pause_s(50) <= RetryPolicy().longest_pause_s


def test_an_exhausted_budget_is_an_error_with_reason_and_location(policy):
    with pytest.raises(StorageError, match=r"slow \(4 tries in 7 s\)") as caught:
        fail_with(RetryState("s3://b/k", policy, lambda: False), *[StalledTransfer("slow")] * 9)
    assert caught.value.where() == {"shard": "s3://b/k", "offset": 7, "stage": "read"}


def test_progress_restores_the_budget(policy, clock):
    state = RetryState("s", policy, lambda: False)
    for _ in range(5):
        fail_with(state, *[InconsistentAnswer("the answer ended early")] * 3)
        state.progressed()
    assert clock.now() == 35


@pytest.mark.parametrize(
    ("shard", "what"),
    [("s3://b/k", "AWS_ACCESS"), ("gs://b/k", "GOOGLE_"), ("az://b/k", "AZURE_"), ("https://h/k", "signed")],
)
def test_a_refusal_renews_the_client_once_and_is_then_final(policy, shard, what):
    renewed = []
    state = RetryState(shard, policy, lambda: not renewed.append(True))
    fail_with(state, PermissionDeniedError("secret"))
    assert renewed == [True]
    with pytest.raises(StorageError, match="access was refused") as caught:
        fail_with(state, PermissionDeniedError("secret"))
    assert "secret" not in str(caught.value)
    assert what in caught.value.advice


@pytest.mark.parametrize("error", [FileNotFoundError("x"), ValueError("x")])
def test_permanent_failures_are_not_retried(policy, clock, error):
    with pytest.raises(StorageError):
        fail_with(RetryState("s", policy, lambda: False), error)
    assert clock.now() == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>", FailureKind.TRANSIENT),
        ("connection reset by peer", FailureKind.TRANSIENT),
        ("status: 400 <Error><Code>ExpiredToken</Code></Error>", FailureKind.REFUSED),
        ("Client error with status 400 Bad Request: <Code>InvalidArgument</Code>", FailureKind.PERMANENT),
        ("Client error with status 429 Too Many Requests", FailureKind.TRANSIENT),
        ("Error performing PUT http://169.254.169.254/latest/api/token", FailureKind.REFUSED),
        ("the credential provider was not enabled", FailureKind.REFUSED),
        (
            "Error performing GET http://host/bucket/credentials/status_403.tar in 1ms - error sending",
            FailureKind.TRANSIENT,
        ),
        ("Server returned non-2xx status code: 500: credentials service is down", FailureKind.TRANSIENT),
        ("status: 400 <Code>AuthorizationHeaderMalformed</Code> the Credential is mal-formed", FailureKind.PERMANENT),
        ("status: 400 <Code>ExpiredTokenException</Code>", FailureKind.REFUSED),
        ("Received non-partial response when range requested", FailureKind.TRANSIENT),
    ],
)
def test_failures_are_classified_by_status_and_code(text, kind):
    assert classify(GenericError(text)).kind is kind


def test_a_reason_contains_only_the_status_and_code_of_the_answer():
    text = "status 503 https://host/a.tar?X-Amz-Signature=hunter2 <Code>SlowDown</Code><AWSAccessKeyId>AKIA</AWS...>"
    assert classify(GenericError(text)).reason == "the request failed: the store answered 503 SlowDown"


def test_no_request_is_slow_before_enough_answers_are_known():
    tracker = LatencyTracker()
    for _ in range(MIN_ANSWERS - 1):
        assert tracker.hedge_delay_s() is None
        tracker.record(0.03)
    tracker.record(0.03)
    assert tracker.hedge_delay_s() == pytest.approx(0.06)


def test_a_slow_tail_does_not_change_the_hedge_delay():
    tracker = LatencyTracker()
    for number in range(200):
        tracker.record(5.0 if number % 20 == 0 else 0.03)
    assert tracker.hedge_delay_s() == pytest.approx(0.06)


def test_at_most_one_request_in_ten_is_sent_twice():
    tracker = LatencyTracker()
    allowed = 0
    for _ in range(1000):
        tracker.hedge_delay_s()
        allowed += tracker.may_hedge()
    assert allowed == 100


def test_unused_hedges_are_saved_only_up_to_a_bound():
    tracker = LatencyTracker()
    for _ in range(100_000):
        tracker.hedge_delay_s()
    allowed = 0
    for _ in range(1000):
        tracker.hedge_delay_s()
        allowed += tracker.may_hedge()
    assert allowed <= MAX_SAVED_HEDGES + 1000 // REQUESTS_PER_HEDGE


@pytest.mark.parametrize(
    ("usual_s", "request_count"), [(2.0, 2), (30.0, 1)], ids=["a second is request_count", "all are slow"]
)
def test_a_request_and_its_hedge_share_the_stall_time(policy, clock, monkeypatch, usual_s, request_count):
    """No answer ever comes, so the requests are given up when the stall time has passed."""
    tracker, requests = LatencyTracker(), []
    for _ in range(MIN_ANSWERS):
        tracker.hedge_delay_s()
        tracker.record(usual_s)

    async def wait(_, timeout, **more):
        clock.sleep(timeout)
        return set(), set(requests)

    def ask():
        requests.append(asyncio.get_running_loop().create_future())
        return requests[-1]

    monkeypatch.setattr(asyncio, "wait", wait)
    with pytest.raises(TimeoutError):
        asyncio.run(hedged_request(ask, tracker, policy))
    assert clock.now() == policy.stall_s == 10
    assert [request.cancelled() for request in requests] == [True] * request_count
