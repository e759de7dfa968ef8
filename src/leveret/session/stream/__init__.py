"""The stream protocol: one connection."""
