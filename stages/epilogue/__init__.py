"""The stages of the slot `epilogue`, and what they share."""

HELPERS = ("output",)
"""Modules of this folder that are no stages."""
