"""Logs of chunks on disk: append, fsync, read, recover. The only room of the broker with files."""
