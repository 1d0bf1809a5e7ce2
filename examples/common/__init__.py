"""The code that the examples share: settings, a backbone, synthetic data, and the habits that --before restores."""
