"""Ports, and links that a test can harm."""
