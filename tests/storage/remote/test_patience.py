"""Pauses that grow and vary, a budget that bytes renew; all on a clock of the test's own."""

import asyncio

import pytest

from penstock.errors import StorageError
from penstock.storage.remote.failures import Inconsistent, Kind, Stalled, judge
from penstock.storage.remote.pace import LEAST, Pace
from penstock.storage.remote.patience import Patience, Trouble
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

    return Patience(budget_s=10, first_pause_s=1, longest_pause_s=4, now=clock.now, sleep=sleep, dice=lambda: 1.0)


def bear(trouble, *errors):
    async def all_of_them():
        for error in errors:
            await trouble.met(error, 7)

    asyncio.run(all_of_them())


def test_pauses_double_up_to_a_bound(patience, clock):
    bear(Trouble("s", patience, lambda: None), *[Stalled("slow")] * 3)
    assert repr(clock) == "<FakeClock at 7 s: 7 s passed, slept 3×>"


def test_pauses_are_anything_up_to_the_bound():
    assert Patience(dice=lambda: 0.25, first_pause_s=1, longest_pause_s=8).pause_s(3) == 1.0
    assert 0 <= Patience().pause_s(50) <= Patience().longest_pause_s


def test_the_budget_ends_it_and_the_error_says_what_and_where(patience):
    with pytest.raises(StorageError, match=r"slow \(4 tries in 7 s\)") as caught:
        bear(Trouble("s3://b/k", patience, lambda: None), *[Stalled("slow")] * 9)
    assert caught.value.where() == {"shard": "s3://b/k", "offset": 7, "stage": "read"}


def test_bytes_renew_the_budget(patience, clock):
    trouble = Trouble("s", patience, lambda: None)
    for _ in range(5):
        bear(trouble, *[Inconsistent("the answer ended early")] * 3)
        trouble.over()
    assert clock.now() == 35


def test_a_refusal_renews_the_store_once_and_is_then_final(patience):
    renewed = []
    trouble = Trouble("s", patience, lambda: renewed.append(True))
    bear(trouble, PermissionDeniedError("secret"))
    assert renewed == [True]
    with pytest.raises(StorageError, match="access was refused") as caught:
        bear(trouble, PermissionDeniedError("secret"))
    assert "secret" not in str(caught.value)
    assert "credentials" in str(caught.value)


@pytest.mark.parametrize("error", [FileNotFoundError("x"), ValueError("x")])
def test_what_cannot_get_better_is_not_tried_again(patience, clock, error):
    with pytest.raises(StorageError):
        bear(Trouble("s", patience, lambda: None), error)
    assert clock.now() == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>", Kind.PASSING),
        ("connection reset by peer", Kind.PASSING),
        ("status: 400 <Error><Code>ExpiredToken</Code></Error>", Kind.REFUSED),
        ("Client error with status 400 Bad Request: <Code>InvalidArgument</Code>", Kind.FINAL),
        ("Client error with status 429 Too Many Requests", Kind.PASSING),
        ("Error performing PUT http://169.254.169.254/latest/api/token", Kind.REFUSED),
    ],
)
def test_failures_are_judged_by_status_and_word(text, kind):
    assert judge(GenericError(text)).kind is kind


def test_of_what_the_store_said_only_status_and_word_are_repeated():
    said = "status 503 https://host/a.tar?X-Amz-Signature=hunter2 <Code>SlowDown</Code><AWSAccessKeyId>AKIA</AWS...>"
    assert judge(GenericError(said)).reason == "the request failed: the store answered 503 SlowDown"


def test_nobody_is_slow_before_there_is_something_to_compare_with():
    pace = Pace()
    for _ in range(LEAST - 1):
        assert pace.patience_s() is None
        pace.answered(0.03)
    pace.answered(0.03)
    assert pace.patience_s() == pytest.approx(0.06)


def test_a_tail_does_not_make_the_others_look_quick_or_slow():
    pace = Pace()
    for number in range(200):
        pace.answered(5.0 if number % 20 == 0 else 0.03)
    assert pace.patience_s() == pytest.approx(0.06)


def test_few_requests_are_asked_twice_however_slow_all_are():
    pace = Pace()
    allowed = 0
    for _ in range(1000):
        pace.patience_s()
        allowed += pace.may_ask_twice()
    assert allowed == 100
