"""The choice of the agent's file that runs, and the way another takes its place. The standard library and `wire`
only.
"""
