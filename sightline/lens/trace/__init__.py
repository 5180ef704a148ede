"""A trace of one forward pass: attention layers, rebuilding, watching generation, files."""
