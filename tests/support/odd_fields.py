"""Fields that go wrong in the process that decodes with them."""

import os


class Deadly:
    suffixes = (".x",)
    fixed_shape = False

    def decode_value(self, suffix, data):
        os._exit(3)


class Raising(Deadly):
    def decode_value(self, suffix, data):
        raise ValueError("cannot be decoded here")
