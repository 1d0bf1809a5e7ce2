"""`penstock.tune` and `penstock.AdaptiveLoader` on the ranks of one machine."""

from ranks_steps import BATCH, SAMPLES

RANKS = 2


def test_ranks_of_a_machine_get_the_same_settings_which_one_of_them_measured(crew):
    found = crew["tuned", RANKS]
    first, second = ([rank["kwargs"][turn] for rank in found] for turn in range(2))
    assert first[0] == first[1]
    assert second[0] == second[1]
    for turn in range(2):
        assert sorted(rank["remembered"][turn] for rank in found) == [False, True]
        assert len({rank["rates"][turn] for rank in found}) == 1
    assert len({rank["rates"][0] for rank in found} | {rank["rates"][1] for rank in found}) == 2  # measured anew


def test_what_is_measured_is_for_a_rank_s_share_of_the_cores(crew):
    for rank in crew["tuned", RANKS]:
        assert any(f"should be enough on {rank['share']} cores" in reason for reason in rank["reasons"][0])


def test_ranks_that_change_their_settings_each_on_its_own_keep_order_and_number_of_batches(crew):
    found = crew["adapt", RANKS]
    for rank in found:
        assert rank["batches"] == rank["plain"]
        assert {len(batch) for batch in rank["batches"]} == {BATCH}
    assert [rank["changes"] for rank in found] == [3, 2]
    epochs = SAMPLES // BATCH // RANKS
    for epoch in range(2):
        batches = [batch for rank in found for batch in rank["batches"][epoch * epochs : (epoch + 1) * epochs]]
        assert sorted(number for batch in batches for number in batch) == list(range(SAMPLES))
