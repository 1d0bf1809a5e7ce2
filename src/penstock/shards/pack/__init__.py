"""Packs loose files, other shards or files of records into shards that are quick to read.

options → sources (records/: of other formats) → plan → write (one task per output shard) → manifest; run executes the
tasks of a plan
"""
