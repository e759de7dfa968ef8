"""The HTTP server of a node: sockets, connections, the application."""
