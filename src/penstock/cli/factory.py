"""A function of the user's, named on the command line: found, called, and its failures told."""

from __future__ import annotations

import os
import sys
from typing import Any

from penstock.config import function_named
from penstock.errors import SettingError


def made_by(name: str, returns: str) -> Any:
    """What "package.module:function" returns. The module is looked for in the working directory, too."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    make = function_named(name)
    try:
        return make()
    except Exception as error:
        raise SettingError(
            f"{getattr(make, '__name__', make)} raised {type(error).__name__}: {error}",
            advice=f"It is called without arguments and must return {returns}",
        ) from error
