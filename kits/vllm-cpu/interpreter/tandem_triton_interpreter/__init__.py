"""Lets vLLM's V2 model runner compute on CPUs, for tests: see kits/vllm-cpu/README.md.

Triton's interpreter (TRITON_INTERPRET=1) runs kernels without a backend, but vLLM asks whether
there is one for CPUs. This is one that compiles nothing.
"""
