"""The way to a GPU and the work done there, on a machine that has one."""
