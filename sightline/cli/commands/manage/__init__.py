"""Commands that manage checkpoints and the machine: models, info, check, convert, quantize, doctor,
bench."""
