"""Integrity: compares stored data with another node's copy, reads them again, and repairs damage."""
