"""Plans for many ranks: what they demand of cores, network, caches and store, and what they would reach.

rank_need.py   the time and data that one rank needs for a batch, as measured on one node
cluster.py     the cluster, the demand of all ranks, and the bound that each resource sets
forecast.py    the rate per epoch, the price, the lanes of the order, and the effect of packing
"""
