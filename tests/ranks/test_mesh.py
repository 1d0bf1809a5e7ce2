"""Ranks that share one model see the same samples, if the loader is told which of the data's ranks they are."""

import pytest
from ranks_material import STEPS


def test_a_row_of_the_grid_is_one_rank_of_the_data(crew):
    batches = [rank["batches"] for rank in crew["mesh", 4]]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert [batches[0], batches[2]] == [rank["batches"] for rank in crew["epoch", 2]]


def test_training_by_fsdp_and_tensor_parallelism_has_the_losses_of_one_rank(crew):
    (alone,) = crew["mesh", 1]
    assert len(alone["losses"]) == STEPS
    assert alone["losses"][-1] < alone["losses"][0]
    for rank in crew["mesh", 4]:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=1e-9)
