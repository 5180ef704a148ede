"""Our C++ kernels as torch operations, for training and inference in float32 on the CPU."""
