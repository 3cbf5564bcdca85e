"""The checker: races, reads of unwritten memory, asynchronous writes that nobody has waited for."""
