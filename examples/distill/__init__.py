"""A student that learns its teacher's features and edges: field reports 000 and 001."""
