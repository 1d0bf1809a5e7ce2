"""Training logs that others wrote: one file per format, and what can be said from them alone."""
