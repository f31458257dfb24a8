"""Kernels for devices that run groups of items: the one emitter of OpenCL and CUDA, beside the CPU's families.

A kernel is one or more launches. Each is a function that every item of every group runs; the items of a group share
memory and wait for each other at barriers, groups share nothing until the launch is done. Operands are the CPU's:
inputs, outputs, then (if the plan asks for it) a workspace; a result's bytes depend on neither the order of groups nor
that of items.
"""
