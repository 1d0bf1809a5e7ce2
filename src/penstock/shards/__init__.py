"""Shards: reading and indexing them, guarding and decoding their parts, packing and checking them.

tar (headers) → pairing (samples) → index (sidecar file) → scan (index of a shard, stored or new) → validate
"""
