"""One thin file per command; no logic."""
