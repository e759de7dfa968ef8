"""How `leveretctl` shows what a command found: tables, JSON, ages, progress, help."""
