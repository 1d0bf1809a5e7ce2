"""Packs loose files or other shards into shards that are quick to read.

options → sources → plan → write (one task per output shard) → manifest; run executes the tasks of a plan
"""
