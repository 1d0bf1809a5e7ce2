"""The engine: runs reading and decoding in parallel, without knowing what the bytes mean."""
