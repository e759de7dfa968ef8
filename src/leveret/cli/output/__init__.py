"""The output of `leveretctl`: tables, JSON, ages, progress, help."""
