"""What tests of reports share: recordings of known shape."""
