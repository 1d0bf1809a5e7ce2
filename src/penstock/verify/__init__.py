"""Whether a plan keeps its promise: the same command before and after, in turn, and what may be said of it."""
