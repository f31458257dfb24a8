"""Running one kernel from NumPy, for tests and benchmarks: on this CPU, through OpenCL, or CUDA's text as C++."""
