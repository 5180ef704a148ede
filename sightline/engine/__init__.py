"""The native engine: a decoder's whole step in one call. `program` writes a model as operations,
`matrices` packs its weights, `engine` runs it."""
