"""Apply the declared GpuTransform to a whole batch of images after the copy; a CPU gives the same result as a GPU."""
