"""Loaders raced on the user's own shards: `trial` measures one, `plain` is the rival, `contest` is the race."""
