"""A map of the ground from six cameras: field report 004."""
