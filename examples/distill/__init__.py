"""A student network learns its teacher's features and edges: field reports 000 and 001."""
