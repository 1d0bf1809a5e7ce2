"""Example trainings to read and to copy from; run them from the root of the tree."""
