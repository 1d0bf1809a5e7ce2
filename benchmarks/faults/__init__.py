"""`make bench-faults`: real faults around real loaders, and whether the diagnosis names them."""
