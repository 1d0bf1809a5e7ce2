"""The path of the data, a package per stage: sources → order → read → decode → batch → device."""
