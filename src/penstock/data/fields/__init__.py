"""Fields: the user's declaration of which part of a sample becomes which entry of the batch. One module per kind."""

from penstock.data.fields.array import Array
from penstock.data.fields.base import Field
from penstock.data.fields.boxes import Boxes
from penstock.data.fields.geometry import RandomResizedCrop
from penstock.data.fields.geometry_field import Geometry
from penstock.data.fields.gpu_transform import GpuTransform
from penstock.data.fields.image import Image
from penstock.data.fields.label import Label
from penstock.data.fields.mask import Mask
from penstock.data.fields.text import Json, Raw, Text

__all__ = [
    "Array", "Boxes", "Field", "Geometry", "GpuTransform", "Image", "Json", "Label", "Mask", "RandomResizedCrop", "Raw",
    "Text",
]  # fmt: skip
