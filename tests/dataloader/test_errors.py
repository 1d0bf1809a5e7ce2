"""Exceptions of the user's code arrive as torch's DataLoader delivers them."""

import pytest
import torch.utils.data

from penstock import DataLoader
from tests.dataloader.samples import Numbers, outcomes, same


class TwoArgumentsError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def _raise(error):
    class Failing(Numbers):
        def __getitem__(self, index):
            if index == 6:
                raise error
            return index

    return Failing(16)


ERRORS = [
    KeyError("missing"),
    ValueError("bad value"),
    TwoArgumentsError(1, 2),
    StopIteration("over"),
    OSError(2, "no"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_type_and_message_of_an_error_are_torchs_and_the_epoch_goes_on(error):
    expected = outcomes(torch.utils.data.DataLoader(_raise(error), batch_size=4, num_workers=1))
    found = outcomes(DataLoader(_raise(error), batch_size=4, num_workers=2))
    assert same(found, expected)


def test_the_message_has_the_traceback_of_the_worker():
    with pytest.raises(
        ValueError, match=r"(?s)Caught ValueError in DataLoader worker process \d\..*test_errors.py.*raise error"
    ):
        list(DataLoader(_raise(ValueError("bad value")), batch_size=4, num_workers=2))


def test_an_error_of_collate_fn_is_delivered():
    def collate(samples):
        raise ArithmeticError("cannot collate")

    with pytest.raises(ArithmeticError, match="cannot collate"):
        next(iter(DataLoader(Numbers(4), num_workers=1, collate_fn=collate)))


def test_a_class_that_the_training_process_cannot_import_becomes_a_runtime_error():
    class LocalError(Exception):
        pass

    with pytest.raises(RuntimeError, match="LocalError: only here"):
        list(DataLoader(_raise(LocalError("only here")), batch_size=4, num_workers=1))


def test_a_batch_that_cannot_be_pickled_is_an_error_that_says_so():
    loader = DataLoader(Numbers(4), num_workers=1, collate_fn=lambda samples: lambda: samples)
    with pytest.raises(Exception, match=r"(?i)pickle"):
        next(iter(loader))


def test_an_error_of_the_sampler_is_raised():
    class Sampler:
        def __iter__(self):
            yield [0]
            raise LookupError("no second batch")

    with pytest.raises(LookupError, match="no second batch"):
        list(DataLoader(Numbers(4), batch_sampler=Sampler(), num_workers=1))
