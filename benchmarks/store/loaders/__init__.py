"""One module per loader: `prepare(task)` does the work that is not timed and returns a function that makes batches."""
