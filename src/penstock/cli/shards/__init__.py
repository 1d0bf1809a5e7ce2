"""The commands under 'penstock shards'."""
