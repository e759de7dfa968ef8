"""The node: sockets, timers, files, and the running of what the core decided."""
