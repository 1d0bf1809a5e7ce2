"""Bytes that live in an object store: found, read by ranges, and never mixed from two versions of an object."""
