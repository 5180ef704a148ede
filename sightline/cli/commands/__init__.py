"""One file per command, in the groups that `sightline --help` shows."""
