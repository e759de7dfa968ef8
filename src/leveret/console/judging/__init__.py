"""Conclusions from the reports of all sites together. Pure."""
