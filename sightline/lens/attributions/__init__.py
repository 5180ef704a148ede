"""Which parts of a model, and which tokens, an output depends on."""
