"""Simulated applications with books: publishers, consumers, readers of streams, and an operator."""
