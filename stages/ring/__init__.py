"""The stages of the slot `ring`, and what they share."""

HELPERS = ("entries", "layout")
"""Modules of this folder that are no stages."""
