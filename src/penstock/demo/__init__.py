"""`penstock demo`: a training on shards that the demo makes is watched, diagnosed, planned for, and run again faster.

`demo` is the sequence of stages, `stages` runs one training, `train` is the training script, `shards` makes and packs
the data, `forecast` predicts the rate of penstock.Loader, and `report` shows the results.
"""
