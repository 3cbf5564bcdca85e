"""Runs a wave of clusters: scheduling, memory, barriers of threads, reports of deadlocks."""
