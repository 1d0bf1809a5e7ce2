"""What the user declares: which part of a sample becomes which entry of the batch. One kind of field a file."""

from penstock.flow.fields.array import Array
from penstock.flow.fields.base import Field
from penstock.flow.fields.finish import Finish
from penstock.flow.fields.image import Image
from penstock.flow.fields.plain import Json, Label, Raw, Text

__all__ = ["Array", "Field", "Finish", "Image", "Json", "Label", "Raw", "Text"]
