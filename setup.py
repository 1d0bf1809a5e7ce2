"""Builds the compiled decoder, if a C compiler and the headers of libjpeg-turbo are there; everything else is in
pyproject.toml."""

import os
from pathlib import Path

from setuptools import Extension, setup

prefix = os.environ.get("PENSTOCK_LIBJPEG")
"""A folder with include/ and lib/libjpeg.a, compiled as position-independent code, to be linked statically."""

setup(
    ext_modules=[
        Extension(
            "penstock._decode",
            ["native/module.c", "native/jpeg_window.c"],
            depends=["native/jpeg_window.h"],
            include_dirs=[str(Path(prefix, "include"))] if prefix else [],
            extra_objects=[str(Path(prefix, "lib", "libjpeg.a"))] if prefix else [],
            libraries=[] if prefix else ["jpeg"],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"] if os.name == "posix" else ["/O2", "/std:c11"],
            optional=not prefix,  # without it, Penstock decodes with simplejpeg and OpenCV
        )
    ]
)
