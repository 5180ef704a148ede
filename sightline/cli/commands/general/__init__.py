"""Commands about the command line itself: help and shell completion."""
