"""The stages of the slot `pages`, and what they share with the rings."""

HELPERS = ("walk",)
"""Modules of this folder that are no stages."""
