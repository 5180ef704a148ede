"""Where checkpoints come from: paths, the catalogue, package registries, the Hugging Face hub,
caches."""
