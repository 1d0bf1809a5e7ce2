"""Run as files of their own, beside the training: see penstock.testing.faults.apart."""
