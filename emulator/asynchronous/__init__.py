"""Asynchronous stores and copies in flight, the mbarriers that they complete on, and their instructions."""
