"""`penstock bench`: compares `penstock.Loader` with a plain torch DataLoader on the user's own shards.

`fields` and `workload` define what both loaders read; `side_by_side` runs `penstock_loader` and `torch_loader` in turn,
each run in a fresh process; `loader_run` measures one run, with the CPU time and memory from `process_usage`.
"""
