"""The data's way, one verb a file: order → read → decode → batch → device."""
