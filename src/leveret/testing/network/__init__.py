"""Free ports, waits for a condition, and links with faults."""
