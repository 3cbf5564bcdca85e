"""The arithmetic of the device on whole NumPy arrays, element by element or warp by warp."""
