"""Sockets: listening, TLS, the PROXY header, back-off; nothing here knows a protocol of clients."""
