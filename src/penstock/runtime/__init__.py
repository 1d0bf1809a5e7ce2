"""Joins a source of samples and the engine into what runs for one loader."""
