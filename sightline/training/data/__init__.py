"""Training data: documents, packed windows, pairs, labels, chats, masks; batches in a
deterministic order."""
