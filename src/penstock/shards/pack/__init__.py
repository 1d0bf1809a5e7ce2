"""From loose files or other shards to shards that are quick to read.

options → sources → plan → task (one output shard each) → manifest
"""
