"""The evidence that a recording gives for one loader: `gather` builds it, and every rule reads it.

    evidence.py           gather: recording → one `Evidence` per loader; `Evidence` holds the parts below
    settings.py           evidence.settings    settings of the loader
    loop.py               evidence.loop        steps of the training loop: waits, busy times, phases
    workers.py            evidence.workers     batches as the workers made them: CPU, queueing, blocked time
    machine.py            evidence.machine     cores and processes, sampled once a second
    ipc.py                evidence.ipc         cost of moving a ready batch from a worker to the training loop
    contention.py         evidence.contention  what waiting for a core or for the interpreter adds to a step
    recreated_loaders.py  joins the loaders of a script that creates its DataLoader anew for every epoch

A part uses only parts that stand above it in this list.
"""
