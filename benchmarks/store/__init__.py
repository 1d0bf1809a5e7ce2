"""Compares Penstock with its peers, and with plain parallel reads, on an object store with high latency."""
