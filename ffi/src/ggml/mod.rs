//! ggml: backend ABI, function table, tensors and graphs.
