"""What the broker talks about: definitions, reasons, refusals. Imports nothing of ours."""
