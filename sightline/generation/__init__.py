"""Logits to text: `randomness` is the random stream, `sampling` the logit processors and the draw
of a token, `decode` the decode loop, `beam` and `speculative` the alternatives to it, `text` the
streamed text."""
