"""`penstock.tune` and `penstock.AdaptiveLoader` on the ranks of one machine."""

from ranks_steps import BATCH, SAMPLES

RANKS = 2


def test_all_ranks_of_a_machine_get_the_settings_that_one_of_them_measured(results):
    found = results["tuned", RANKS]
    first, second = ([rank["kwargs"][call] for rank in found] for call in range(2))
    assert first[0] == first[1]
    assert second[0] == second[1]
    for call in range(2):
        assert sorted(rank["remembered"][call] for rank in found) == [False, True]
        assert len({rank["rates"][call] for rank in found}) == 1
    assert (
        len({rank["rates"][0] for rank in found} | {rank["rates"][1] for rank in found}) == 2
    )  # the second call measured again


def test_the_measurement_is_for_the_rank_s_share_of_the_cores(results):
    for rank in results["tuned", RANKS]:
        assert any(f"should be enough on {rank['share']} cores" in reason for reason in rank["reasons"][0])


def test_ranks_that_change_their_settings_independently_keep_order_and_number_of_batches(results):
    found = results["adapt", RANKS]
    for rank in found:
        assert rank["batches"] == rank["plain"]
        assert {len(batch) for batch in rank["batches"]} == {BATCH}
    assert [rank["changes"] for rank in found] == [3, 2]
    epochs = SAMPLES // BATCH // RANKS
    for epoch in range(2):
        batches = [batch for rank in found for batch in rank["batches"][epoch * epochs : (epoch + 1) * epochs]]
        assert sorted(number for batch in batches for number in batch) == list(range(SAMPLES))
