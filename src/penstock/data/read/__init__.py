"""Finds the bytes of samples in shards, and reads them: into blocks by reader threads, or by workers."""
