"""Worlds of two sites: an upstream and a downstream, and commands and situations of whole sites."""
