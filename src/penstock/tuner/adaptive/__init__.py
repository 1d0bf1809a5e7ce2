"""`penstock.AdaptiveLoader`: a DataLoader that changes its number of workers and its prefetch while it is used.

loader.py         the DataLoader that users create
epoch.py          its iterator: delivers batches, measures the loop, applies decisions
inner_loaders.py  torch DataLoaders with one combination of settings each, which share the epoch's order
controller.py     decides from the measurements which settings to use
"""
