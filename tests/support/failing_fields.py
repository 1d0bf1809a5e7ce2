"""Fields whose decoding ends the process or raises."""

import os

from penstock.data.fields import Field


class Deadly(Field):
    suffixes = (".x",)
    fixed_shape = False

    def decode_value(self, suffix, data, sample):
        os._exit(3)


class Raising(Deadly):
    def decode_value(self, suffix, data, sample):
        raise ValueError("cannot be decoded here")
