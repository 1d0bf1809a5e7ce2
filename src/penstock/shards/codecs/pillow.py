"""PNG, WebP and other pictures, through Pillow, behind our own cap on pixels."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DecodeError, GuardError
from penstock.shards.guards.buffer import Buffer
from penstock.shards.guards.jpeg import MAX_PIXELS

_FORMATS = ("PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")


def decode_pillow_image(data: Buffer) -> NDArray[np.uint8]:
    """RGB pixels of the first picture of the file, as a loader would take it."""
    from PIL import Image  # late: workers that see no such picture start sooner

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise _too_large(f"{picture.width}×{picture.height}")
            return np.array(picture.convert("RGB"))
    except (GuardError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(str(error)) from error
    except Exception as error:  # Pillow raises whatever its parsers stumble over
        raise DecodeError(
            f"does not read as a picture: {error}",
            stage="decode",
            advice="Copy or download it again, or leave the sample out",
        ) from error


def _too_large(size: str) -> GuardError:
    return GuardError(
        f"the picture is too large to decode: {size}",
        stage="guard",
        advice="Shrink or tile the picture before it goes into a shard",
    )
