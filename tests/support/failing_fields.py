"""Fields whose decoding ends the process or raises."""

import os


class Deadly:
    suffixes = (".x",)
    fixed_shape = False

    def decode_value(self, suffix, data):
        os._exit(3)


class Raising(Deadly):
    def decode_value(self, suffix, data):
        raise ValueError("cannot be decoded here")
