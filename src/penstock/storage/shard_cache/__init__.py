"""Copies of shards in a folder on a fast disk, shared safely by processes.

copy (one verified copy) → directory (locks and eviction) → cache (ShardCache) → cache_tier (copies in the background)
"""
