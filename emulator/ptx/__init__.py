"""PTX text to basic blocks of compiled Python."""
