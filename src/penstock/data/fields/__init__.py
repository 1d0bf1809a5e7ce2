"""Fields: the user's declaration of which part of a sample becomes which entry of the batch. One module per kind."""

from penstock.data.fields.array import Array
from penstock.data.fields.base import Field
from penstock.data.fields.gpu_transform import GpuTransform
from penstock.data.fields.image import Image
from penstock.data.fields.text import Json, Label, Raw, Text

__all__ = ["Array", "Field", "GpuTransform", "Image", "Json", "Label", "Raw", "Text"]
