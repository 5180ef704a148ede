"""The native engine: a full decode step in one call. `program` lowers a model to operations,
`matrices` packs its weights, `engine` runs it."""
