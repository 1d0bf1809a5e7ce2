"""Looks at the machine before a run does: one theme a file, each giving rows of what is there and what that means."""
