"""Lets tests of this folder import `adapting`."""
