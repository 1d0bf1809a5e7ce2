"""Tuning of torch's DataLoader by a model and a few measurements, and a DataLoader that tunes itself.

tune.py           penstock.tune: checks, the cache of results, and one TuningRun
plan_for.py       penstock.plan_for: a plan from one measured worker, without further runs
tuning_run.py     one tuning: costs, the search, variants, repeated runs, the result
worker_cost.py      times one worker
trials.py           runs settings within the time of the tuning
measure.py          one timed run of a DataLoader, and of the user's step
search.py           the model's forecast, and which number of workers to measure next
loader_copy.py      DataLoaders like the given one; copies of datasets
explain.py          reasons and failures in sentences
result.py         settings and results
saved_results.py  results kept between runs
rank_lock.py      one rank of a machine tunes, and the others take its result
adaptive/         penstock.AdaptiveLoader
"""
