"""Access to bytes, wherever they are stored: local files, object stores, and a cache of shards on a fast disk."""
