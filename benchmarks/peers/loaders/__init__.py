"""One contestant a file: `prepare(task)` does what is not to be timed and returns what makes the batches."""
