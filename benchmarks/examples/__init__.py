"""The worked examples with and without the habits of the field reports: how fast, and how long without data."""
