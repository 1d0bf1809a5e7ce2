"""Segmentation of the ground from six cameras: field report 004."""
