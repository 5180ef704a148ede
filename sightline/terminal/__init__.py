"""Output to a terminal: console, escaping, progress bars, colour ramps, plots."""
