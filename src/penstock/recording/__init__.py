"""The recording of a run: JSON lines that are appended while it runs and can be read on any machine, without torch."""
