"""The commands of `leveretctl`, a family a file, by what they operate on; see `leveret.cli.command`."""
