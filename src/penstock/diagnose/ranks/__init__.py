"""Several ranks of one run: which of them delays the others, by its data or by its own step, and why.

waits.py    how long each rank waits for its data, step by step
steps.py    how long each rank's own step takes, from the time that it spends in the collective of `backward`
verdict.py  diagnose_ranks: chooses the rank to judge, and describes the ranks together
"""
