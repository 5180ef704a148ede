"""Commands to learn with: demo, lab."""
