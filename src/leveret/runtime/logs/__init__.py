"""Logs: the flush, the group commit, and the stores of queues, streams and definitions."""
