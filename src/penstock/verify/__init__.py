"""`penstock verify`: a training run before and after a plan's changes, in turns, and a judgement with an interval.

command.py     the user's command: which script to run
trials.py      runs the script with its own settings and with the plan's, in turns
cold_cache.py  drops the cached pages of the files that the script reads
measures.py    one quantity of two runs, with a bootstrap interval (also for `penstock compare`)
judge.py       the judgement over all runs
history.py     earlier verifications, for the error of the model
"""
