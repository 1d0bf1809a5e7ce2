"""A queueing model of torch's DataLoader: predicts the rate of a run if one thing about it were different.

    simulation_data.py   input and output of the simulator: batch costs, the worker pool, the simulated run
    simulator.py         simulate: one loader and its training loop
    event_simulator.py   the event-driven simulator, for workers that share cores, storage or a lock
    rank_simulator.py    many ranks that wait for each other at the end of every step
    workload.py          a recorded run as input of the simulator, and its simulated rate
    edits.py             a workload with one thing changed: more workers, no lock, no slow samples
    bootstrap.py         the confidence interval of the gain of an edit
    bounds.py            upper bounds of the rate, by operational laws

All functions are pure: they neither read files nor clocks.
"""
