"""Probes: short measurements, each of one resource alone and bounded in time.

`run` runs several of them and `results` holds what they found: `storage` (reads of files or objects), `decode` (samples
in memory), `ipc` (batches from a worker of torch's DataLoader to the training loop), `gpu_copy` (host to device) and
`step` (the training step on a batch that is already there). A plan can be made from them without a recording.
"""
