"""Lets tests of this folder import `crowds`."""
