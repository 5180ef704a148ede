"""llama.cpp's GGUF: header, metadata, tensor names and layouts, reading and writing."""
