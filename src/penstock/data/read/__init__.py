"""Where the bytes of samples lie in shards, and how they are read: into blocks by reader threads, or by workers."""
