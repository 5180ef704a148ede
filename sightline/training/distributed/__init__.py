"""Several processes training one model: the process group, DDP and FSDP2."""
