"""What is done to pictures after the copy, a whole batch at a time: the same on a GPU and on the CPU."""
