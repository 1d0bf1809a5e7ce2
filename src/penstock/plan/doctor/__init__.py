"""`penstock doctor`: checks of the machine, and of the DataLoaders in a script, before a training runs.

    examine.py        runs all checks and collects their rows
    check.py          the type of a row
    machine.py        cores, memory, shared memory, swap, open files, NUMA, start method, versions
    gpu.py            GPUs and their links
    script.py         the settings of each DataLoader in a script against the machine
    script_source.py  finds the DataLoader calls in a script's source

The checks import no torch and take less than a second together.
"""
