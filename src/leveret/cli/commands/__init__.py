"""The commands of `leveretctl`, a family a file; see `leveret.cli.command`."""
