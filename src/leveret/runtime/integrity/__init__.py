"""Integrity: what a node stores is compared with another node's copy, read again, and repaired."""
