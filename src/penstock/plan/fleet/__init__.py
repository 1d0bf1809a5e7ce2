"""From one node to many: what so many ranks ask of cores, network, cache and store, and what they get."""
