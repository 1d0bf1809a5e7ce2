"""Where bytes live: what kind of storage a path is on, what it can do, and a cache in front of it."""
