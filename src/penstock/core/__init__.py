"""Contracts that every other room shares: stdlib and numpy only, no threads, no torch."""
